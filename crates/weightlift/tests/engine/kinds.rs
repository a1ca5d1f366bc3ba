//! What a file is called that is not the model it was taken for: by its content, by its name, and
//! where a format is asked for.

use std::fs;
use std::path::Path;

use fuzz_targets::write::{self, Dtype, Tensor};
use weightlift::index::Format;
use weightlift::{Error, Model, OpenOptions};

/// Files that are no models, by what they are.
fn strangers() -> Vec<(&'static str, Vec<u8>)> {
    let zip = |records: &[(&str, &[u8])]| write::pytorch::zip(records);
    let legacy = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
    let script: &[(&str, &[u8])] = &[
        ("m/data.pkl", b"\x80\x02}."),
        ("m/code/__torch__.py", b"class M(Module):\n"),
        ("m/constants.pkl", b"\x80\x02)."),
        ("m/version", b"3\n"),
    ];
    let docx: &[(&str, &[u8])] =
        &[("[Content_Types].xml", b"<Types/>"), ("word/document.xml", b"<w:document/>")];
    let mut tar = vec![0; 1024];
    tar[..6].copy_from_slice(b"sys_in");
    tar[257..262].copy_from_slice(b"ustar");
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:\
               4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    vec![
        ("lfs", lfs.into()),
        ("html", b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>".into()),
        ("json", br#"{"error":"Repository not found"}"#.into()),
        ("xml", b"<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>".into()),
        ("text", b"Invalid username or password.".into()),
        ("docx", zip(docx)),
        ("npz", zip(&[("a.npy", b"\x93NUMPY\x01\0")])),
        ("zip-empty", zip(&[])),
        ("legacy", legacy.into()),
        ("pickle", b"\x80\x04}\x94.".into()),
        ("script", zip(script)),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03 and so on, long enough".into()),
        ("hdf5", b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0".into()),
        ("npy", b"\x93NUMPY\x01\0v\0{'descr': '<f4'}".into()),
        ("tar", tar),
        ("zeros", vec![0; 100]),
        ("noise", (0..100u32).map(|i| (i * i * 37 % 251 + 3) as u8).collect()),
        ("empty", Vec::new()),
    ]
}

const NAMES: [&str; 8] = [
    "model.safetensors",
    "model.gguf",
    "model.onnx",
    "model.xml",
    "model.pt",
    "model.bin",
    "model",
    "model.dat",
];

fn tensors() -> Vec<Tensor> {
    vec![
        Tensor::new("layers.0.weight", Dtype::F16, &[40, 30]),
        Tensor::new("layers.0.bias", Dtype::F32, &[40]),
    ]
}

/// A good model in each format, and the name that it usually has.
fn models() -> Vec<(Format, &'static str, Vec<u8>)> {
    let tensors = tensors();
    vec![
        (Format::Safetensors, "model.safetensors", write::safetensors::file(&tensors).to_vec()),
        (Format::Gguf, "model.gguf", write::gguf::file(&tensors, &[]).to_vec()),
        (Format::Onnx, "model.onnx", write::onnx::file(&tensors).to_vec()),
        (Format::OpenVino, "model.xml", write::openvino::file(&tensors).0.into_bytes()),
        (Format::PyTorch, "model.pt", write::pytorch::file(&tensors).to_vec()),
    ]
}

fn open(folder: &Path, name: &str, bytes: &[u8], format: Option<Format>) -> Result<Model, Error> {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    let mut options = OpenOptions::default();
    options.format = format;
    let result = Model::open(&path, &options);
    fs::remove_file(&path).unwrap();
    result
}

/// What is to be said of a stranger: the kind of error, and what the file is, if it is said.
struct Said {
    /// Under a name that ends in `.safetensors`, or where safetensors is asked for.
    safetensors: (&'static str, &'static str),
    /// Under any other name.
    named: (&'static str, &'static str),
    /// Where PyTorch is asked for.
    pytorch: (&'static str, &'static str),
    /// Where another format is asked for.
    asked: (&'static str, &'static str),
}

fn said(what: &str) -> Said {
    const NOT: &str = "NotSafetensors";
    const UNKNOWN: &str = "UnknownFormat";
    let all = |found| Said {
        safetensors: (NOT, found),
        named: (UNKNOWN, found),
        pytorch: (UNKNOWN, found),
        asked: (UNKNOWN, found),
    };
    let archive =
        |kind, found| Said { named: (kind, found), pytorch: (kind, found), ..all("a ZIP archive") };
    let unknown = |safetensors| Said { safetensors, ..all("a file of unknown format") };
    let old = "a checkpoint of PyTorch before version 1.6";
    match what {
        "lfs" => all("a Git LFS pointer"),
        "html" => all("a web page"),
        "json" => all("a JSON file"),
        "xml" => {
            Said { named: (UNKNOWN, "XML with the root element <Error>"), ..all("an XML file") }
        }
        "text" => all("a text file"),
        "docx" => archive(UNKNOWN, "a ZIP archive"),
        "npz" => archive(UNKNOWN, "NumPy arrays (.npz)"),
        "zip-empty" => archive(UNKNOWN, "an empty ZIP archive"),
        "script" => archive("Unsupported", "a TorchScript archive"),
        "pickle" => all("a Python pickle"),
        "legacy" => Said {
            named: ("Unsupported", old),
            pytorch: ("Unsupported", old),
            ..all("a Python pickle")
        },
        "gzip" => all("a gzip stream"),
        "hdf5" => all("an HDF5 file"),
        "npy" => all("a NumPy array"),
        "tar" => Said {
            pytorch: ("Unsupported", "a tar archive, perhaps a checkpoint of PyTorch 0.1"),
            ..unknown(("HeaderTooLarge", ""))
        },
        "zeros" => unknown(("InvalidHeader", "")),
        "noise" => unknown(("HeaderTooLarge", "")),
        "empty" => Said { safetensors: ("Truncated", ""), ..all("an empty file") },
        other => panic!("{other} is not in the table"),
    }
}

#[test]
fn a_stranger_is_called_what_it_is_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    for (what, bytes) in strangers() {
        let said = said(what);
        for name in NAMES {
            let error = open(folder.path(), name, &bytes, None).unwrap_err();
            let (mut kind, mut found) = match name {
                "model.safetensors" => said.safetensors,
                _ => said.named,
            };
            // A name that promises a format is believed where the content does not contradict it,
            // and the format's parser may know more than the first bytes tell.
            match (what, name) {
                ("tar", "model.pt") => (kind, found) = said.pytorch,
                ("tar" | "zeros" | "noise", "model.onnx") => (kind, found) = ("InvalidHeader", ""),
                _ => {}
            }
            check(&error, what, name, kind, found);
        }
        for format in Format::ALL {
            let result = open(folder.path(), "m", &bytes, Some(format));
            let (mut kind, mut found) = match format {
                // Any file is one tensor.
                Format::Raw => {
                    assert_eq!(result.unwrap().index().bytes(), bytes.len() as u64, "{what}");
                    continue;
                }
                Format::Safetensors => said.safetensors,
                Format::PyTorch => said.pytorch,
                Format::OpenVino if what == "xml" => said.named,
                _ => said.asked,
            };
            if format == Format::Onnx && matches!(what, "tar" | "zeros" | "noise") {
                (kind, found) = ("InvalidHeader", "");
            }
            check(&result.unwrap_err(), what, format.name(), kind, found);
        }
    }
}

fn check(error: &Error, what: &str, how: &str, kind: &str, found: &str) {
    let seen = (error.kind().name(), error.value("found").unwrap_or_default());
    assert_eq!(seen, (kind, found), "{what} as {how}: {error:?}");
    assert!(error.value("file").is_some(), "{what} as {how}: {error:?}");
    // Of what nothing is known there is nothing to advise.
    let unknown =
        found.contains("unknown format") || found.contains("ZIP") || found.contains("npz");
    assert!(error.get_hint().is_some() || unknown, "{what} as {how}: {error:?}");
    let hint = error.get_hint().unwrap_or_default();
    let word = match what {
        "lfs" => "git lfs pull",
        "html" | "json" | "xml" | "text" => "look into the file",
        "gzip" => "unpack",
        "legacy" | "pickle" if kind != "NotSafetensors" && how != "gguf" => "torch.",
        _ => "",
    };
    let asked = matches!(how, "gguf" | "onnx" | "openvino");
    assert!(hint.contains(word) || (asked && word == "torch."), "{what} as {how}: {hint}");
}

#[test]
fn content_counts_more_than_the_name_but_for_a_promise_of_safetensors() {
    let folder = tempfile::tempdir().unwrap();
    // With the weights of OpenVINO beside it, by the name that the description has.
    let open = |name: &str, bytes: &[u8], asked| {
        let stem = name.strip_suffix(".xml").unwrap_or(name);
        fs::write(folder.path().join(format!("{stem}.bin")), [0; 5000]).unwrap();
        open(folder.path(), name, bytes, asked)
    };
    for (format, _, bytes) in models() {
        let found = match format {
            Format::Gguf => "a GGUF file",
            Format::Onnx => "an ONNX model",
            Format::OpenVino => "an XML file",
            Format::PyTorch => "a ZIP archive",
            _ => "a safetensors file",
        };
        for name in NAMES {
            let result = open(name, &bytes, None);
            if name == "model.safetensors" && format != Format::Safetensors {
                check(&result.unwrap_err(), format.name(), name, "NotSafetensors", found);
                continue;
            }
            let model = result.unwrap_or_else(|error| panic!("{format} as {name}: {error:?}"));
            assert_eq!(model.index().format, Some(format), "{name}");
            assert_eq!(model.index().tensors.len(), 2);
        }
        for asked in Format::ALL {
            let result = open("m", &bytes, Some(asked));
            match asked {
                Format::Raw => assert_eq!(result.unwrap().index().tensors.len(), 1),
                _ if asked == format => assert_eq!(result.unwrap().index().tensors.len(), 2),
                Format::Safetensors => {
                    check(&result.unwrap_err(), format.name(), "asked", "NotSafetensors", found);
                }
                _ => check(&result.unwrap_err(), format.name(), "asked", "UnknownFormat", found),
            }
        }
    }
}

/// A download that ended early, anywhere: under its name, under none, and with its format asked for.
#[test]
fn a_truncated_download_is_called_truncated() {
    let folder = tempfile::tempdir().unwrap();
    for (format, name, bytes) in models() {
        for length in 1..bytes.len() {
            let cut = &bytes[..length];
            let tries = [(name, None), ("model.dat", None), ("model", Some(format))];
            for (name, asked) in tries {
                let error = match open(folder.path(), name, cut, asked) {
                    Ok(_) => panic!("{format} cut to {length} of {} is a model", bytes.len()),
                    Err(error) => error,
                };
                let kind = error.kind().name();
                // Fewer bytes than a mark has tell nothing, but that it is no model.
                let marked = match format {
                    Format::Gguf | Format::PyTorch | Format::Onnx => 4,
                    Format::OpenVino => 8,
                    _ => 9,
                };
                let right = match (format, kind) {
                    (_, "Truncated") => true,
                    (Format::Safetensors, "HeaderPastEof") => true,
                    // The line end after the last element may be missing: what is not there then
                    // is the other file.
                    (Format::OpenVino, "MissingWeights") => length + 1 == bytes.len(),
                    // Where a message ends there is nothing that says that others follow.
                    (Format::Onnx, "InvalidHeader") => error.message().contains("no graph"),
                    // The declaration, and nothing after it.
                    (Format::OpenVino, "UnknownFormat") if length > 20 => {
                        error.value("found") == Some("XML without an element")
                    }
                    (_, "UnknownFormat") => {
                        length < marked && error.value("found") == Some("a file of unknown format")
                    }
                    _ => false,
                };
                assert!(right, "{format} cut to {length} as {name}: {error:?}");
                if length >= marked && kind != "MissingWeights" {
                    assert!(error.get_hint().unwrap().contains("cut short"), "{error:?}");
                }
            }
        }
    }
}
