//! `inspect`, and what the command says about itself.

use std::os::unix::fs::FileExt;

use crate::common::{NASTY, Ran, run, sharded, text, weightlift};

#[test]
fn json_says_where_every_byte_is() {
    let model = sharded();
    let json = run(["inspect", text(model.folder.path()), "--json"]).json();
    let tensors = json["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), model.tensors.len());
    for spec in &model.tensors {
        let tensor = tensors.iter().find(|tensor| tensor["name"] == *spec.name).expect("a tensor");
        assert_eq!(tensor["dtype"], spec.dtype);
        assert_eq!(tensor["shape"], serde_json::json!(spec.shape));
        assert_eq!(tensor["length"], spec.bytes.len());
        let file = tensor["file"].as_str().expect("a name");
        let file = std::fs::File::open(model.folder.path().join(file)).expect("the file");
        let mut bytes = vec![0; spec.bytes.len()];
        file.read_exact_at(&mut bytes, tensor["offset"].as_u64().expect("an offset"))
            .expect("its bytes");
        assert!(bytes == spec.bytes, "{}", spec.name);
        assert_eq!(tensor.as_object().map(serde_json::Map::len), Some(7));
    }
}

#[test]
fn text_is_an_aligned_table_and_a_line_of_totals() {
    let model = sharded();
    let ran = run(["inspect", text(model.folder.path())]);
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), model.tensors.len() + 2);
    assert_eq!(lines.last(), Some(&"5 tensors, 110.01 kB, in 2 files (safetensors)"));
    let column = lines[0].find("dtype").expect("a title");
    for line in &lines[1..lines.len() - 1] {
        assert!(line[column..].starts_with("F32") || line[column..].starts_with("U8"), "{line}");
    }
    assert!(ran.stdout.contains(&NASTY.escape_default().to_string()));
}

#[test]
fn an_index_can_be_ignored() {
    let model = sharded();
    let path = text(model.folder.path());
    std::fs::write(model.folder.path().join("model.safetensors.index.json"), "{}")
        .expect("written");
    assert_eq!(run(["inspect", path]).status, Some(1));
    let json = run(["inspect", path, "--json", "--ignore-index"]).json();
    assert_eq!(json["tensors"].as_array().map(Vec::len), Some(5));
}

#[test]
fn links_out_of_the_folder_are_followed_only_where_allowed() {
    let model = sharded();
    let folder = tempfile::tempdir().expect("a folder");
    let target = model.folder.path().join("model-00001-of-00002.safetensors");
    std::os::unix::fs::symlink(target, folder.path().join("model.safetensors")).expect("a link");
    let path = text(folder.path());
    let ran = run(["inspect", path]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("--follow-links"), "{}", ran.stderr);
    assert_eq!(run(["inspect", path, "--follow-links"]).status, Some(0));
}

#[test]
fn the_command_explains_itself() {
    let version = run(["--version"]);
    assert_eq!(version.stdout, concat!("weightlift ", env!("CARGO_PKG_VERSION"), "\n"));
    let help = run(["--help"]);
    assert_eq!((help.status, &*help.stderr), (Some(0), ""));
    for word in ["Examples:", "load", "inspect", "plan", "demo", "WEIGHTLIFT_LOG", "130"] {
        assert!(help.stdout.contains(word), "{word}");
    }
    for command in ["load", "inspect", "plan", "demo", "completions"] {
        assert_eq!(run([command, "--help"]).status, Some(0), "{command}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(["completions", shell]);
        assert_eq!(script.status, Some(0));
        assert!(script.stdout.contains("reading-threads"), "{shell}");
    }
}

#[test]
fn a_log_is_written_to_stderr_where_it_is_asked_for() {
    let model = sharded();
    let path = text(model.folder.path());
    let log = |filter: &str| {
        let mut command = weightlift(["load", path, "--device=host", "--json"]);
        Ran::new(command.env("WEIGHTLIFT_LOG", filter).output().expect("it runs"))
    };
    assert_eq!(log("").stderr, "");
    let ran = log("info");
    assert!(ran.stderr.contains("INFO") && ran.stderr.contains("loaded"), "{}", ran.stderr);
    serde_json::from_str::<serde_json::Value>(&ran.stdout).expect("JSON and nothing else");
    let ran = log("weightlift=loud=er");
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.starts_with("error: ") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
}

#[test]
fn a_name_longer_than_any_column_is_no_reason_to_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let name = "n".repeat(70_000);
    let header =
        format!("{{\"{name}\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}}}");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(b"abcd");
    std::fs::write(&path, file).expect("a file");
    let ran = run(["inspect", text(&path)]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains(&name));
}
