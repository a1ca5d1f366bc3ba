//! `load` and `plan`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::Value;

use crate::common::{NASTY, Spec, pattern, run, sharded, text, write_safetensors};

#[test]
fn json_holds_the_report_and_every_tensor_with_its_digest() {
    let model = sharded();
    let path = text(model.folder.path());
    let json = run(["load", path, "--device", "host", "--json", "--digest"]).json();
    let total: u64 = model.tensors.iter().map(|spec| spec.bytes.len() as u64).sum();
    assert_eq!(json["schema"], 1);
    for part in ["planned", "read", "delivered"] {
        assert_eq!(json["bytes"][part], total, "{part}");
    }
    assert_eq!(json["routes"]["host"], total);
    assert_eq!(json["reads"]["buffered"], total);
    assert_eq!(json["fallbacks"], serde_json::json!([]));
    assert_eq!(json["devices"], serde_json::json!(["host"]));
    assert_eq!(json["staging_bytes_peak"], 0);
    assert!(json["seconds"]["total"].as_f64().expect("seconds") > 0.0);
    assert!(json["bytes_per_second"].as_f64().expect("a rate") > 0.0);
    let tensors = json["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), model.tensors.len());
    for spec in &model.tensors {
        let tensor = tensors.iter().find(|tensor| tensor["name"] == *spec.name).expect("a tensor");
        assert_eq!(tensor["dtype"], spec.dtype);
        assert_eq!(tensor["shape"], serde_json::json!(spec.shape));
        assert_eq!(tensor["length"], spec.bytes.len());
        assert_eq!(tensor["device"], "host");
        assert_eq!(tensor["digest"], spec.digest(), "{}", spec.name);
        assert!(tensor["address"].as_str().expect("an address").starts_with("0x"));
    }
}

/// The driver of the tests is none that the command finds; what it does with one the library's
/// tests show.
#[test]
fn pinning_is_refused_for_anything_but_the_host() {
    let model = sharded();
    let path = text(model.folder.path());
    for more in [&[][..], &["--device=cuda"], &["--device=host", "--reading-threads=0"]] {
        let ran = run([&["load", path, "--pin-host"], more].concat());
        assert_eq!((ran.status, &*ran.stdout), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains("(option: pin_host, value: on, device: "), "{}", ran.stderr);
    }
    let json = run(["load", path, "--device=host", "--json"]).json();
    assert_eq!(json["pinned_destination_bytes"], 0);
}

#[test]
fn digests_are_left_out_unless_asked_for() {
    let model = sharded();
    let json = run(["load", text(model.folder.path()), "--device", "host", "--json"]).json();
    let tensors = json["tensors"].as_array().expect("a list");
    assert!(tensors.iter().all(|tensor| tensor.get("digest").is_none()));
}

#[test]
fn text_says_what_where_to_how_fast_and_why() {
    let model = sharded();
    let ran = run(["load", text(model.folder.path()), "--device", "host", "--digest"]);
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("loaded 5 tensors, 110.01 kB, from "), "{}", lines[0]);
    assert!(lines[0].ends_with(" into host"), "{}", lines[0]);
    assert!(lines[1].starts_with("by host at ") && lines[1].contains("/s in "), "{}", lines[1]);
    assert!(lines.contains(&"device: host (asked for)"));
    assert!(lines.iter().any(|line| line.starts_with("route: host (")));
    for spec in model.tensors.iter().filter(|spec| spec.name != NASTY) {
        assert!(lines.contains(&&*format!("{}  {}", spec.digest(), spec.name)));
    }
    assert!(lines.iter().any(|line| line.ends_with("  evil\\u{1b}[31m\\nerror: forged")));
    assert!(!ran.stdout.contains('\u{1b}'));
}

#[test]
fn quiet_says_nothing() {
    let model = sharded();
    let ran = run(["load", text(model.folder.path()), "--device", "host", "--quiet"]);
    assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (Some(0), "", ""));
}

#[test]
fn patterns_select_and_may_be_given_more_than_once() {
    let model = sharded();
    let path = text(model.folder.path());
    let names = |args: &[&str]| -> Vec<String> {
        let args = [&["load", path, "--device", "host", "--json"], args].concat();
        let json = run(args).json();
        let tensors = json["tensors"].as_array().expect("a list").clone();
        tensors.iter().map(|tensor| tensor["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&["--tensors", "lm_*"]), ["lm_head"]);
    assert_eq!(
        names(&["--tensors", "model.layers.1.*", "--tensors", "lm_head"]),
        ["model.layers.1.weight", "lm_head"]
    );
}

#[test]
fn portions_and_readers_change_no_byte() {
    let model = sharded();
    let path = text(model.folder.path());
    for threads in ["0", "1", "3", "64", "auto"] {
        let args = ["load", path, "--device=host", "--json", "--digest", "--block-size=8KiB"];
        let more = ["--piece-size=4KiB", "--staging-budget=16KiB", "--reading-threads", threads];
        let json = run(args.into_iter().chain(more)).json();
        assert_eq!(json["block_size"], 8192);
        for tensor in json["tensors"].as_array().expect("a list") {
            let spec = model.tensors.iter().find(|spec| tensor["name"] == *spec.name);
            assert_eq!(tensor["digest"], spec.expect("known").digest());
        }
    }
}

#[test]
fn paths_need_not_be_utf_8() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(OsString::from_vec(b"mod\xffel\n.safetensors".to_vec()));
    let spec = Spec::u8("t", pattern(100, 1));
    write_safetensors(&path, std::slice::from_ref(&spec));
    let args: Vec<OsString> =
        vec!["load".into(), path.clone().into(), "--device=host".into(), "--digest".into()];
    let ran = run(&args);
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    assert!(ran.stdout.contains("mod\u{fffd}el\\n.safetensors into host"), "{}", ran.stdout);
    assert!(ran.stdout.contains(&spec.digest()));
}

#[test]
fn a_plan_delivers_every_byte_and_loads_nothing() {
    let model = sharded();
    let path = text(model.folder.path());
    let sizes = ["--block-size=8KiB", "--piece-size=4KiB"];
    let args = ["plan", path, "--device=host"];
    let json = run(args.into_iter().chain(sizes).chain(["--json"])).json();
    let total: u64 = model.tensors.iter().map(|spec| spec.bytes.len() as u64).sum();
    assert_eq!(json["bytes"], total);
    assert_eq!((&json["block_size"], &json["piece_size"]), (&8192.into(), &4096.into()));
    let sum = |what: &str| -> u64 {
        let blocks = json["blocks"].as_array().expect("a list").iter();
        let parts = blocks.flat_map(|block| block[what].as_array().expect("a list"));
        parts.map(|part| part["length"].as_u64().expect("a length")).sum()
    };
    assert_eq!((sum("pieces"), sum("copies")), (total, total));
    assert_eq!(json["sources"].as_array().map(Vec::len), Some(2));
    let names = |storage: &Value| storage["tensors"].as_array().map_or(0, Vec::len);
    let storages = json["storages"].as_array().expect("a list");
    assert_eq!(storages.iter().map(names).sum::<usize>(), model.tensors.len());

    let ran = run(args.into_iter().chain(sizes));
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    assert!(ran.stdout.starts_with("source 0: model-00001-of-00002.safetensors\n"));
    assert!(ran.stdout.contains(&format!("{total} bytes of 5 storages in ")), "{}", ran.stdout);
}
