//! Writes checkpoints as `torch.save` does, and as nobody should.

#![allow(dead_code, reason = "each test uses a part")]

/// An archive to be written; each field is a way to write it differently.
#[derive(Clone)]
pub struct Zip {
    pub records: Vec<Record>,
    /// ZIP64 fields and records everywhere.
    pub wide: bool,
    pub comment: Vec<u8>,
    /// Where data begin is a multiple of this.
    pub alignment: usize,
}

/// A record of an archive.
#[derive(Clone)]
pub struct Record {
    pub name: String,
    /// The name in the local header, if it is another.
    pub local_name: Option<String>,
    pub data: Vec<u8>,
    pub method: u16,
    pub flags: u16,
    /// As the directory has it; 0 as torch.save writes it when told to.
    pub crc: u32,
    /// Sizes as the directory has them, if they are not those of the data.
    pub sizes: Option<(u64, u64)>,
    /// Added to where the directory says the record begins.
    pub shift: i64,
}

impl Record {
    pub fn new(name: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            local_name: None,
            data: data.into(),
            method: 0,
            flags: 0x808,
            crc: 0,
            sizes: None,
            shift: 0,
        }
    }
}

impl Zip {
    pub fn new(records: Vec<Record>) -> Self {
        Self { records, wide: false, comment: Vec::new(), alignment: 64 }
    }

    /// The records of a checkpoint: the pickle, and storages by key.
    pub fn checkpoint(pickle: &Pickle, storages: &[(&str, &[u8])]) -> Self {
        let mut records = vec![Record::new("model/data.pkl", pickle.bytes())];
        records.push(Record::new("model/byteorder", "little"));
        for (key, data) in storages {
            records.push(Record::new(format!("model/data/{key}"), *data));
        }
        records.push(Record::new("model/version", "3\n"));
        Self::new(records)
    }

    pub fn record(&mut self, name: &str) -> &mut Record {
        self.records.iter_mut().find(|record| record.name == name).unwrap()
    }

    pub fn without(mut self, name: &str) -> Self {
        self.records.retain(|record| record.name != name);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = Vec::new();
        let mut directory = Vec::new();
        for record in &self.records {
            let header = file.len() as u64;
            let name = record.local_name.as_ref().unwrap_or(&record.name);
            let unpadded = file.len() + 30 + name.len() + 4;
            let padding = unpadded.next_multiple_of(self.alignment) - unpadded;
            file.extend(b"PK\x03\x04\0\0");
            file.extend(record.flags.to_le_bytes());
            file.extend(record.method.to_le_bytes());
            // Time, date, checksum, sizes: in the descriptor after the data.
            file.extend([0; 16]);
            file.extend((name.len() as u16).to_le_bytes());
            file.extend((4 + padding as u16).to_le_bytes());
            file.extend(name.as_bytes());
            file.extend(b"FB");
            file.extend((padding as u16).to_le_bytes());
            file.extend(vec![b'Z'; padding]);
            file.extend(&record.data);
            file.extend(b"PK\x07\x08");
            file.extend([0; 12]);

            let length = record.data.len() as u64;
            let (size, compressed) = record.sizes.unwrap_or((length, length));
            let header = header.wrapping_add_signed(record.shift);
            let wide = self.wide || [size, compressed, header].iter().any(|n| *n >= 0xffff_ffff);
            let short = |number: u64| if wide { u32::MAX } else { number as u32 };
            directory.extend(b"PK\x01\x02\0\0\0\0");
            directory.extend(record.flags.to_le_bytes());
            directory.extend(record.method.to_le_bytes());
            directory.extend([0; 4]);
            directory.extend(record.crc.to_le_bytes());
            directory.extend(short(compressed).to_le_bytes());
            directory.extend(short(size).to_le_bytes());
            directory.extend((record.name.len() as u16).to_le_bytes());
            directory.extend((if wide { 28_u16 } else { 0 }).to_le_bytes());
            directory.extend([0; 10]);
            directory.extend(short(header).to_le_bytes());
            directory.extend(record.name.as_bytes());
            if wide {
                directory.extend(b"\x01\0\x18\0");
                for number in [size, compressed, header] {
                    directory.extend(number.to_le_bytes());
                }
            }
        }
        let (offset, count) = (file.len() as u64, self.records.len());
        file.extend(&directory);
        if self.wide {
            let at = file.len() as u64;
            file.extend(b"PK\x06\x06");
            file.extend(44_u64.to_le_bytes());
            file.extend([45, 0, 45, 0]);
            file.extend([0; 8]);
            for number in [count as u64, count as u64, directory.len() as u64, offset] {
                file.extend(number.to_le_bytes());
            }
            file.extend(b"PK\x06\x07\0\0\0\0");
            file.extend(at.to_le_bytes());
            file.extend(1_u32.to_le_bytes());
        }
        file.extend(b"PK\x05\x06\0\0\0\0");
        let count = if self.wide { u16::MAX } else { count as u16 };
        file.extend(count.to_le_bytes());
        file.extend(count.to_le_bytes());
        for number in [directory.len() as u64, offset] {
            file.extend(if self.wide { u32::MAX } else { number as u32 }.to_le_bytes());
        }
        file.extend((self.comment.len() as u16).to_le_bytes());
        file.extend(&self.comment);
        file
    }
}

/// A pickle to be written, opcode by opcode.
#[derive(Clone)]
pub struct Pickle {
    protocol: u8,
    body: Vec<u8>,
}

impl Pickle {
    pub fn new(protocol: u8) -> Self {
        Self { protocol, body: Vec::new() }
    }

    /// A state dict of tensors.
    pub fn state_dict(tensors: &[(&str, Tensor<'_>)]) -> Self {
        let mut pickle = Self::new(2).op(b"}(");
        for (name, tensor) in tensors {
            pickle = pickle.text(name).tensor(tensor);
        }
        pickle.op(b"u")
    }

    pub fn bytes(&self) -> Vec<u8> {
        [&[0x80, self.protocol], &self.body[..], b"."].concat()
    }

    pub fn op(mut self, opcodes: &[u8]) -> Self {
        self.body.extend(opcodes);
        self
    }

    pub fn text(self, text: &str) -> Self {
        let length = (text.len() as u32).to_le_bytes();
        self.op(b"X").op(&length).op(text.as_bytes())
    }

    pub fn int(self, number: i64) -> Self {
        self.op(b"\x8a\x08").op(&number.to_le_bytes())
    }

    pub fn global(self, module: &str, name: &str) -> Self {
        if self.protocol >= 4 {
            return self.text(module).text(name).op(b"\x93");
        }
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    pub fn ints(self, numbers: &[i64]) -> Self {
        numbers.iter().fold(self.op(b"("), |pickle, number| pickle.int(*number)).op(b"t")
    }

    pub fn storage(self, class: &str, key: &str, count: i64) -> Self {
        let module = if class == "UntypedStorage" { "torch.storage" } else { "torch" };
        self.op(b"(")
            .text("storage")
            .global(module, class)
            .text(key)
            .text("cpu")
            .int(count)
            .op(b"tQ")
    }

    pub fn tensor(self, tensor: &Tensor<'_>) -> Self {
        let function =
            if tensor.dtype.is_some() { "_rebuild_tensor_v3" } else { "_rebuild_tensor_v2" };
        let mut pickle = self
            .global("torch._utils", function)
            .op(b"(")
            .storage(tensor.class, tensor.key, tensor.count)
            .int(tensor.offset)
            .ints(tensor.shape)
            .ints(tensor.strides)
            .op(b"\x89")
            .global("collections", "OrderedDict")
            .op(b")R");
        if let Some(dtype) = tensor.dtype {
            pickle = pickle.global("torch", dtype);
        }
        pickle.op(b"tR")
    }
}

/// A tensor as a pickle describes it.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub class: &'a str,
    pub dtype: Option<&'a str>,
    pub key: &'a str,
    pub count: i64,
    pub offset: i64,
    pub shape: &'a [i64],
    pub strides: &'a [i64],
}

/// Six floats, two by three, in storage 0.
pub const FLOATS: Tensor<'static> = Tensor {
    class: "FloatStorage",
    dtype: None,
    key: "0",
    count: 6,
    offset: 0,
    shape: &[2, 3],
    strides: &[3, 1],
};
