//! What should be in memory after a load: every tensor's digest, by reads of our own that no part
//! of the engine has to do with but the index.

use std::io::{self, IoSliceMut};
use std::path::PathBuf;

use weightlift::index::TensorInfo;
use weightlift::{Error, ErrorKind, Model, OpenSource};
use xxhash_rust::xxh3::Xxh3;

use crate::files::path_of;
use crate::signal::Stop;

/// Bytes of a read.
const READ: usize = 1 << 20;

/// The XXH3-64 of every tensor, in the index's order.
pub(super) fn digests(model: &Model, stop: &Stop) -> Result<Vec<u64>, Error> {
    let mut opened: Vec<Option<Box<dyn OpenSource>>> = Vec::new();
    opened.resize_with(model.sources().len(), || None);
    let mut digests = Vec::with_capacity(model.index().tensors.len());
    for tensor in &model.index().tensors {
        let storage = &model.index().storages[tensor.storage.0 as usize];
        let source = storage.source.0 as usize;
        if opened[source].is_none() {
            // One at a time is open: models have hundreds of files.
            opened.iter_mut().for_each(|earlier| *earlier = None);
            opened[source] = Some(model.sources()[source].open()?);
        }
        let Some(open) = &opened[source] else { continue };
        let name = model.sources()[source].name();
        let cannot = |error: io::Error| {
            Error::new(ErrorKind::Io, "cannot read a tensor to compare with")
                .with("file", name)
                .with("tensor", &tensor.name)
                .with("reason", &error)
                .because(error)
        };
        let begin = storage.offset + tensor.offset;
        let mut hasher = Xxh3::new();
        if tensor.strides.is_some() {
            // Few and small as a rule: views.
            let mut bytes = Vec::new();
            each_part(&**open, begin, tensor.length, stop, &mut |part| {
                bytes.extend_from_slice(part)
            })?
            .map_err(cannot)?;
            gather(tensor, &bytes, &mut hasher);
        } else {
            each_part(&**open, begin, tensor.length, stop, &mut |part| hasher.update(part))?
                .map_err(cannot)?;
        }
        digests.push(hasher.digest());
    }
    Ok(digests)
}

fn each_part(
    open: &dyn OpenSource,
    begin: u64,
    length: u64,
    stop: &Stop,
    take: &mut dyn FnMut(&[u8]),
) -> Result<io::Result<()>, Error> {
    let mut buffer = vec![0; READ.min(length as usize)];
    let mut done = 0;
    while done < length {
        stop.check()?;
        let part = buffer.len().min((length - done) as usize);
        match open.read_at(&mut [IoSliceMut::new(&mut buffer[..part])], begin + done) {
            Ok(0) => return Ok(Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                take(&buffer[..count]);
                done += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}

/// The elements of a tensor with strides, in row-major order.
fn gather(tensor: &TensorInfo, bytes: &[u8], hasher: &mut Xxh3) {
    let strides = tensor.strides.as_deref().unwrap_or_default();
    let size = tensor.dtype.layout().map_or(1, |layout| layout.bytes as usize);
    let count: u64 = tensor.shape.iter().product();
    for number in 0..count {
        let (mut rest, mut position) = (number, 0);
        for (length, stride) in tensor.shape.iter().zip(strides).rev() {
            position += rest % length * stride.unsigned_abs();
            rest /= length;
        }
        let start = position as usize * size;
        hasher.update(bytes.get(start..start + size).unwrap_or_default());
    }
}

/// One digest of them all, with the names: it tells models apart.
pub(super) fn of_all(model: &Model, digests: &[u64]) -> String {
    let mut hasher = Xxh3::new();
    for (tensor, digest) in model.index().tensors.iter().zip(digests) {
        hasher.update(tensor.name.as_bytes());
        hasher.update(&digest.to_le_bytes());
    }
    format!("{:016x}", hasher.digest())
}

/// The files that the model's bytes lie in, links resolved.
pub(crate) fn files(model: &Model) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for source in model.sources().iter() {
        let Some(path) = path_of(&**source)? else { continue };
        if !files.contains(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

/// What is not as it should be: the first tensor whose digest differs.
pub(super) fn compare(model: &Model, expected: &[u64], found: &[String]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} tensors came, {} are in the model", found.len(), expected.len()));
    }
    for (number, (expected, found)) in expected.iter().zip(found).enumerate() {
        let expected = format!("{expected:016x}");
        if expected != *found {
            let name = model.index().tensors.get(number).map_or("", |tensor| &tensor.name);
            return Err(format!("tensor {name} came as {found}, and should be {expected}"));
        }
    }
    Ok(())
}
