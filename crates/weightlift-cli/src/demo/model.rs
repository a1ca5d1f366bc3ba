//! A model made by a rule: shards, an index, several dtypes, tensors of all sizes and of none.
//! The same size makes the same model, to the byte.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, json};
use tempfile::TempDir;
use weightlift::{Error, ErrorKind};
use xxhash_rust::xxh3::Xxh3;

use crate::signal::Stop;

/// Files of the model.
const SHARDS: usize = 4;

/// A model on disk, removed when dropped.
#[derive(Debug)]
pub(super) struct Made {
    folder: TempDir,
    files: Vec<PathBuf>,
    digests: HashMap<String, u64>,
    bytes: u64,
}

/// Writes a model of about `size` bytes into a temporary folder.
pub(super) fn make(size: u64, stop: &Stop) -> Result<Made, Error> {
    let shards = shards(size);
    let bytes: u64 = shards.iter().flatten().map(|spec| spec.length).sum();
    let parent = std::env::temp_dir();
    // Headers are small beside 1 MiB.
    check_free(&parent, bytes.saturating_add(1 << 20))?;
    check_memory(bytes)?;
    let folder = tempfile::Builder::new()
        .prefix("weightlift-demo-")
        .tempdir_in(&parent)
        .map_err(|error| failed("cannot make a temporary folder", &parent, error))?;
    let mut made = Made { folder, files: Vec::new(), digests: HashMap::new(), bytes };
    let mut map = Map::new();
    for (number, specs) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{SHARDS:05}.safetensors", number + 1);
        let path = made.folder().join(&name);
        made.digests.extend(write_shard(&path, specs, stop)?);
        map.extend(specs.iter().map(|spec| (spec.name.clone(), json!(name))));
        made.files.push(path);
    }
    let index = json!({ "metadata": { "total_size": bytes }, "weight_map": map }).to_string();
    let path = made.folder().join("model.safetensors.index.json");
    std::fs::write(&path, index).map_err(|error| failed("cannot write a file", &path, error))?;
    Ok(made)
}

impl Made {
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The files that hold tensors.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The XXH3-64 of every tensor, as it was written.
    pub(super) fn digests(&self) -> &HashMap<String, u64> {
        &self.digests
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes the files, or keeps them and says where.
    pub(super) fn end(self, keep: bool) -> Result<Option<PathBuf>, Error> {
        if keep {
            return Ok(Some(self.folder.keep()));
        }
        let path = self.folder.path().to_owned();
        self.folder
            .close()
            .map_err(|error| failed("cannot remove the temporary folder", &path, error))?;
        Ok(None)
    }
}

/// A tensor to be written.
struct Spec {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    length: u64,
}

impl Spec {
    fn new(name: String, dtype: &'static str, shape: &[u64]) -> Self {
        let element = match dtype {
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let length = shape.iter().product::<u64>().saturating_mul(element);
        Self { name, dtype, shape: shape.to_vec(), length }
    }
}

/// The tensors of every file: layers of four large tensors and two small ones; beside them one
/// without elements, a scalar, and one of an odd length, after which nothing is aligned.
fn shards(size: u64) -> Vec<Vec<Spec>> {
    let layers = (size >> 25).clamp(SHARDS as u64, 256);
    // An eighth of a layer, in rows of 64 elements of the largest type.
    let unit = size / layers / 8 / 256 * 256;
    let mut shards: Vec<Vec<Spec>> = (0..SHARDS).map(|_| Vec::new()).collect();
    shards[0].push(Spec::new("model.scale".to_owned(), "F32", &[]));
    shards[0].push(Spec::new("model.unused".to_owned(), "F32", &[0, 64]));
    for layer in 0..layers {
        let specs = &mut shards[(layer * SHARDS as u64 / layers) as usize];
        let name = |what: &str| format!("model.layers.{layer}.{what}");
        specs.push(Spec::new(name("norm.weight"), "F32", &[64]));
        specs.push(Spec::new(name("mlp.up.weight"), "BF16", &[unit / 64, 64]));
        specs.push(Spec::new(name("mlp.bias"), "I8", &[layer % 7 + 1]));
        specs.push(Spec::new(name("mlp.down.weight"), "BF16", &[unit / 64, 64]));
        specs.push(Spec::new(name("attention.weight"), "F32", &[unit / 256 * 2, 64]));
        specs.push(Spec::new(name("quantised.weight"), "I8", &[unit / 64 * 2, 64]));
    }
    shards
}

/// Writes a file and returns the digests of its tensors.
fn write_shard(path: &Path, specs: &[Spec], stop: &Stop) -> Result<Vec<(String, u64)>, Error> {
    let cannot = |error| failed("cannot write a file", path, error);
    let file = File::create_new(path).map_err(cannot)?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let header = header(specs);
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(cannot)?;
    file.write_all(header.as_bytes()).map_err(cannot)?;
    let mut digests = Vec::with_capacity(specs.len());
    let mut buffer = vec![0; 1 << 18];
    for spec in specs {
        let mut hasher = Xxh3::new();
        let mut random = Random::new(&spec.name);
        let mut left = spec.length;
        while left > 0 {
            stop.check()?;
            let part = &mut buffer[..left.min(1 << 18) as usize];
            random.fill(part);
            hasher.update(part);
            file.write_all(part).map_err(cannot)?;
            left -= part.len() as u64;
        }
        digests.push((spec.name.clone(), hasher.digest()));
    }
    file.flush().map_err(cannot)?;
    Ok(digests)
}

/// The JSON that says where each tensor lies, filled up with spaces to whole 8 bytes.
fn header(specs: &[Spec]) -> String {
    let mut map = Map::new();
    let mut offset = 0;
    for spec in specs {
        let end = offset + spec.length;
        let entry =
            json!({ "dtype": spec.dtype, "shape": spec.shape, "data_offsets": [offset, end] });
        map.insert(spec.name.clone(), entry);
        offset = end;
    }
    let mut text = serde_json::Value::Object(map).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    text
}

/// SplitMix64, started by a name.
struct Random(u64);

impl Random {
    fn new(name: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let length = chunk.len();
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..length]);
        }
    }
}

/// An error unless the disk has room, before it is filled and others fail on it.
fn check_free(folder: &Path, needed: u64) -> Result<(), Error> {
    let found = rustix::fs::statvfs(folder).map_err(|error| {
        failed("cannot use the folder for temporary files", folder, error.into())
    })?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free < needed {
        return Err(Error::new(ErrorKind::Io, "the disk is too full for the demo's model")
            .with("path", folder.display())
            .with("needed", needed)
            .with("free", free)
            .hint("take a smaller --size, or another folder by the variable TMPDIR"));
    }
    Ok(())
}

/// An error unless the model fits the memory: a process that the kernel ends for want of it
/// removes no files. Where the kernel does not say how much there is, the loads find out.
fn check_memory(needed: u64) -> Result<(), Error> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    match kib.map(|kib| kib.saturating_mul(1024)) {
        Some(free) if free < needed => {
            let message = "there is not enough memory for the demo's model";
            Err(Error::new(ErrorKind::OutOfHostMemory, message)
                .with("needed", needed)
                .with("free", free)
                .hint("take a smaller --size"))
        }
        _ => Ok(()),
    }
}

/// An error of the operating system about `path`, in the library's words.
pub(super) fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::FileNotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Io,
    };
    Error::new(kind, what).with("path", path.display()).with("reason", &error).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_makes_a_model_of_about_that_size() {
        for size in [64 << 10, 100_000, 8 << 20, 1 << 30, 3 << 30, 1 << 40, u64::MAX] {
            let shards = shards(size);
            assert!(shards.len() == SHARDS && shards.iter().all(|specs| !specs.is_empty()));
            let bytes: u64 = shards.iter().flatten().map(|spec| spec.length).sum();
            assert!(bytes.abs_diff(size) <= size / 5, "{size}: {bytes}");
        }
    }

    #[test]
    fn bytes_depend_on_the_name_alone() {
        let (mut whole, mut parts) = (vec![0; 64], vec![0; 64]);
        Random::new("a").fill(&mut whole);
        let mut random = Random::new("a");
        parts.chunks_mut(16).for_each(|part| random.fill(part));
        assert_eq!(whole, parts);
        Random::new("b").fill(&mut parts);
        assert_ne!(whole, parts);
    }
}
