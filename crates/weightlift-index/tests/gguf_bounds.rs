//! What a GGUF file may cost, in bytes read and in things kept.

mod common;
#[path = "common/gguf.rs"]
mod writer;

use common::assert_error;
use weightlift_index::gguf::parse;
use weightlift_index::{Bytes, Error, ErrorKind, Limits};
use writer::{Gguf, list, read_lists, tensor, text_value, typed, value};

#[test]
fn the_limits_name_themselves() {
    let gguf = Gguf::new(vec![tensor("a", &[1, 1, 1]), tensor("b", &[1])])
        .with("text", text_value(&[b'x'; 50]))
        .with("list", list(0, 9, &[0; 9]));
    let file = gguf.bytes();
    let least = Limits::default()
        .with_tensors(2)
        .with_rank(3)
        .with_text_bytes(50)
        .with_list_values(11)
        .with_header_bytes(4 + 50 + 4 + 2);
    assert!(read_lists(&file, &least).is_ok());
    let limit = ErrorKind::LimitExceeded;
    let table = [
        (least.with_tensors(1), limit, "tensors", "1"),
        (least.with_rank(2), limit, "rank", "2"),
        (least.with_text_bytes(49), limit, "text_bytes", "49"),
        (least.with_list_values(10), limit, "list_values", "10"),
        (least.with_list_values(1), limit, "list_values", "1"),
        (least.with_header_bytes(59), ErrorKind::HeaderTooLarge, "header_bytes", "59"),
        (least.with_header_bytes(0), ErrorKind::HeaderTooLarge, "header_bytes", "0"),
    ];
    for (limits, kind, option, limit) in table {
        assert_error(read_lists(&file, &limits), kind, &[("option", option), ("limit", limit)]);
    }
    // What is not kept does not count.
    let mut bytes = &file[..];
    assert!(parse(&mut bytes, false, &least.with_list_values(2)).is_ok());
}

/// A file whose end is all zeros, and that counts what is read of it.
struct Sparse {
    start: Vec<u8>,
    length: u64,
    read: u64,
}

impl Bytes for Sparse {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        assert!(offset + buffer.len() as u64 <= self.length, "bytes after the end");
        self.read += buffer.len() as u64;
        for (at, byte) in (offset..).zip(buffer) {
            *byte = self.start.get(at as usize).copied().unwrap_or_default();
        }
        Ok(())
    }
}

// GG-11. The data are not looked at, nor are the values of lists that are not kept.
#[test]
fn only_the_header_is_read() {
    let gguf = Gguf::new(vec![typed("t", 0, &[1 << 30], 0)])
        .with("k", list(12, 1 << 30, &[]))
        .with("j", list(8, 1, &(1u64 << 33).to_le_bytes()));
    let file = gguf.bytes();
    // The lists' contents lie between the parts of the header.
    let (first, second) = (24 + 8 + 1 + 16, 8 + 1 + 16 + 8);
    let mut bytes = Joined {
        parts: vec![
            (0, file[..first].to_vec()),
            ((first as u64) + (8 << 30), file[first..first + second].to_vec()),
            ((first + second) as u64 + (16 << 30), file[first + second..].to_vec()),
        ],
        length: (first + second) as u64 + (64 << 30),
        read: 0,
    };
    let header = parse(&mut bytes, false, &Limits::default()).unwrap();
    assert_eq!(header.entries[0].length, 4 << 30);
    assert!(bytes.read < 100_000, "{}", bytes.read);
}

/// Parts of a file at their places, and zeros between them.
struct Joined {
    parts: Vec<(u64, Vec<u8>)>,
    length: u64,
    read: u64,
}

impl Bytes for Joined {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.read += buffer.len() as u64;
        for (at, byte) in (offset..).zip(buffer) {
            let part = self.parts.iter().rev().find(|(begin, _)| *begin <= at);
            let found = part.and_then(|(begin, bytes)| bytes.get((at - begin) as usize));
            *byte = found.copied().unwrap_or_default();
        }
        Ok(())
    }
}

// A sparse file can say of its zeros that they are as many things as it likes.
#[test]
fn zeros_that_pass_for_a_header_stop_at_a_limit() {
    let zeros = |gguf: Gguf| {
        let start = gguf.bytes();
        let mut bytes = Sparse { start, length: 5 << 30, read: 0 };
        let limits = Limits::default().with_tensors(1000).with_list_values(1000);
        let result = parse(&mut bytes, true, &limits);
        assert!(bytes.read < 1 << 20, "{}", bytes.read);
        result
    };
    let limit = ErrorKind::LimitExceeded;
    let tensors = Gguf { tensor_count: Some(100_000_000), ..Gguf::default() };
    assert_error(zeros(tensors), limit, &[("option", "tensors")]);
    let lists = Gguf::default().with("k", list(8, 600_000_000, &[]));
    assert_error(zeros(lists), limit, &[("option", "list_values")]);
    let values = Gguf { value_count: Some(100_000_000), ..Gguf::default() };
    assert_error(zeros(values), ErrorKind::DuplicateMetadata, &[("key", "")]);
    let long = Gguf::default().with("k", value(8, &(1u64 << 32).to_le_bytes()));
    assert_error(zeros(long), limit, &[("option", "text_bytes")]);
}
