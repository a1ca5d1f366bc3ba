//! What the tests share: making files and reading them the way a loader does.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod openvino;

use weightlift_index::safetensors::{Entry, Header, header_span, parse_header};
use weightlift_index::{Dtype, Error, ErrorKind, Limits};

/// A file: the length of the header, the header, and so many bytes of data.
pub fn file(header: impl AsRef<[u8]>, data: usize) -> Vec<u8> {
    let header = header.as_ref();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + data, 0);
    file
}

/// Reads the header of a file as a loader does.
pub fn read(file: &[u8], limits: &Limits) -> Result<Header, Error> {
    let first = &file[..file.len().min(4096)];
    let span = header_span(first, file.len() as u64, limits)?;
    let json = &file[span.start as usize..span.end as usize];
    parse_header(json, span.end, file.len() as u64, limits)
}

/// Reads a file made of a header and so many bytes of data.
pub fn parse(header: impl AsRef<[u8]>, data: usize) -> Result<Header, Error> {
    read(&file(header, data), &Limits::default())
}

/// A tensor's entry in a header.
pub fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

/// A header of entries.
pub fn header(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

/// A header of U8 tensors, by names and ranges.
pub fn ranges(tensors: Ranges<'_>) -> String {
    let entry = |&(name, begin, end): &(&str, u64, u64)| {
        entry(name, "U8", &format!("[{}]", end.saturating_sub(begin)), begin, end)
    };
    header(&tensors.iter().map(entry).collect::<Vec<_>>())
}

/// A parsed header of U8 tensors `[4]`, one after the other.
pub fn shard(names: &[&str]) -> Header {
    let at = |(i, name): (u64, &&str)| Entry {
        name: (*name).into(),
        dtype: Dtype::from_name("U8"),
        shape: vec![4],
        begin: 8 + 4 * i,
        end: 12 + 4 * i,
    };
    Header { entries: (0..).zip(names).map(at).collect(), ..Header::default() }
}

/// Tensors by name, begin and end.
pub type Ranges<'a> = &'a [(&'a str, u64, u64)];

/// Named values of an error.
pub type Values<'a> = &'a [(&'a str, &'a str)];

/// Asserts the kind and named values of an error.
#[track_caller]
pub fn assert_error<T: std::fmt::Debug>(
    result: Result<T, Error>,
    kind: ErrorKind,
    values: Values<'_>,
) {
    let error = result.expect_err("an error was expected");
    assert_eq!(error.kind(), kind, "{error}");
    for (key, value) in values {
        assert_eq!(error.get(key), Some(*value), "`{key}` of: {error}");
    }
}
