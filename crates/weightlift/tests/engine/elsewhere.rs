//! ON-09: files that a model names and that its own folder lacks, in other folders.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use fuzz_targets::write::{Dtype, Tensor, onnx, openvino};
use testkit::{Random, Spec, write_sharded};
use weightlift::{Error, ErrorKind, Loaded, Loader, Model, OpenOptions};

use crate::{assert_same, on_host};

fn searching(folders: &[&Path]) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.search_dirs = folders.iter().map(|folder| folder.to_path_buf()).collect();
    options
}

fn load(path: &Path, folders: &[&Path]) -> Result<Loaded, Error> {
    Loader::default().load(path, on_host().open_options(searching(folders)))
}

/// The first byte of the only tensor.
fn first(loaded: &Loaded) -> u8 {
    loaded.tensors[0].as_bytes().unwrap()[0]
}

/// A model of one tensor of 16 bytes, and the name of the file that it is in.
fn models(home: &Path) -> [(std::path::PathBuf, &'static str); 2] {
    let tensor = [Tensor::new("w", Dtype::F32, &[4])];
    let (path, xml) = (home.join("model.onnx"), home.join("network.xml"));
    fs::write(&path, onnx::external(&tensor, "data/w.bin")).unwrap();
    fs::write(&xml, openvino::file(&tensor).0).unwrap();
    [(path, "data/w.bin"), (xml, "network.bin")]
}

fn put(folder: &Path, name: &str, byte: u8) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, [byte; 16]).unwrap();
}

#[test]
fn the_models_folder_is_first_and_then_the_first_that_has_a_file() {
    let folders: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let [home, one, two] = folders.each_ref().map(|folder| folder.path());
    for (path, name) in models(home) {
        for searched in [&[][..], &[one, two]] {
            let error = load(&path, searched).unwrap_err();
            assert_eq!(error.kind().name(), "MissingWeights", "{error:?}");
            let own = path.file_name().unwrap().to_str().unwrap();
            for (key, value) in [("file", name), ("named_by", own), ("files", name), ("count", "1")]
            {
                assert_eq!(error.value(key), Some(value), "{error}");
            }
            assert!(error.get_hint().unwrap().contains("--search-dir"), "{error:?}");
        }
        put(two, name, 2);
        assert_eq!(first(&load(&path, &[one, two]).unwrap()), 2);
        put(one, name, 1);
        assert_eq!(first(&load(&path, &[one, two]).unwrap()), 1);
        assert_eq!(first(&load(&path, &[two, one]).unwrap()), 2);
        put(home, name, 0);
        assert_eq!(first(&load(&path, &[one, two]).unwrap()), 0);
        // As the model calls it, wherever it was found.
        fs::remove_file(home.join(name)).unwrap();
        let model = Model::open(&path, &searching(&[one])).unwrap();
        assert!(model.sources().iter().any(|source| source.name() == name));
    }
}

/// A link that leads out of the folder it is in is an error, and no reason to look on.
#[test]
fn each_folder_has_the_rules_of_the_models_own() {
    let folders: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let [home, one, two] = folders.each_ref().map(|folder| folder.path());
    let [_, (path, name)] = models(home);
    put(two, name, 2);
    symlink(two.join(name), one.join(name)).unwrap();
    let error = load(&path, &[one, two]).unwrap_err();
    assert_eq!(error.kind().name(), "UnsafePath", "{error:?}");
    assert_eq!(error.value("folder"), Some(one.to_str().unwrap()));
    let mut following = searching(&[one, two]);
    following.follow_links = true;
    let loaded = Loader::default().load(&path, on_host().open_options(following)).unwrap();
    assert_eq!(first(&loaded), 2);

    // A link to nothing is nothing.
    fs::remove_file(one.join(name)).unwrap();
    symlink("gone", one.join(name)).unwrap();
    assert_eq!(first(&load(&path, &[one, two]).unwrap()), 2);
    // Inside of the folder a link may lead anywhere, as in the snapshots of the Hub's cache.
    fs::remove_file(one.join(name)).unwrap();
    put(one, "blobs/1", 1);
    symlink("blobs/1", one.join(name)).unwrap();
    assert_eq!(first(&load(&path, &[one, two]).unwrap()), 1);
    let snapshot = two.join("models--a--b/snapshots/1");
    fs::create_dir_all(&snapshot).unwrap();
    put(&two.join("models--a--b/blobs"), "x", 3);
    symlink("../../blobs/x", snapshot.join(name)).unwrap();
    assert_eq!(first(&load(&path, &[&snapshot, one]).unwrap()), 3);
}

#[test]
fn names_that_are_not_safe_are_looked_for_nowhere() {
    let folders: [_; 2] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let [home, one] = folders.each_ref().map(|folder| folder.path());
    put(one, "w.bin", 1);
    fs::create_dir(one.join("deep")).unwrap();
    let tensor = [Tensor::new("w", Dtype::F32, &[4])];
    for name in ["../w.bin", one.join("w.bin").to_str().unwrap()] {
        let path = home.join("model.onnx");
        fs::write(&path, onnx::external(&tensor, name)).unwrap();
        let error = load(&path, &[&one.join("deep"), one]).unwrap_err();
        assert_eq!(error.kind().name(), "UnsafePath", "{error:?}");
    }
}

#[test]
fn shards_are_looked_for_too() {
    let specs = Spec::many(&mut Random::new(5), 30, 5000);
    let written = write_sharded(specs.clone(), 3);
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let name = |number| format!("model-0000{number}-of-00003.safetensors");
    fs::rename(written.path().join(name(2)), one.path().join(name(2))).unwrap();
    fs::rename(written.path().join(name(3)), two.path().join(name(3))).unwrap();
    let error = load(written.path(), &[one.path()]).unwrap_err();
    assert_eq!(error.kind().name(), "MissingShards");
    assert_eq!(error.value("shards"), Some(&*name(3)));
    assert_same(&load(written.path(), &[one.path(), two.path()]).unwrap(), &specs);
}

#[test]
fn a_folder_that_is_none_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let [(path, name), _] = models(folder.path());
    put(folder.path(), name, 0);
    let error = load(&path, &[&folder.path().join(name)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert_eq!(error.value("option"), Some("search_dirs"));
    let error = load(&path, &[&folder.path().join("gone")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileNotFound);
}
