//! Telling formats apart: by their first bytes, and where those do not tell, by name.

use crate::{Error, ErrorKind, Format};

/// What a file is, as far as its first bytes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Safetensors: the length of a JSON header, then the header.
    Safetensors,
    /// The small text that Git LFS leaves in the place of a file.
    LfsPointer,
    /// A web page, mostly an error or a login page saved under the file's name.
    Html,
    /// XML, such as an OpenVINO model.
    Xml,
    /// JSON, such as a configuration or an index file.
    Json,
    /// Other text.
    Text,
    /// A ZIP archive, such as a checkpoint of PyTorch 1.6 or later, or NumPy's `.npz`.
    Zip,
    /// A gzip stream.
    Gzip,
    /// A Python pickle, such as a checkpoint of an older PyTorch.
    Pickle,
    /// GGUF.
    Gguf,
    /// ONNX, which has no magic number: a message whose fields are those of a model.
    Onnx,
    /// HDF5, such as a Keras checkpoint.
    Hdf5,
    /// A single array in NumPy's `.npy`.
    Numpy,
    /// None of these, or too few bytes to say.
    Unknown,
}

impl Kind {
    /// What a user would call it, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Safetensors => "a safetensors file",
            Kind::LfsPointer => "a Git LFS pointer",
            Kind::Html => "a web page",
            Kind::Xml => "an XML file",
            Kind::Json => "a JSON file",
            Kind::Text => "a text file",
            Kind::Zip => "a ZIP archive",
            Kind::Gzip => "a gzip stream",
            Kind::Pickle => "a Python pickle",
            Kind::Gguf => "a GGUF file",
            Kind::Onnx => "an ONNX model",
            Kind::Hdf5 => "an HDF5 file",
            Kind::Numpy => "a NumPy array",
            Kind::Unknown => "a file of unknown format",
        }
    }

    /// What to do with such a file when another kind was wanted, if anything is known.
    pub(crate) fn hint(self) -> Option<&'static str> {
        match self {
            Kind::LfsPointer => Some("fetch the file itself with `git lfs pull`"),
            Kind::Html | Kind::Xml | Kind::Json | Kind::Text => Some(LOOK),
            Kind::Safetensors | Kind::Zip | Kind::Pickle | Kind::Gguf | Kind::Onnx => {
                Some("rename the file, or say what it is with --format (OpenOptions::format)")
            }
            Kind::Gzip => Some("unpack the file"),
            Kind::Hdf5 | Kind::Numpy => Some("convert it to safetensors with what wrote it"),
            Kind::Unknown => None,
        }
    }
}

/// For whatever may have been meant to be read by people.
pub(crate) const LOOK: &str =
    "look into the file: a download may have stored a message in its place";

/// The error of a file that is of another kind than the one that was wanted.
pub(crate) fn other_kind(kind: ErrorKind, message: &str, found: Kind) -> Error {
    let error = Error::new(kind, message).with("found", found.name());
    match found.hint() {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// The format of a file, by its first bytes, of which 4096 are enough, and where those do not
/// tell, by its name.
///
/// A name that ends in `.safetensors` is a promise: whatever the content, the answer is
/// safetensors, whose parser says what else it is.
///
/// # Errors
///
/// [`ErrorKind::UnknownFormat`], with `found`, for anything that is no model file.
pub fn format_of(first_bytes: &[u8], name: &str) -> Result<Format, Error> {
    let named = named(name);
    if named == Some(Format::Safetensors) {
        return Ok(Format::Safetensors);
    }
    let kind = sniff(first_bytes);
    match (kind, named) {
        (Kind::Safetensors, _) => Ok(Format::Safetensors),
        (Kind::Gguf, _) => Ok(Format::Gguf),
        (Kind::Onnx, _) => Ok(Format::Onnx),
        (Kind::Xml, _) => Ok(Format::OpenVino),
        // What else an archive or a pickle is, its parser says.
        (Kind::Zip | Kind::Pickle, _) => Ok(Format::PyTorch),
        (Kind::Unknown | Kind::Text | Kind::Json, Some(format)) if !first_bytes.is_empty() => {
            Ok(format)
        }
        _ => Err(no_model(kind, first_bytes.is_empty())),
    }
}

/// Refuses what no parser could say anything sensible about, where a format was asked for.
///
/// # Errors
///
/// [`ErrorKind::UnknownFormat`], with `found`.
pub fn refuse_stand_in(first_bytes: &[u8]) -> Result<(), Error> {
    match sniff(first_bytes) {
        kind @ (Kind::LfsPointer | Kind::Html) => Err(no_model(kind, false)),
        kind if first_bytes.is_empty() => Err(no_model(kind, true)),
        _ => Ok(()),
    }
}

fn no_model(kind: Kind, empty: bool) -> Error {
    let found = if empty { "an empty file" } else { kind.name() };
    let error = Error::new(ErrorKind::UnknownFormat, "this is no model file").with("found", found);
    let raw = "`--format raw` loads any file as one tensor of bytes";
    let hint = if empty { "fetch the file again" } else { kind.hint().unwrap_or(raw) };
    error.hint(hint)
}

/// What the name of a file promises.
fn named(name: &str) -> Option<Format> {
    let suffix = name.rsplit_once('.')?.1.to_ascii_lowercase();
    match suffix.as_str() {
        "safetensors" => Some(Format::Safetensors),
        "gguf" => Some(Format::Gguf),
        "onnx" => Some(Format::Onnx),
        "xml" => Some(Format::OpenVino),
        "pt" | "pth" | "ckpt" => Some(Format::PyTorch),
        _ => None,
    }
}

/// Says what a file is by its first bytes, of which 64 are enough for all but ONNX.
///
/// Safetensors has no magic number. It is recognised by a header length below 2^40 that is
/// followed by `{`, and that comes first: a length of 640, for example, begins as a pickle does.
/// GGUF alone comes before it: a file of 123 tensors, which is `{`, would pass for a header of 13 GB.
pub fn sniff(first_bytes: &[u8]) -> Kind {
    if let [b'G', b'G', b'U', b'F', 1..=255, ..] = first_bytes {
        return Kind::Gguf;
    }
    if let [_, _, _, _, _, 0, 0, 0, b'{', ..] = first_bytes {
        return Kind::Safetensors;
    }
    const MAGIC: [(&[u8], Kind); 6] = [
        (b"GGUF", Kind::Gguf),
        (b"\x89HDF\r\n\x1a\n", Kind::Hdf5),
        (b"\x93NUMPY", Kind::Numpy),
        (b"\x1f\x8b\x08", Kind::Gzip),
        (b"PK\x03\x04", Kind::Zip),
        (b"PK\x05\x06", Kind::Zip),
    ];
    if let Some((_, kind)) = MAGIC.iter().find(|(magic, _)| first_bytes.starts_with(magic)) {
        return *kind;
    }
    // Protocols 2 to 5; 0 and 1 have no mark, and nothing has written them for long.
    if let [0x80, 2..=5, ..] = first_bytes {
        return Kind::Pickle;
    }
    if crate::onnx::recognises(first_bytes) {
        return Kind::Onnx;
    }
    sniff_text(first_bytes)
}

fn sniff_text(first_bytes: &[u8]) -> Kind {
    // So that the answer is the same for whoever has more.
    let first_bytes = &first_bytes[..first_bytes.len().min(64)];
    let bytes = first_bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first_bytes);
    // As the length of a safetensors header, eight printable characters are far beyond any file,
    // so fewer than eight would prove nothing.
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    if bytes.len() < 8 || !bytes.iter().all(is_text) || !bytes[..8].is_ascii() {
        return Kind::Unknown;
    }
    let text = bytes.trim_ascii_start();
    let starts = |prefix: &[u8]| {
        text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if starts(b"version https://git-lfs") {
        Kind::LfsPointer
    } else if starts(b"<!doctype html") || starts(b"<html") || starts(b"<head") || starts(b"<body")
    {
        Kind::Html
    } else if starts(b"<") {
        Kind::Xml
    } else if starts(b"{") || starts(b"[") {
        Kind::Json
    } else {
        Kind::Text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_each_kind_by_its_first_bytes() {
        let table: &[(&[u8], Kind)] = &[
            (b"\x02\0\0\0\0\0\0\0{}", Kind::Safetensors),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", Kind::LfsPointer),
            (b"<!DOCTYPE html><html><head>", Kind::Html),
            (b"\xef\xbb\xbf\n <HTML lang=\"en\">", Kind::Html),
            (b"<?xml version=\"1.0\"?><net>", Kind::Xml),
            (b"{\"weight_map\": {\"a\": 1}}", Kind::Json),
            (b"Access denied", Kind::Text),
            (b"PK\x03\x04\x14\0\0\0", Kind::Zip),
            (b"\x1f\x8b\x08\0\0\0\0\0", Kind::Gzip),
            (b"\x80\x02}q\0", Kind::Pickle),
            (b"GGUF\x03\0\0\0", Kind::Gguf),
            (b"GGUF\x03\0\0\0{\0\0\0\0\0\0\0", Kind::Gguf),
            (b"GGUF\0\0\0\x03", Kind::Gguf),
            (b"\x89HDF\r\n\x1a\n", Kind::Hdf5),
            (b"\x93NUMPY\x01\0", Kind::Numpy),
            (b"", Kind::Unknown),
            (b"short", Kind::Unknown),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff{", Kind::Unknown),
            (b"\x02\0\0\0\0\0\0\0 {}", Kind::Unknown),
        ];
        for (bytes, kind) in table {
            assert_eq!(sniff(bytes), *kind, "{:?}", bytes.escape_ascii().to_string());
        }
    }

    // A byte order mark was not counted among the 64 bytes, so a byte behind them changed the answer
    // of whoever had read more than was asked for.
    #[test]
    fn what_comes_after_64_bytes_changes_nothing() {
        let mut page = b"\xef\xbb\xbf<html>".to_vec();
        page.resize(64, b' ');
        page.extend_from_slice(b"\0\0\0\0");
        assert_eq!((sniff(&page[..64]), sniff(&page)), (Kind::Html, Kind::Html));
        let late = [&[b' '; 64][..], b"<html>"].concat();
        assert_eq!((sniff(&late[..64]), sniff(&late)), (Kind::Text, Kind::Text));
    }

    // Header lengths whose low bytes are the magic of another format.
    #[test]
    fn a_header_length_that_looks_like_a_magic_number_is_safetensors() {
        for low in [b"\x80\x02\0\0", b"PK\x03\x04", b"GGUF", b"\x1f\x8b\x08\0"] {
            let mut bytes = low.to_vec();
            bytes.extend_from_slice(b"\0\0\0\0{\"");
            assert_eq!(sniff(&bytes), Kind::Safetensors, "{low:?}");
        }
    }
}
