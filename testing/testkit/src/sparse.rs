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

/// A file of U8 tensors `t0`, `t1`, ..., mostly holes. Removed when dropped.
#[derive(Debug)]
pub struct Sparse {
    _folder: TempDir,
    path: PathBuf,
    data: u64,
    lengths: Vec<u64>,
}

impl Sparse {
    /// Tensors of these lengths, one behind the other.
    ///
    /// The last bytes of every tensor are real ones: a load that stops short loses them, and a
    /// hole, which reads as zeros, would not tell.
    pub fn new(lengths: &[u64], seed: u64) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let path = folder.path().join("model.safetensors");
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
        let header = format!("{{{}}}", entries.join(","));
        let mut file = File::create(&path).expect("a file in it");
        file.write_all(&(header.len() as u64).to_le_bytes()).expect("the header's length");
        file.write_all(header.as_bytes()).expect("the header");
        let data = 8 + header.len() as u64;
        file.set_len(data + end).expect("a length without bytes");
        let mut random = Random::new(seed);
        let mut start = data;
        for length in lengths {
            let mut at = random.below(APART);
            while at + ISLAND as u64 <= *length {
                file.write_all_at(&random.bytes(ISLAND), start + at).expect("real bytes");
                at += ISLAND as u64 + random.below(2 * APART);
            }
            let last = ISLAND.min(*length as usize);
            file.write_all_at(&random.bytes(last), start + length - last as u64).expect("the end");
            start += length;
        }
        Self { _folder: folder, path, data, lengths: lengths.to_vec() }
    }

    /// What to load.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.lengths.iter().sum()
    }

    /// Reads tensor `number` from the file, a mebibyte at a time: each part with its offset in
    /// the tensor.
    pub fn read(&self, number: usize, mut part: impl FnMut(u64, &[u8])) {
        let file = File::open(&self.path).expect("the file");
        let start = self.data + self.lengths[..number].iter().sum::<u64>();
        let length = self.lengths[number];
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
