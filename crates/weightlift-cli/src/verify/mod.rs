//! `weightlift verify`: what a model's tensors and files are, against what they should be.

mod files;
mod manifest;
mod tensors;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use weightlift::{Error, ErrorKind, FileDigests, Manifest, Model, TensorDigests};

use crate::args;
use crate::error::Failure;
use crate::output::Output;
use crate::signal::{Grace, Stop};
use crate::text::{self, OneLine};

pub(crate) fn run(options: &args::Verify, stop: &Stop) -> Result<(), Failure> {
    let started = Instant::now();
    stop.allow(Grace::Short);
    let model = Arc::new(Model::open(&options.model.path, &options.model.open_options()?)?);
    let place = match &options.manifest {
        Some(place) => place.clone(),
        None => manifest::usual_place(&options.model.path),
    };
    let manifest = match options.write {
        true => None,
        false => manifest::find(&place, options.manifest.is_some())?,
    };
    let mut claims = files::said(&model)?;
    if let Some(manifest) = &manifest {
        let all: Vec<usize> = (0..model.index().tensors.len()).collect();
        manifest.check_tensors(model.index(), &all, true)?;
        for file in &manifest.files {
            if !claims.contains(file) {
                claims.push(file.clone());
            }
        }
    }
    if manifest.is_none() && claims.is_empty() && !options.write {
        return Err(manifest::missing(&place).into());
    }
    let mut wrong = files::compare(&model, &claims, stop)?;
    let mut tensors = Vec::new();
    if manifest.is_some() || options.write {
        tensors = tensors::digests(&model, stop)?;
    }
    if let Some(manifest) = &manifest {
        wrong.extend(differences(manifest, &tensors));
    }
    // What was hashed twice, as a file and as tensors, is to be the same file.
    model.sources().iter().try_for_each(|source| source.check_unchanged())?;

    let mut done = Done {
        schema: 1,
        manifest: (manifest.is_some() || options.write).then_some(&*place),
        written: options.write,
        tensors: tensors.len(),
        bytes: tensors.iter().map(|tensor| tensor.length).sum(),
        files: &claims,
        seconds: 0.0,
    };
    if !wrong.is_empty() {
        if !options.json {
            list(&wrong, stop)?;
        }
        return Err(summary(&wrong).into());
    }
    if options.write {
        let manifest = Manifest::new(tensors, claims.clone());
        // From here on there is a file that would have to be removed.
        stop.allow(Grace::AsLongAsNeeded);
        manifest::write(&manifest, &place)?;
    }
    done.seconds = started.elapsed().as_secs_f64();
    let mut output = Output::stdout(stop)?;
    if options.json {
        output.json(&done)?;
        output.line("")?;
    } else {
        done.print(&mut output, &options.model.path, &place)?;
    }
    output.finish()
}

/// What was compared, all of it as it should be.
#[derive(Serialize)]
struct Done<'a> {
    schema: u32,
    /// The manifest that was compared with, or written; none where there is none.
    manifest: Option<&'a Path>,
    written: bool,
    tensors: usize,
    /// Of the tensors, those that share bytes counted each.
    bytes: u64,
    files: &'a [FileDigests],
    seconds: f64,
}

impl Done<'_> {
    fn print(&self, output: &mut Output, model: &Path, place: &Path) -> Result<(), Failure> {
        for file in self.files {
            let (name, algorithm, by) = (OneLine(&file.name), &file.algorithm, &file.said_by);
            output.line(format_args!("{name}: {algorithm} as {by} says"))?;
        }
        let tensors = text::count(self.tensors as u64, "tensor");
        let bytes = text::bytes(self.bytes);
        let (model, place) = (text::path(model), text::path(place));
        let seconds = text::seconds(self.seconds);
        match (self.manifest, self.written) {
            (Some(_), true) => {
                output.line(format_args!("wrote {place}: {tensors}, {bytes}, in {seconds}"))
            }
            (Some(_), false) => output.line(format_args!(
                "{model} is what {place} says: {tensors}, {bytes}, in {seconds}"
            )),
            (None, _) => output.line(format_args!(
                "no manifest at {place}: tensors were not compared; --write writes one"
            )),
        }
    }
}

/// Something that is not what it should be.
struct Wrong {
    /// `tensor` or `file`.
    what: &'static str,
    name: String,
    digest: String,
    expected: String,
    actual: String,
}

fn differences(manifest: &Manifest, found: &[TensorDigests]) -> Vec<Wrong> {
    let by_name = manifest.by_name();
    let mut wrong = Vec::new();
    for found in found {
        // That it is there, of this type and shape, is known already.
        let Some(expected) = by_name.get(&*found.name) else { continue };
        let digests = [("xxh3", expected.xxh3, found.xxh3), ("tree", expected.tree, found.tree)];
        if let Some((digest, expected, actual)) = digests.iter().find(|(_, a, b)| a != b) {
            wrong.push(Wrong {
                what: "tensor",
                name: found.name.clone(),
                digest: (*digest).to_owned(),
                expected: format!("{expected:016x}"),
                actual: format!("{actual:016x}"),
            });
        }
    }
    wrong
}

fn list(wrong: &[Wrong], stop: &Stop) -> Result<(), Failure> {
    let mut output = Output::stdout(stop)?;
    for wrong in wrong {
        let Wrong { what, name, digest, expected, actual } = wrong;
        output.line(format_args!(
            "{what} {}: {digest} is {}, not {}",
            OneLine(name),
            OneLine(actual),
            OneLine(expected),
        ))?;
    }
    output.finish()
}

/// The first of what is wrong, and the names of all others.
fn summary(wrong: &[Wrong]) -> Error {
    let first = &wrong[0];
    let error = Error::new(ErrorKind::Mismatch, "the model is not what it should be")
        .with(first.what, &first.name)
        .with("digest", &first.digest)
        .with("expected", &first.expected)
        .with("actual", &first.actual)
        .with("differences", wrong.len());
    let others: Vec<&str> = wrong[1..].iter().map(|wrong| &*wrong.name).collect();
    let error = if others.is_empty() { error } else { error.with("others", others.join(", ")) };
    error.hint("fetch its files again, or write another manifest if the change is wanted")
}
