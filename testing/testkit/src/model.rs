//! Models written by code: safetensors files, shards, the layout of a Hub cache.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use weightlift::index::{Limits, safetensors as format, shards};
use weightlift::{Model, Source};

use crate::{Fault, Faulty, Random};

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Its name; written as it is, so no quotes or control characters.
    pub name: String,
    /// Its dtype, as the format spells it.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its bytes: as many as dtype and shape say.
    pub bytes: Vec<u8>,
}

impl Spec {
    /// A tensor of `length` bytes.
    pub fn u8(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), dtype: "U8", shape: vec![bytes.len() as u64], bytes }
    }

    /// `count` tensors of random lengths up to `longest`, some of them empty, named `t0` on.
    pub fn many(random: &mut Random, count: usize, longest: u64) -> Vec<Self> {
        let spec = |number| {
            let length = if random.below(8) == 0 { 0 } else { random.below(longest + 1) };
            Self::u8(format!("t{number}"), random.bytes(length as usize))
        };
        (0..count).map(spec).collect()
    }
}

/// The JSON header of a file that holds `tensors` one behind the other.
pub fn header(tensors: &[Spec]) -> String {
    let mut text = String::from("{");
    let mut offset = 0;
    for (number, tensor) in tensors.iter().enumerate() {
        let end = offset + tensor.bytes.len();
        let comma = if number == 0 { "" } else { "," };
        write!(
            text,
            "{comma}\"{}\":{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{offset},{end}]}}",
            tensor.name, tensor.dtype, tensor.shape
        )
        .expect("a string takes everything");
        offset = end;
    }
    text.push('}');
    text
}

/// A safetensors file. `padding` spaces follow the header, so that data starts anywhere.
pub fn safetensors(tensors: &[Spec], padding: usize) -> Vec<u8> {
    let mut header = header(tensors);
    header.extend(std::iter::repeat_n(' ', padding));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    tensors.iter().for_each(|tensor| file.extend_from_slice(&tensor.bytes));
    file
}

/// A model on disk, removed when dropped.
#[derive(Debug)]
pub struct Written {
    folder: TempDir,
    path: PathBuf,
    /// All its tensors.
    pub tensors: Vec<Spec>,
}

impl Written {
    /// One file, `model.safetensors`.
    pub fn single(tensors: Vec<Spec>, padding: usize) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let path = folder.path().join("model.safetensors");
        fs::write(&path, safetensors(&tensors, padding)).expect("a file in it");
        Self { folder, path, tensors }
    }

    /// What to load.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that holds everything.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// A model in `shards` files with `model.safetensors.index.json`; tensors go round the shards.
pub fn write_sharded(tensors: Vec<Spec>, shards: usize) -> Written {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().to_owned();
    write_shards(&path, &tensors, shards);
    Written { folder, path, tensors }
}

fn write_shards(folder: &Path, tensors: &[Spec], shards: usize) {
    let mut map = Vec::new();
    for shard in 0..shards {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let own: Vec<Spec> = tensors.iter().skip(shard).step_by(shards).cloned().collect();
        fs::write(folder.join(&name), safetensors(&own, shard % 8)).expect("a shard");
        map.extend(own.iter().map(|tensor| format!("\"{}\":\"{name}\"", tensor.name)));
    }
    let index =
        format!("{{\"metadata\":{{\"total_size\":0}},\"weight_map\":{{{}}}}}", map.join(","));
    fs::write(folder.join("model.safetensors.index.json"), index).expect("the index");
}

/// The same as the Hugging Face Hub caches it: links in `snapshots` to files in `blobs`.
pub fn write_hub_cache(tensors: Vec<Spec>, shards: usize) -> Written {
    let folder = TempDir::new().expect("a temporary folder");
    let repository = folder.path().join("models--org--name");
    let (blobs, path) = (repository.join("blobs"), repository.join("snapshots").join("a1b2c3"));
    fs::create_dir_all(&blobs).expect("blobs");
    fs::create_dir_all(&path).expect("snapshots");
    write_shards(&path, &tensors, shards);
    let files: Vec<_> =
        fs::read_dir(&path).expect("files").map(|entry| entry.expect("one").path()).collect();
    for (number, file) in files.iter().enumerate() {
        let blob = format!("{number:064x}");
        fs::rename(file, blobs.join(&blob)).expect("moved");
        std::os::unix::fs::symlink(Path::new("../../blobs").join(blob), file).expect("linked");
    }
    Written { folder, path, tensors }
}

/// A model whose files are in memory, each read through its own fault.
pub fn in_memory(files: Vec<(Vec<Spec>, Fault)>) -> (Arc<Model>, Vec<Arc<Faulty>>) {
    let limits = Limits::default();
    let (mut headers, mut sources, mut faulty) =
        (Vec::new(), Vec::<Arc<dyn Source>>::new(), Vec::new());
    for (number, (tensors, fault)) in files.into_iter().enumerate() {
        let name = format!("memory-{number}");
        let bytes = safetensors(&tensors, number % 8);
        let length = bytes.len() as u64;
        let first = &bytes[..bytes.len().min(4096)];
        let span = format::header_span(first, length, &limits).expect("a header");
        let json = &bytes[span.start as usize..span.end as usize];
        let header = format::parse_header(json, span.end, length, &limits).expect("a good one");
        headers.push(header.into_index(&name, length).expect("few tensors"));
        let source = Arc::new(Faulty::new(name, bytes, fault));
        faulty.push(source.clone());
        sources.push(source);
    }
    let index = shards::assemble(headers, None).expect("names that differ");
    (Arc::new(Model::from_parts(index, sources).expect("fitting parts")), faulty)
}
