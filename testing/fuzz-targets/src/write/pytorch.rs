//! PyTorch checkpoints: a pickle and storages in a ZIP archive, as `torch.save` writes them.

use super::{Dtype, Sparse, Tensor};

/// A checkpoint of these tensors, each with a storage of its own.
pub fn file(tensors: &[Tensor]) -> Sparse {
    archive(&pickle(tensors), tensors)
}

/// A checkpoint with this pickle and the storages of these tensors, named by their positions.
pub fn archive(pickle: &[u8], tensors: &[Tensor]) -> Sparse {
    let mut zip = Zip::default();
    zip.add("m/data.pkl", pickle);
    zip.add("m/byteorder", b"little");
    for (number, tensor) in tensors.iter().enumerate() {
        zip.add_zeros(&format!("m/data/{number}"), tensor.bytes());
    }
    zip.add("m/version", b"3\n");
    zip.finish()
}

/// Any archive, of these records.
pub fn zip(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = Zip::default();
    records.iter().for_each(|(name, bytes)| zip.add(name, bytes));
    zip.finish().to_vec()
}

/// The pickle of a dictionary of these tensors.
pub fn pickle(tensors: &[Tensor]) -> Vec<u8> {
    // Memo: 0 the function that makes a tensor, 1 to 4 the types of storages, 5 the ordered
    // dictionary, 6 "storage", 7 "cpu".
    let kinds = [Dtype::F32, Dtype::F16, Dtype::I8, Dtype::I32];
    let names = ["FloatStorage", "HalfStorage", "CharStorage", "IntStorage"];
    let mut bytes = b"\x80\x02".to_vec();
    let mut memo = |value: &[u8], number: u8| {
        bytes.extend_from_slice(value);
        bytes.extend([b'q', number, b'0']);
    };
    memo(b"ctorch._utils\n_rebuild_tensor_v2\n", 0);
    for (number, name) in (1..).zip(names) {
        memo(format!("ctorch\n{name}\n").as_bytes(), number);
    }
    memo(b"ccollections\nOrderedDict\n", 5);
    memo(&text("storage"), 6);
    memo(&text("cpu"), 7);
    bytes.extend_from_slice(b"h\x05)R(");
    for (number, tensor) in tensors.iter().enumerate() {
        bytes.extend(text(&tensor.name));
        bytes.extend_from_slice(b"h\0((h\x06h");
        bytes.push(1 + kinds.iter().position(|kind| *kind == tensor.dtype).unwrap_or(0) as u8);
        bytes.extend(text(&number.to_string()));
        bytes.extend_from_slice(b"h\x07");
        bytes.extend(integer(tensor.elements()));
        bytes.extend_from_slice(b"tQK\0(");
        let mut strides = vec![1; tensor.shape.len()];
        for at in (1..strides.len()).rev() {
            strides[at - 1] = strides[at] * tensor.shape[at].max(1);
        }
        tensor.shape.iter().for_each(|dim| bytes.extend(integer(*dim)));
        bytes.extend_from_slice(b"t(");
        strides.iter().for_each(|stride| bytes.extend(integer(*stride)));
        bytes.extend_from_slice(b"t\x89h\x05)RtR");
    }
    bytes.extend_from_slice(b"u.");
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn integer(value: u64) -> Vec<u8> {
    match i32::try_from(value) {
        Ok(value) => [b"J", &value.to_le_bytes()[..]].concat(),
        // As many bytes as follow, little-endian, with a sign.
        Err(_) => [b"\x8a\x09", &value.to_le_bytes()[..], b"\0"].concat(),
    }
}

/// An archive of entries that are stored as they are, their bytes at multiples of 64.
#[derive(Default)]
struct Zip {
    file: Sparse,
    directory: Vec<u8>,
    count: u64,
}

impl Zip {
    fn add(&mut self, name: &str, bytes: &[u8]) {
        self.head(name, bytes.len() as u64, crc(bytes));
        self.file.write(bytes);
    }

    /// The checksum is that of no bytes: to find that of zeros by the gibibyte takes seconds, and
    /// nobody compares it.
    fn add_zeros(&mut self, name: &str, bytes: u64) {
        self.head(name, bytes, 0);
        self.file.skip(bytes);
    }

    fn head(&mut self, name: &str, bytes: u64, crc: u32) {
        let at = self.file.length;
        let mut large = Vec::new();
        let mut short = |value: u64| match u32::try_from(value) {
            Ok(value) if value < u32::MAX => value,
            _ => {
                large.extend_from_slice(&value.to_le_bytes());
                u32::MAX
            }
        };
        let (packed, size, offset) = (short(bytes), short(bytes), short(at));
        // Locally both sizes, without the offset.
        let local: &[u8] = if size == u32::MAX { &large[..16] } else { &[] };
        let extra = |body: &[u8]| match body.len() {
            0 => Vec::new(),
            length => [&[1, 0], &(length as u16).to_le_bytes()[..], body].concat(),
        };
        let mut local = extra(local);
        let end = at + 30 + (name.len() + local.len()) as u64 + 4;
        let padding = (end.next_multiple_of(64) - end) as u16;
        local.extend_from_slice(b"FB");
        local.extend_from_slice(&padding.to_le_bytes());
        local.resize(local.len() + usize::from(padding), b'Z');
        // Version, flags, method, time and date.
        let same = [&[45, 0, 0, 8, 0, 0, 0, 0, 0, 0][..], &crc.to_le_bytes()].concat();
        let sizes = [packed.to_le_bytes(), size.to_le_bytes()].concat();
        let lengths = |extra: &[u8]| {
            [(name.len() as u16).to_le_bytes(), (extra.len() as u16).to_le_bytes()].concat()
        };
        for part in [b"PK\x03\x04", &same[..], &sizes, &lengths(&local), name.as_bytes(), &local] {
            self.file.write(part);
        }
        let central = extra(&large);
        let directory = &mut self.directory;
        for part in [b"PK\x01\x02\x2d\0", &same[..], &sizes, &lengths(&central), &[0; 10]] {
            directory.extend_from_slice(part);
        }
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
        directory.extend_from_slice(&central);
        self.count += 1;
    }

    fn finish(mut self) -> Sparse {
        let (start, size) = (self.file.length, self.directory.len() as u64);
        self.file.write(&self.directory);
        let large = self.count >= 0xffff || start >= 0xffff_ffff;
        if large {
            let at = self.file.length;
            let mut record = b"PK\x06\x06".to_vec();
            record.extend_from_slice(&44u64.to_le_bytes());
            record.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            for value in [self.count, self.count, size, start] {
                record.extend_from_slice(&value.to_le_bytes());
            }
            record.extend_from_slice(b"PK\x06\x07\0\0\0\0");
            record.extend_from_slice(&at.to_le_bytes());
            record.extend_from_slice(&1u32.to_le_bytes());
            self.file.write(&record);
        }
        let count = if large { u16::MAX } else { self.count as u16 }.to_le_bytes();
        let [size, start] =
            [size, start].map(|value| if large { u32::MAX } else { value as u32 }.to_le_bytes());
        for part in [b"PK\x05\x06\0\0\0\0", &count[..], &count, &size, &start, b"\0\0"] {
            self.file.write(part);
        }
        self.file
    }
}

/// CRC-32 as ZIP has it.
fn crc(bytes: &[u8]) -> u32 {
    static TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut value, mut bit) = (byte as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}
