//! `weightlift bench`: routes, states of the page cache and numbers of reading threads, measured so
//! that a sceptic can believe it.
//!
//! Every sample is a process of its own, and so the first load of one. Before it the page cache is
//! brought into the state that the sample is named after, and the kernel is asked whether it is;
//! after it every tensor is compared with an independent read, and the way that bytes took with the
//! one asked for. In each round all combinations take their turn, in another order, and the limits
//! of disk, cache and bus among them.

mod args;
mod ceilings;
mod cells;
mod expected;
mod html;
mod machine;
mod part;
mod process;
mod results;
mod sample;
mod state;
mod statistics;
mod table;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use weightlift::index::Format;
use weightlift::{Error, ErrorKind, Model, RouteChoice};

use crate::error::Failure;
use crate::output::Output;
use crate::signal::{Grace, Stop};
use crate::text;

pub(crate) use args::{Bench, Part};
pub(crate) use expected::files;
pub(crate) use part::run as run_part;
pub(crate) use process::HIDDEN;

use ceilings::Measuring;
use cells::Asked;
use process::Failed;
use results::{FileFacts, ModelFacts, Results, Settings};
use sample::Sampler;
use state::State;

pub(crate) fn run(options: &Bench, program: &[OsString], stop: &Stop) -> Result<(), Failure> {
    let shared = options.options()?;
    let (states, threads, routes) = (options.states()?, options.threads()?, options.routes()?);
    let open = options.model.open_options()?;
    let program = itself(program)?;
    // From here on there are processes to be ended and samples to be kept.
    stop.allow(Grace::AsLongAsNeeded);

    // What cannot be had is better told before an hour of measuring than after it.
    if let Some(path) = &options.html {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| results::cannot("write", path, error))?;
    }
    let model = Model::open(&options.model.path, &open)?;
    let files = expected::files(&model)?;
    if model.index().bytes() == 0 {
        return Err(Error::new(ErrorKind::InvalidOption, "the model has no bytes to be loaded")
            .with("path", model.path().display())
            .into());
    }
    for &state in &states {
        say(format_args!("{state}: can the page cache be brought there?"));
        state::bring(&files, state, stop)?;
    }
    say(format_args!("reading {} to compare with …", text::bytes(model.index().bytes())));
    let digests = expected::digests(&model, stop)?;
    let cuda = match &routes {
        Some(routes) if routes.iter().all(|route| is_host(*route)) => None,
        _ => machine::cuda(&program, shared.device, stop).map_err(|failed| error(failed, stop))?,
    };
    let routes = routes.unwrap_or_else(|| default_routes(cuda.is_some()));
    let (asked, left_out) = cells::all(&routes, &states, &threads, shared.device, cuda.is_some());
    let mut results = Results::new(
        model_facts(&model, &files, expected::of_all(&model, &digests)),
        machine::of(&files, cuda)?,
        Settings {
            routes: names(&routes),
            states: names(&states),
            reading_threads: names(&threads),
            samples: options.samples,
            options: shared.to_string(),
            command: options.command(),
        },
    );
    if let Some(path) = &options.resume {
        results = results.take_up(path)?;
    }
    results.left_out = left_out;
    if let Some(path) = &options.resume {
        results.save(path)?;
    }

    let sampler = Sampler {
        program: &program,
        words: options.again(),
        model: &model,
        files: &files,
        digests: &digests,
        stop,
    };
    let machine = results.machine.clone();
    let bytes = results.model.bytes;
    let measuring = Measuring { program: &program, files: &files, machine: &machine, bytes, stop };
    let measuring = (!options.no_ceilings).then_some(&measuring);
    let ended = measure(options, &asked, &states, &sampler, measuring, &mut results)?;
    results.interrupted = ended.is_err();
    results.summarise();

    // What was measured is kept, whatever ended the run.
    if let Some(path) = &options.resume {
        results.save(path)?;
    }
    if let Some(path) = &options.html {
        std::fs::write(path, html::page(&results))
            .map_err(|error| results::cannot("write", path, error))?;
    }
    let mut output = Output::stdout(stop)?;
    if options.json {
        output.json(&results)?;
        output.line("")?;
    } else {
        table::print(&mut output, &results)?;
    }
    output.finish()?;
    verdict(&results, &asked, options.samples, stop)
}

/// Takes the samples that are not there. Inside, an error that stopped the run early.
fn measure(
    options: &Bench,
    asked: &[Asked],
    states: &[State],
    sampler: &Sampler<'_>,
    measuring: Option<&Measuring<'_>>,
    results: &mut Results,
) -> Result<Result<(), Failed>, Error> {
    let missing = |results: &Results, round| {
        asked.iter().filter(|asked| !results.has(&asked.cell(), round)).count()
    };
    let all: usize = (1..=options.samples).map(|round| missing(results, round)).sum();
    if all == 0 {
        return Ok(Ok(()));
    }
    let keep = |results: &mut Results| match &options.resume {
        Some(path) => {
            results.interrupted = true;
            results.summarise();
            results.save(path)
        }
        None => Ok(()),
    };
    // The first start of a program and of a driver reads them from the disk: once for each route.
    for asked in first_of_each_route(asked) {
        say(format_args!("{}: to warm up", asked.cell().name()));
        match sampler.take(asked, 0) {
            Ok(sample) => results.add(sample),
            Err(failed) => return Ok(Err(failed)),
        }
    }
    if let Some(measuring) = measuring {
        let say = |what: &str| say(format_args!("{what}"));
        if let Err(failed) = measuring.find(states, &mut results.ceilings, &say) {
            return Ok(Err(failed));
        }
        keep(results)?;
    }
    let mut done = 0;
    for round in 1..=options.samples {
        if missing(results, round) == 0 {
            continue;
        }
        let ceilings = if measuring.is_some() { results.ceilings.len() } else { 0 };
        for turn in cells::shuffled(asked.len() + ceilings) {
            let Some(asked) = asked.get(turn) else {
                let at = turn - asked.len();
                if let Some(measuring) = measuring
                    && let Err(failed) = measure_ceiling(measuring, round, at, results)
                {
                    return Ok(Err(failed));
                }
                continue;
            };
            if results.has(&asked.cell(), round) {
                continue;
            }
            done += 1;
            say(format_args!("{done} of {all}: {}", asked.cell().name()));
            match sampler.take(asked, round) {
                Ok(sample) => results.add(sample),
                Err(failed) => return Ok(Err(failed)),
            }
            keep(results)?;
        }
    }
    Ok(Ok(()))
}

/// A round's sample of a ceiling, unless it is there. One that cannot be had is told in the results.
fn measure_ceiling(
    measuring: &Measuring<'_>,
    round: u32,
    at: usize,
    results: &mut Results,
) -> Result<(), Failed> {
    let ceiling = &mut results.ceilings[at];
    if ceiling.unavailable.is_some() || ceiling.samples.len() >= round as usize {
        return Ok(());
    }
    say(format_args!("{}", ceiling.kind.name()));
    match measuring.sample(ceiling, u64::MAX) {
        Ok(rate) => ceiling.samples.push(rate),
        Err(Failed::Stopped) => return Err(Failed::Stopped),
        Err(Failed::Error { text, .. }) => ceiling.unavailable = Some(text),
    }
    Ok(())
}

fn first_of_each_route(asked: &[Asked]) -> impl Iterator<Item = &Asked> {
    let first = |at: usize| !asked[..at].iter().any(|earlier| earlier.route == asked[at].route);
    asked.iter().enumerate().filter(move |(at, _)| first(*at)).map(|(_, asked)| asked)
}

/// An error if the run was stopped, or if a sample of it failed.
fn verdict(results: &Results, asked: &[Asked], rounds: u32, stop: &Stop) -> Result<(), Failure> {
    if results.interrupted {
        let all = asked.len() * rounds as usize;
        let taken = results.samples.iter().filter(|sample| sample.round > 0).count();
        // The results are on stdout already, so that nobody else says it.
        let line = format!("error: the run was stopped; {taken} of {all} samples are kept\n");
        let _ = io::stderr().write_all(line.as_bytes());
        return Err(stop.error().into());
    }
    let failed: Vec<_> = results.failed().collect();
    let Some((cell, error)) = failed.first() else { return Ok(()) };
    Err(Error::new(ErrorKind::Io, format!("{} failed", text::count(failed.len() as u64, "sample")))
        .with("first", cell.name())
        .with("reason", error)
        .hint("the results name them all; with --resume only they are taken again")
        .into())
}

fn is_host(route: RouteChoice) -> bool {
    route == RouteChoice::Forced(weightlift::Route::Host)
}

fn default_routes(cuda: bool) -> Vec<RouteChoice> {
    use weightlift::Route::{Host, Pageable, Pinned};
    let routes: &[_] = if cuda { &[Pinned, Pageable, Host] } else { &[Host] };
    routes.iter().map(|route| RouteChoice::Forced(*route)).collect()
}

fn names(values: &[impl ToString]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// The program that samples are started by.
fn itself(program: &[OsString]) -> Result<Vec<OsString>, Error> {
    if !program.is_empty() {
        return Ok(program.to_vec());
    }
    let file = std::env::current_exe().map_err(|error| {
        Error::new(ErrorKind::Io, "cannot tell which file this program is")
            .with("reason", &error)
            .because(error)
    })?;
    Ok(vec![file.into()])
}

fn model_facts(model: &Model, files: &[impl AsRef<Path>], digest: String) -> ModelFacts {
    let file = |path: &Path| FileFacts {
        path: text::path(path),
        length: std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
    };
    ModelFacts {
        path: text::path(
            &std::path::absolute(model.path()).unwrap_or_else(|_| model.path().to_owned()),
        ),
        format: model.index().format.map_or("none", Format::name).to_owned(),
        tensors: model.index().tensors.len() as u64,
        bytes: model.index().bytes(),
        files: files.iter().map(|path| file(path.as_ref())).collect(),
        digest,
    }
}

fn error(failed: Failed, stop: &Stop) -> Error {
    match failed {
        Failed::Stopped => stop.error(),
        Failed::Error { kind, text } => {
            Error::new(ErrorKind::Cuda, "the CUDA device cannot be asked")
                .with("kind", kind)
                .with("reason", text)
                .hint("--device host measures without it")
        }
    }
}

/// What is going on, for whoever sits before the terminal.
fn say(what: std::fmt::Arguments<'_>) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "{what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing of it is measured: what the table and the page are tried with.
    #[test]
    fn a_failed_sample_is_a_failed_run() {
        let mut results = html::tests::results(1, 1);
        let stop = Stop::new();
        assert!(verdict(&results, &[], 3, &stop).is_ok());
        results.samples[0].outcome =
            results::Outcome::Failed { kind: "Io".to_owned(), error: "no state".to_owned() };
        let failure = verdict(&results, &[], 3, &stop).unwrap_err();
        assert!(!failure.is_cancelled());
        results.interrupted = true;
        assert!(verdict(&results, &[], 3, &stop).unwrap_err().is_cancelled());
    }
}
