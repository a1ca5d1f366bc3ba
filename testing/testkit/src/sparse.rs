//! Models of gigabytes that cost megabytes: files of holes with real bytes scattered in them.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::Random;

/// Real bytes lie about this far apart: some in every block of the usual 16 MiB.
const APART: u64 = 7 << 20;
/// And are this many at a time: over page borders, wherever they start.
const ISLAND: usize = 9000;

/// A file of tensors of bytes `t0`, `t1`, ..., mostly holes. Removed when dropped.
#[derive(Debug)]
pub struct Sparse {
    _folder: TempDir,
    path: PathBuf,
    /// Where each tensor begins, and how many bytes it has.
    tensors: Vec<(u64, u64)>,
}

impl Sparse {
    /// A safetensors file with tensors of these lengths, one behind the other.
    ///
    /// The last bytes of every tensor are real ones: a load that stops short loses them, and a
    /// hole, which reads as zeros, would not tell.
    pub fn new(lengths: &[u64], seed: u64) -> Self {
        let mut end = 0;
        let entries: Vec<String> = lengths
            .iter()
            .enumerate()
            .map(|(number, length)| {
                let start = end;
                end += length;
                format!(
                    "\"t{number}\":{{\"dtype\":\"U8\",\"shape\":[{length}],\"data_offsets\":[{start},{end}]}}"
                )
            })
            .collect();
        let json = format!("{{{}}}", entries.join(","));
        let header = [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
        Self::write("model.safetensors", &header, lengths, 1, seed)
    }

    /// The same in a GGUF file, whose tensors begin at multiples of 32 and are of type I8.
    pub fn gguf(lengths: &[u64], seed: u64) -> Self {
        const ALIGNMENT: u64 = 32;
        let mut header = b"GGUF\x03\0\0\0".to_vec();
        header.extend((lengths.len() as u64).to_le_bytes());
        header.extend(0_u64.to_le_bytes()); // metadata
        let mut at = 0_u64;
        for (number, length) in lengths.iter().enumerate() {
            let name = format!("t{number}");
            header.extend((name.len() as u64).to_le_bytes());
            header.extend(name.as_bytes());
            header.extend(1_u32.to_le_bytes()); // dimensions
            header.extend(length.to_le_bytes());
            header.extend(24_u32.to_le_bytes()); // I8
            header.extend(at.to_le_bytes());
            at = (at + length).next_multiple_of(ALIGNMENT);
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
        Self::write("model.gguf", &header, lengths, ALIGNMENT, seed)
    }

    /// A file of that header, and tensors that begin at multiples of `alignment` after it.
    fn write(name: &str, header: &[u8], lengths: &[u64], alignment: u64, seed: u64) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let path = folder.path().join(name);
        let mut file = File::create(&path).expect("a file in it");
        file.write_all(header).expect("the header");
        let mut random = Random::new(seed);
        let mut start = header.len() as u64;
        let mut tensors = Vec::new();
        for length in lengths {
            start = start.next_multiple_of(alignment);
            let mut at = random.below(APART);
            while at + ISLAND as u64 <= *length {
                file.write_all_at(&random.bytes(ISLAND), start + at).expect("real bytes");
                at += ISLAND as u64 + random.below(2 * APART);
            }
            let last = ISLAND.min(*length as usize);
            file.write_all_at(&random.bytes(last), start + length - last as u64).expect("the end");
            tensors.push((start, *length));
            start += length;
        }
        // GGUF fills up behind the last tensor as behind any other.
        file.set_len(start.next_multiple_of(alignment)).expect("a length without bytes");
        Self { _folder: folder, path, tensors }
    }

    /// What to load.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, length)| length).sum()
    }

    /// Reads tensor `number` from the file, a mebibyte at a time: each part with its offset in
    /// the tensor.
    pub fn read(&self, number: usize, mut part: impl FnMut(u64, &[u8])) {
        let file = File::open(&self.path).expect("the file");
        let (start, length) = self.tensors[number];
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < length {
            let count = (length - at).min(buffer.len() as u64) as usize;
            file.read_exact_at(&mut buffer[..count], start + at).expect("its bytes");
            part(at, &buffer[..count]);
            at += count as u64;
        }
    }
}
