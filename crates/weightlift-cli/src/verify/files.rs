//! What others say of a model's files, and whether it is so.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha1::Sha1;
use sha2::{Digest, Sha256};
use weightlift::{Error, ErrorKind, FileDigests, Model, Source};

use super::Wrong;
use crate::files::path_of;
use crate::signal::Stop;

const SHA256: &str = "sha256";
const SHA1: &str = "sha1";
/// Of git's name for a file's bytes: a header before them.
const GIT_SHA1: &str = "git-sha1";

/// Bytes of a read.
const READ: usize = 1 << 20;

/// What is said of the model's files: by the Hugging Face Hub, whose cache calls a file by its
/// SHA-256, or, if it is none of Git LFS's, by git's SHA-1; and by an ONNX model of its external
/// data.
pub(super) fn said(model: &Model) -> Result<Vec<FileDigests>, Error> {
    let mut said: Vec<FileDigests> = Vec::new();
    for (source, info) in model.sources().iter().zip(&model.index().sources) {
        let mut say = |algorithm: &str, digest: String, by: &str| {
            let claim = FileDigests {
                name: source.name().to_owned(),
                length: source.length(),
                algorithm: algorithm.to_owned(),
                digest,
                said_by: by.to_owned(),
            };
            if !said.contains(&claim) {
                said.push(claim);
            }
        };
        if info.decoded.is_some() {
            continue;
        }
        if let Some(path) = path_of(&**source)?
            && let Some((algorithm, digest)) = name_of_blob(&path)
        {
            say(algorithm, digest, "hub");
        }
        for checksum in &info.checksums {
            say(SHA1, checksum.to_ascii_lowercase(), "onnx");
        }
    }
    Ok(said)
}

/// The digest that a file of a Hub cache goes by: `blobs/` and a SHA-256 or git's SHA-1.
fn name_of_blob(path: &Path) -> Option<(&'static str, String)> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent()?.file_name()?;
    let digits = name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match name.len() {
        64 if digits && folder == OsStr::new("blobs") => Some((SHA256, name.to_owned())),
        40 if digits && folder == OsStr::new("blobs") => Some((GIT_SHA1, name.to_owned())),
        _ => None,
    }
}

/// What of that is not so. Each file is read once, several at the same time.
pub(super) fn compare(
    model: &Model,
    claims: &[FileDigests],
    stop: &Stop,
) -> Result<Vec<Wrong>, Error> {
    let mut names: Vec<&str> = claims.iter().map(|claim| &*claim.name).collect();
    names.sort_unstable();
    names.dedup();
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<Wrong>, Error> {
        let mut wrong = Vec::new();
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let claims = claims.iter().filter(|claim| claim.name == *name);
            wrong.extend(compare_file(model, name, &claims.collect::<Vec<_>>(), stop)?);
        }
        Ok(wrong)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let others = 1..threads.min(names.len());
        let others: Vec<_> = others.map(|_| scope.spawn(work)).collect();
        let mut wrong = work()?;
        for other in others {
            let died = |_| Error::new(ErrorKind::Internal, "a thread died that read a file");
            wrong.extend(other.join().map_err(died)??);
        }
        wrong.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(wrong)
    })
}

fn compare_file(
    model: &Model,
    name: &str,
    claims: &[&FileDigests],
    stop: &Stop,
) -> Result<Vec<Wrong>, Error> {
    let sources = model.sources().iter().zip(&model.index().sources);
    let mut files = sources.filter(|(_, info)| info.decoded.is_none());
    let Some((source, _)) = files.find(|(source, _)| source.name() == name) else {
        let wrong = |claim: &&FileDigests| Wrong::file(claim, "no such file".to_owned());
        return Ok(claims.iter().map(wrong).collect());
    };
    let has = |algorithm| claims.iter().any(|claim| claim.algorithm == algorithm);
    let mut sha256 = has(SHA256).then(Sha256::new);
    let mut sha1 = has(SHA1).then(Sha1::new);
    let mut git = has(GIT_SHA1).then(Sha1::new);
    if let Some(git) = &mut git {
        git.update(format!("blob {}\0", source.length()));
    }
    each_part(&**source, stop, &mut |part| {
        sha256.iter_mut().for_each(|hasher| hasher.update(part));
        sha1.iter_mut().for_each(|hasher| hasher.update(part));
        git.iter_mut().for_each(|hasher| hasher.update(part));
    })?;
    let found = [
        (SHA256, sha256.map(|hasher| hexadecimal(&hasher.finalize()))),
        (SHA1, sha1.map(|hasher| hexadecimal(&hasher.finalize()))),
        (GIT_SHA1, git.map(|hasher| hexadecimal(&hasher.finalize()))),
    ];
    let mut wrong = Vec::new();
    for claim in claims {
        let found = found.iter().find(|(algorithm, _)| *algorithm == claim.algorithm);
        match found.and_then(|(_, digest)| digest.as_ref()) {
            Some(digest) if *digest == claim.digest => {}
            Some(digest) => wrong.push(Wrong::file(claim, digest.clone())),
            // No silence about what cannot be compared.
            None => wrong.push(Wrong::file(claim, "not known to this version".to_owned())),
        }
    }
    Ok(wrong)
}

impl Wrong {
    fn file(claim: &FileDigests, actual: String) -> Self {
        Self {
            what: "file",
            name: claim.name.clone(),
            digest: claim.algorithm.clone(),
            expected: claim.digest.clone(),
            actual,
        }
    }
}

fn each_part(source: &dyn Source, stop: &Stop, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
    let cannot = |error: io::Error| {
        Error::new(ErrorKind::Io, "cannot read a file")
            .with("file", source.name())
            .with("reason", &error)
            .because(error)
    };
    let open = source.open()?;
    let mut buffer = vec![0; READ];
    let mut done = 0;
    while done < source.length() {
        stop.check()?;
        let part = READ.min((source.length() - done) as usize);
        match open.read_at(&mut [IoSliceMut::new(&mut buffer[..part])], done) {
            Ok(0) => return Err(cannot(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                take(&buffer[..count]);
                done += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot(error)),
        }
    }
    Ok(())
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blobs_of_a_hub_cache_have_digests_for_names() {
        let (long, short) = ("ab".repeat(32), "ab".repeat(20));
        let name = |path: String| name_of_blob(Path::new(&path)).map(|(algorithm, _)| algorithm);
        assert_eq!(name(format!("/c/models--a--b/blobs/{long}")), Some(SHA256));
        assert_eq!(name(format!("/c/models--a--b/blobs/{short}")), Some(GIT_SHA1));
        assert_eq!(name(format!("/c/blob/{long}")), None);
        assert_eq!(name(format!("/c/blobs/{}", long.to_uppercase())), None);
        assert_eq!(name(format!("/c/blobs/{long}0")), None);
        assert_eq!(name("/".to_owned()), None);
    }
}
