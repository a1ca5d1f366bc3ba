//! Tensors that share bytes in a file are read once, and share memory: tied weights, and views.

use std::fs;
use std::path::{Path, PathBuf};

use fake_cuda::Config;
use fuzz_targets::write::{Dtype, Tensor, onnx, openvino, pytorch};
use testkit::{Random, digest};
use weightlift::{Loaded, Loader, Model, OpenOptions, Route};

use crate::{Fake, on_cuda, on_host};

/// 1000 numbers of four bytes, under two names, and `rows`, where it can be, over a part of them.
const ELEMENTS: u64 = 1000;
const BYTES: u64 = 4 * ELEMENTS;

fn whole(name: &str) -> Tensor {
    Tensor::new(name, Dtype::F32, &[ELEMENTS])
}

fn bytes() -> Vec<u8> {
    Random::new(7).bytes(BYTES as usize)
}

/// Tensors in another file, by where they begin and how many elements they have.
fn tied_onnx(folder: &Path) -> PathBuf {
    let mut graph = onnx::message(2, b"g");
    for (name, offset, elements) in [("a", 8, ELEMENTS), ("b", 8, ELEMENTS), ("rows", 408, 50)] {
        let mut tensor = onnx::describe(&Tensor::new(name, Dtype::F32, &[elements]));
        for (key, value) in [("location", "w.bin"), ("offset", &offset.to_string())] {
            let entry = [onnx::message(1, key.as_bytes()), onnx::message(2, value.as_bytes())];
            tensor.extend(onnx::message(13, &entry.concat()));
        }
        tensor.extend(onnx::number(14, 1));
        graph.extend(onnx::message(5, &tensor));
    }
    let path = folder.join("model.onnx");
    fs::write(&path, [onnx::start(), onnx::message(7, &graph)].concat()).unwrap();
    fs::write(folder.join("w.bin"), [vec![0; 8], bytes()].concat()).unwrap();
    path
}

fn tied_openvino(folder: &Path) -> PathBuf {
    let rows = Tensor::new("rows", Dtype::F32, &[50]);
    let (text, _) = openvino::file(&[whole("a"), whole("b"), rows]);
    // The writer puts them behind each other.
    let text = text.replacen(&format!("offset=\"{BYTES}\""), "offset=\"0\"", 1);
    let text = text.replacen(&format!("offset=\"{}\"", 2 * BYTES), "offset=\"400\"", 1);
    let path = folder.join("model.xml");
    fs::write(&path, text).unwrap();
    fs::write(folder.join("model.bin"), bytes()).unwrap();
    path
}

/// The same value of the pickle under two keys, as `torch.save` writes a tied weight.
fn tied_pytorch(folder: &Path) -> PathBuf {
    let pickle = pytorch::pickle(&[whole("a")]);
    // Before the end: the tensor into the memo, and out of it again.
    let head = &pickle[..pickle.len() - 2];
    let pickle = [head, b"q\x64X\x01\0\0\0bh\x64u."].concat();
    let mut archive = pytorch::archive(&pickle, &[whole("")]).to_vec();
    // The storage is all zeros as the writer leaves it, and lies at a multiple of 64.
    let zeros = vec![0; BYTES as usize];
    let at =
        (0..archive.len() - zeros.len()).step_by(64).find(|at| archive[*at..].starts_with(&zeros));
    let at = at.expect("the storage");
    archive[at..at + zeros.len()].copy_from_slice(&bytes());
    let path = folder.join("model.pt");
    fs::write(&path, archive).unwrap();
    path
}

fn assert_shared(loaded: &Loaded, how: &str) {
    let bytes = bytes();
    let report = &loaded.report;
    let counted = (report.bytes.planned, report.bytes.read, report.bytes.delivered);
    assert_eq!(counted, (BYTES, BYTES, BYTES), "{how}: read once");
    let tensor = |name| loaded.tensor(name).unwrap();
    let start = tensor("a").address();
    assert_eq!(tensor("b").address(), start, "{how}: one memory");
    for name in ["a", "b"] {
        assert_eq!(tensor(name).digest().unwrap(), digest(&bytes), "{how}: {name}");
    }
    if let Some(rows) = loaded.tensor("rows") {
        assert_eq!(rows.address(), start + 400, "{how}: a part of it");
        assert_eq!(rows.digest().unwrap(), digest(&bytes[400..600]), "{how}");
    }
}

#[test]
fn tensors_that_share_bytes_are_read_once_and_share_memory() {
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Default::default());
    for (make, tensors) in
        [(tied_onnx as fn(&Path) -> PathBuf, 3), (tied_openvino, 3), (tied_pytorch, 2)]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = make(folder.path());
        let model = Model::open(&path, &OpenOptions::default()).unwrap();
        let how = model.index().format.unwrap().name();
        let storages: Vec<_> = model.index().tensors.iter().map(|tensor| tensor.storage).collect();
        assert_eq!(storages, vec![storages[0]; tensors], "{how}");
        assert_shared(&Loader::default().load(&path, on_host()).unwrap(), how);
        for route in [Route::Pinned, Route::Pageable] {
            assert_shared(&loader.load(&path, on_cuda(route)).unwrap(), how);
        }
    }
    drop(loader);
    fake.assert_clean();
}
