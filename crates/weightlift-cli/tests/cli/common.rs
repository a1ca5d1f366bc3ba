//! Models written by code, and the command run on them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A tensor to be written.
pub struct Spec {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Spec {
    pub fn u8(name: &str, bytes: Vec<u8>) -> Self {
        Self { name: name.to_owned(), dtype: "U8", shape: vec![bytes.len() as u64], bytes }
    }

    pub fn digest(&self) -> String {
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&self.bytes))
    }
}

/// Bytes that differ from one another, and from those of another `seed`.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64)
        .map(|at| ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// The header of a safetensors file, its length before it. Names may hold any character.
pub fn header<'a>(tensors: impl Iterator<Item = (&'a str, &'a str, &'a [u64], u64)>) -> Vec<u8> {
    let mut map = Map::new();
    let mut offset = 0;
    for (name, dtype, shape, length) in tensors {
        let range = [offset, offset + length];
        map.insert(name.to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": range}));
        offset += length;
    }
    let text = Value::Object(map).to_string();
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

pub fn write_safetensors(path: &Path, tensors: &[Spec]) {
    let described =
        tensors.iter().map(|spec| (&*spec.name, spec.dtype, &*spec.shape, spec.bytes.len() as u64));
    let mut file = File::create(path).expect("a file");
    file.write_all(&header(described)).expect("its header");
    tensors.iter().for_each(|spec| file.write_all(&spec.bytes).expect("its data"));
}

/// Two shards with an index: tensors of several dtypes, one of them empty, one with a name that
/// would steer a terminal.
pub struct Sharded {
    pub folder: TempDir,
    pub tensors: Vec<Spec>,
}

pub const NASTY: &str = "evil\u{1b}[31m\nerror: forged";

pub fn sharded() -> Sharded {
    let floats = |name: &str, rows: u64, seed| Spec {
        name: name.to_owned(),
        dtype: "F32",
        shape: vec![rows, 5],
        bytes: pattern(rows as usize * 20, seed),
    };
    let shards = [
        vec![
            floats("model.layers.0.weight", 1000, 1),
            floats("model.empty", 0, 2),
            Spec::u8(NASTY, pattern(33, 3)),
        ],
        vec![floats("model.layers.1.weight", 999, 4), Spec::u8("lm_head", pattern(70_001, 5))],
    ];
    let folder = TempDir::new().expect("a folder");
    let mut map = Map::new();
    for (number, tensors) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", number + 1);
        write_safetensors(&folder.path().join(&name), tensors);
        map.extend(tensors.iter().map(|spec| (spec.name.clone(), json!(name))));
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).expect("an index");
    Sharded { folder, tensors: shards.into_iter().flatten().collect() }
}

/// One file of a tensor without contents: a hole as long as the tensor.
pub fn sparse(length: u64) -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let header = header(std::iter::once(("hole", "U8", &[length][..], length)));
    let mut file = File::create(&path).expect("a file");
    file.write_all(&header).expect("its header");
    file.set_len(header.len() as u64 + length).expect("a hole");
    (folder, path)
}

/// The command, with neither a GPU nor a log from the environment of the tests.
pub fn weightlift<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weightlift"));
    command.args(args).env_remove("WEIGHTLIFT_LOG");
    command
}

/// Runs it to its end.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    Ran::new(weightlift(args).output().expect("the command runs"))
}

#[derive(Debug)]
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self {
            status: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Its stdout as JSON, after a good end without a word on stderr.
    pub fn json(&self) -> Value {
        assert_eq!((self.status, &*self.stderr), (Some(0), ""), "{self:?}");
        serde_json::from_str(&self.stdout).expect("JSON and nothing else")
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
