//! Sources that come short, are interrupted, fail, change or end early; folders that lie.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, Written, in_memory, write_hub_cache, write_sharded};
use weightlift::{Error, ErrorKind, Loader, Model, OpenOptions, Route};

use crate::{Fake, assert_same, on_cuda, on_host, options};

const SMALL: &str = "block_size=16KiB,piece_size=4KiB,staging_budget=64KiB,reading_threads=4";

fn specs() -> Vec<Spec> {
    Spec::many(&mut Random::new(3), 40, 20_000)
}

#[test]
fn short_and_interrupted_reads_are_continued() {
    for fault in [Fault::Short(4096), Fault::Short(700), Fault::Interrupted, Fault::WouldBlock(3)] {
        let (model, _) = in_memory(vec![(specs(), fault)]);
        // One reader where patience is counted: the source counts over all of them.
        let threads = if matches!(fault, Fault::WouldBlock(_)) { 1 } else { 4 };
        let options = options(&format!("{SMALL},reading_threads={threads}"));
        assert_same(&Loader::new(options.clone()).load_model(&model, on_host()).unwrap(), &specs());
        let fake = Fake::new(Config::default());
        let loaded = fake.loader(options).load_model(&model, on_cuda(Route::Pinned)).unwrap();
        assert_same(&loaded, &specs());
    }
}

/// Every kind of failed read, on every route: the error, nothing left over, and the loader
/// loads again.
#[test]
fn a_failed_read_is_an_error_and_nothing_is_left() {
    const EIO: i32 = 5;
    const EAGAIN_FOR_EVER: u64 = 1_000_000;
    let cases = [
        (Fault::Errno(1, EIO), "Io"),
        (Fault::Errno(17, EIO), "Io"),
        (Fault::Ends(5), "Truncated"),
        (Fault::Panics(9), "Internal"),
        (Fault::WouldBlock(EAGAIN_FOR_EVER), "Io"),
    ];
    for (fault, kind) in cases {
        let fake = Fake::new(Config { copy_delay_us: 200, ..Config::default() });
        let loader = fake.loader(options(SMALL));
        let (bad, _) = in_memory(vec![(specs(), fault)]);
        let (good, _) = in_memory(vec![(specs(), Fault::None)]);
        for request in
            [on_host as fn() -> _, || on_cuda(Route::Pinned), || on_cuda(Route::Pageable)]
        {
            let (bad_again, _) = in_memory(vec![(specs(), fault)]);
            let error = loader.load_model(&bad_again, request()).unwrap_err();
            assert_eq!(error.kind().name(), kind, "{fault:?}: {error:?}");
            if kind != "Internal" {
                assert_eq!(error.value("file").or(error.value("path")), Some("memory-0"));
            }
            assert_same(&loader.load_model(&good, request()).unwrap(), &specs());
        }
        drop((bad, loader));
        fake.assert_clean();
    }
}

/// IX-11: a stale handle is opened again once; the identity decides.
#[test]
fn a_stale_handle_is_opened_again_once() {
    const ESTALE: i32 = 116;
    let loader = Loader::new(options("reading_threads=1,piece_size=4KiB"));
    let (model, sources) = in_memory(vec![(specs(), Fault::Errno(3, ESTALE))]);
    assert_same(&loader.load_model(&model, on_host()).unwrap(), &specs());
    // To see what it lies on, to read, and once more.
    assert_eq!(sources[0].opened(), 3);
    // Twice stale is a server's fault that is not waited out.
    let (model, _) = in_memory(vec![(specs(), Fault::Stale)]);
    let error = loader.load_model(&model, on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
}

#[test]
fn a_source_that_changed_is_an_error_before_and_after() {
    let (model, sources) = in_memory(vec![(specs(), Fault::None)]);
    sources[0].change();
    let error = Loader::default().load_model(&model, on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert_eq!(sources[0].reads(), 0);

    let (model, sources) = in_memory(vec![(specs(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(options(SMALL));
    let source = sources[0].clone();
    let request = on_cuda(Route::Pinned).on_event(move |_| source.change());
    assert_eq!(loader.load_model(&model, request).unwrap_err().kind(), ErrorKind::Changed);
    drop(loader);
    fake.assert_clean();
}

/// FS-16: truncated, grown, rewritten in place, replaced, removed: each is told; a chmod and
/// another name are nothing.
#[test]
fn a_file_that_changes_while_it_is_loaded_is_told_in_what() {
    type Change = fn(&std::path::Path);
    fn open(path: &std::path::Path) -> fs::File {
        std::thread::sleep(Duration::from_millis(20)); // past the clock tick of the write before
        fs::OpenOptions::new().write(true).open(path).unwrap()
    }
    let changes: [(&str, Change); 10] = [
        ("length", |path| open(path).set_len(100).unwrap()),
        ("length", |path| {
            let length = fs::metadata(path).unwrap().len();
            open(path).set_len(length + 1).unwrap();
        }),
        // Cut and grown again: as long as before, and zeros at the end.
        ("written", |path| {
            let length = fs::metadata(path).unwrap().len();
            let file = open(path);
            file.set_len(length / 2).unwrap();
            file.set_len(length).unwrap();
        }),
        ("written", |path| {
            use std::os::unix::fs::FileExt;
            open(path).write_all_at(b"x", fs::metadata(path).unwrap().len() - 1).unwrap();
        }),
        ("written", |path| {
            std::thread::sleep(Duration::from_millis(20)); // past the clock tick of the write before
            let bytes = fs::read(path).unwrap();
            fs::write(path, bytes).unwrap();
        }),
        ("replaced", |path| {
            let other = path.with_extension("new");
            fs::copy(path, &other).unwrap();
            fs::rename(&other, path).unwrap();
        }),
        // The name leads to another file now, which says the same.
        ("replaced", |path| {
            let other = path.with_extension("other");
            fs::copy(path, &other).unwrap();
            fs::remove_file(path).unwrap();
            symlink(&other, path).unwrap();
        }),
        ("find a file again", |path| fs::remove_file(path).unwrap()),
        ("", |path| fs::hard_link(path, path.with_extension("name")).unwrap()),
        ("", |path| {
            let mut permissions = fs::metadata(path).unwrap().permissions();
            permissions.set_readonly(true);
            fs::set_permissions(path, permissions).unwrap();
        }),
    ];
    for (what, change) in changes {
        for before in [true, false] {
            let written = Written::single(specs(), 0);
            let path = written.path().to_owned();
            let model = std::sync::Arc::new(Model::open(&path, &OpenOptions::default()).unwrap());
            let mut changed = before;
            if before {
                change(&path);
            }
            let request = on_host().on_event(|_| {
                if !std::mem::replace(&mut changed, true) {
                    change(&path);
                }
            });
            // One block: its bytes have all been read when the first event comes.
            let result = Loader::default().load_model(&model, request);
            match what {
                "" => {
                    let loaded = result.unwrap();
                    assert_same(&loaded, &specs());
                    let mut noted = loaded.report.decisions.iter();
                    assert!(noted.any(|decision| decision.what == "sources"), "{before}");
                }
                "find a file again" => {
                    let error = result.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::FileNotFound, "{before}: {error:?}");
                    assert_eq!(error.value("path"), path.to_str());
                }
                _ => {
                    let error = result.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Changed, "{what} {before}: {error:?}");
                    assert!(error.message().contains(what), "{error}");
                }
            }
        }
    }
}

/// FS-16: of several shards each is looked at, and the one that changed is named.
#[test]
fn of_several_shards_the_one_that_changed_is_named() {
    for shard in 1..=3 {
        let written = write_sharded(specs(), 3);
        let name = format!("model-0000{shard}-of-00003.safetensors");
        let path = written.path().join(&name);
        let model =
            std::sync::Arc::new(Model::open(written.path(), &OpenOptions::default()).unwrap());
        let mut changed = false;
        let request = on_host().on_event(|_| {
            if !std::mem::replace(&mut changed, true) {
                std::thread::sleep(Duration::from_millis(20)); // past the clock's tick
                let bytes = fs::read(&path).unwrap();
                fs::write(&path, bytes).unwrap();
            }
        });
        let error = Loader::default().load_model(&model, request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{error:?}");
        assert_eq!(error.value("file"), Some(&*name));
    }
}

#[test]
fn a_file_that_ends_early_is_told_when_it_is_opened() {
    let written =
        Written::single(vec![Spec::u8("a", vec![1; 1000]), Spec::u8("b", vec![2; 1000])], 0);
    let whole = fs::read(written.path()).unwrap();
    let data = whole.len() - 2000;
    // ST-05, ST-04: cut by one byte, within a tensor, within the header, and one byte too many.
    for (length, kind) in [
        (whole.len() - 1, "Truncated"),
        (data + 1500, "Truncated"),
        (data, "Truncated"),
        (data / 2, "HeaderPastEof"),
        (7, "Truncated"),
        (0, "Truncated"),
    ] {
        fs::write(written.path(), &whole[..length]).unwrap();
        let mut asked = false;
        let request = on_host().destinations(|_| {
            asked = true;
            Err(Error::new(ErrorKind::Internal, "asked"))
        });
        let error = Loader::default().load(written.path(), request).unwrap_err();
        let allowed = [kind, "NotSafetensors", "HeaderPastEof"];
        assert!(allowed.contains(&error.kind().name()), "{length}: {error:?}");
        assert_eq!(error.value("file"), Some("model.safetensors"));
        assert!(!asked, "a destination was asked for");
    }
    let longer = [&whole[..], &[0]].concat();
    fs::write(written.path(), longer).unwrap();
    let error = Loader::default().load(written.path(), on_host()).unwrap_err();
    assert_eq!(error.kind().name(), "TrailingBytes");
}

#[test]
fn what_is_no_model_is_called_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let cases: [(&[u8], &str, &str); 5] = [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4f\nsize 1\n",
            "NotSafetensors",
            "LFS",
        ),
        (b"<!DOCTYPE html><html><body>not found</body></html>", "NotSafetensors", "web page"),
        (b"PK\x03\x04 and so on, long enough", "NotSafetensors", ""),
        (b"\x80\x02}q\x00. and so on, long enough", "NotSafetensors", ""),
        (b"GGUF\x03\x00\x00\x00 and so on", "NotSafetensors", "GGUF"),
    ];
    for (bytes, kind, word) in cases {
        fs::write(&path, bytes).unwrap();
        let error = Loader::default().load(&path, on_host()).unwrap_err();
        assert_eq!(error.kind().name(), kind, "{error:?}");
        let said = format!("{error} {:?}", error.get_hint());
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn pipes_devices_and_missing_paths_are_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("model.safetensors");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    for path in [pipe.as_path(), std::path::Path::new("/dev/null")] {
        assert_eq!(
            Loader::default().load(path, on_host()).unwrap_err().kind(),
            ErrorKind::NotRegular
        );
    }
    assert_eq!(
        Loader::default().load(folder.path(), on_host()).unwrap_err().kind(),
        ErrorKind::NotRegular
    );
    let missing = folder.path().join("missing");
    let error = Loader::default().load(&missing, on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileNotFound);
    assert_eq!(error.value("path"), Some(missing.to_str().unwrap()));
}

/// IX-01, before any data and before any memory.
#[test]
fn missing_shards_are_all_named() {
    let written = write_sharded(specs(), 3);
    for name in ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"] {
        fs::remove_file(written.path().join(name)).unwrap();
    }
    let error = Loader::default().load(written.path(), on_host()).unwrap_err();
    assert_eq!(error.kind().name(), "MissingShards");
    let shards = error.value("shards").unwrap();
    assert!(
        shards.contains("00001-of") && shards.contains("00003-of") && !shards.contains("00002-of"),
        "{shards}"
    );
}

/// A shard that is there but cannot be opened is not missing: fetching it again would not help.
#[test]
fn a_shard_that_leads_to_itself_keeps_its_reason() {
    let written = write_sharded(specs(), 2);
    let shard = written.path().join("model-00001-of-00002.safetensors");
    fs::remove_file(&shard).unwrap();
    symlink("model-00001-of-00002.safetensors", &shard).unwrap();
    let error = Loader::default().load(written.path(), on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
    assert!(error.value("reason").unwrap().contains("symbolic links"), "{error}");
}

/// IX-02 and IX-04: the index decides for every tensor; what it does not name is not read.
#[test]
fn the_index_decides_and_nothing_else_is_read() {
    let written =
        write_sharded(vec![Spec::u8("x", vec![1; 5000]), Spec::u8("y", vec![2; 5000])], 2);
    let stale = vec![Spec::u8("y", vec![2; 5000]), Spec::u8("x", vec![0; 5000])];
    let second = written.path().join("model-00002-of-00002.safetensors");
    fs::write(&second, testkit::safetensors(&stale, 0)).unwrap();
    let consolidated = written.path().join("consolidated.safetensors");
    fs::write(&consolidated, testkit::safetensors(&written.tensors, 0)).unwrap();
    let loaded = Loader::default().load(written.path(), on_host()).unwrap();
    assert_same(&loaded, &written.tensors);
    assert_eq!((loaded.report.skipped_tensors, loaded.report.bytes.read), (1, 10_000));
    fs::remove_file(written.path().join("model.safetensors.index.json")).unwrap();
    let error = Loader::default().load(written.path(), on_host()).unwrap_err();
    assert_eq!(error.kind().name(), "AmbiguousModel");
}

/// IX-08: an index of an older export, and the way round it.
#[test]
fn a_stale_index_can_be_ignored() {
    let written = Written::single(specs(), 0);
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#;
    fs::write(written.folder().join("model.safetensors.index.json"), index).unwrap();
    let error = Loader::default().load(written.folder(), on_host()).unwrap_err();
    assert_eq!(error.kind().name(), "MissingShards");
    let mut ignoring = OpenOptions::default();
    ignoring.ignore_index = true;
    let request = on_host().open_options(ignoring);
    assert_same(&Loader::default().load(written.folder(), request).unwrap(), &specs());
}

/// IX-05: names that lead out of the folder are refused by their spelling alone.
#[test]
fn unsafe_names_are_refused_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    // Where a careless join would lead, a pipe waits: opening it for reading would be seen.
    fs::write(folder.path().join("x"), testkit::safetensors(&specs(), 0)).unwrap();
    for name in [
        "../x",
        "/etc/hostname",
        "C:\\x",
        "\\\\h\\s",
        "a/../../x",
        "%2e%2e/x",
        "s\\..\\x",
        "",
        "a\\u0000b",
    ] {
        let name =
            if name.contains("u0000") { name.to_owned() } else { name.replace('\\', "\\\\") };
        fs::write(
            model.join("model.safetensors.index.json"),
            format!("{{\"weight_map\":{{\"t\":\"{name}\"}}}}"),
        )
        .unwrap();
        let error = Loader::default().load(&model, on_host()).unwrap_err();
        assert_eq!(error.kind().name(), "UnsafePath", "{name}: {error:?}");
    }
}

/// IX-07: the Hub's links are followed, others are not unless the caller says so.
#[test]
fn links_out_of_the_folder_are_refused_except_into_the_hubs_blobs() {
    let written = write_hub_cache(specs(), 2);
    assert_same(&Loader::default().load(written.path(), on_host()).unwrap(), &specs());

    let outside = Written::single(specs(), 0);
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("model.safetensors");
    symlink(outside.path(), &link).unwrap();
    let error = Loader::default().load(folder.path(), on_host()).unwrap_err();
    assert_eq!(error.kind().name(), "UnsafePath");
    assert_eq!(error.value("file"), Some("model.safetensors"));
    let mut following = OpenOptions::default();
    following.follow_links = true;
    assert_same(
        &Loader::default().load(folder.path(), on_host().open_options(following)).unwrap(),
        &specs(),
    );
    assert_same(&Loader::default().load(&link, on_host()).unwrap(), &specs());

    // A shard of a Hub snapshot that leads anywhere but to its blobs.
    let shard = written.path().join("model-00001-of-00002.safetensors");
    fs::remove_file(&shard).unwrap();
    symlink("/etc/hostname", &shard).unwrap();
    let error = Loader::default().load(written.path(), on_host()).unwrap_err();
    assert_eq!(error.kind().name(), "UnsafePath");
}

#[test]
fn another_users_file_is_a_clear_error() {
    use std::os::unix::fs::PermissionsExt;
    let written = Written::single(specs(), 0);
    fs::set_permissions(written.path(), fs::Permissions::from_mode(0o0)).unwrap();
    if rustix::process::geteuid().is_root() {
        testkit::skipped("another_users_file_is_a_clear_error", "root may read everything");
        return;
    }
    let error = Loader::default().load(written.path(), on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn lengths_past_2_gib_are_read() {
    // FS-01: a sparse file of 2.5 GiB, one tensor, its last bytes set; one reader, one block
    // as large as a block can be, one piece of that size.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let length = 5_u64 << 29;
    let header = format!(
        "{{\"t\":{{\"dtype\":\"U8\",\"shape\":[{length}],\"data_offsets\":[0,{length}]}}}}"
    );
    let start = 8 + header.len() as u64;
    let file = fs::File::create(&path).unwrap();
    use std::os::unix::fs::FileExt;
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0).unwrap();
    file.write_all_at(header.as_bytes(), 8).unwrap();
    file.set_len(start + length).unwrap();
    file.write_all_at(b"the end", start + length - 7).unwrap();
    file.write_all_at(b"middle", start + (1 << 31) - 3).unwrap();
    let loader = Loader::new(options("block_size=1GiB,piece_size=1GiB,reading_threads=1"));
    let loaded = loader.load(&path, on_host()).unwrap();
    let bytes = loaded.tensors[0].as_bytes().unwrap();
    assert_eq!(bytes.len() as u64, length);
    assert_eq!(&bytes[bytes.len() - 7..], b"the end");
    assert_eq!(&bytes[(1 << 31) - 3..(1 << 31) + 3], b"middle");
}
