//! The command line of weightlift, as a function: a binary and a Python package can call it.
//!
//! Results go to stdout, errors and progress to stderr, and the exit status says how it went:
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done, or whoever read stdout wanted no more |
//! | 1 | the work failed |
//! | 2 | the command line was wrong |
//! | 130 | stopped by Ctrl-C, SIGTERM or SIGHUP |

#![forbid(unsafe_code)]

mod args;
mod bench;
mod demo;
mod doctor;
mod error;
mod files;
mod inspect;
mod load;
mod log;
mod output;
mod plan;
mod signal;
mod text;
mod verify;

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use args::{Arguments, Command};
use error::Failure;
use output::Output;

pub use signal::Stop;

/// Runs the command line `args`, the program's name first, and returns the exit status.
///
/// Never panics and never ends the process; `stop` can end the work early.
///
/// `bench` starts the program again for each of its samples: the file that this process runs.
pub fn run(args: impl IntoIterator<Item = OsString>, stop: &Stop) -> u8 {
    run_by(&[], args, stop)
}

/// As [`run`], for a program that is not started by the file that its process runs, but by
/// `program`, such as `python -m package`; the command line's words come behind it. Empty is the
/// file.
pub fn run_by(program: &[OsString], args: impl IntoIterator<Item = OsString>, stop: &Stop) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let json = error::wants_json(&args);
    stop.begin(json);
    let outcome = Arguments::try_parse_from(&args).map_err(Failure::from).and_then(|arguments| {
        log::start().and_then(|()| dispatch(arguments.command, program, stop))
    });
    match outcome {
        Ok(()) => 0,
        Err(failure) => match stop.claim_stdout() {
            first if first || !failure.is_cancelled() => failure.report(json && first),
            // The thread that ends the process tells it.
            _ => signal::STOPPED,
        },
    }
}

fn dispatch(command: Command, program: &[OsString], stop: &Stop) -> Result<(), Failure> {
    match command {
        Command::Load(options) => load::run(&options, stop),
        Command::Inspect(options) => inspect::run(&options, stop),
        Command::Plan(options) => plan::run(&options, stop),
        Command::Demo(options) => demo::run(&options, stop),
        Command::Doctor(options) => doctor::run(&options, stop),
        Command::Bench(options) => bench::run(&options, program, stop),
        Command::Verify(options) => verify::run(&options, stop),
        Command::BenchPart(part) => bench::run_part(&part, stop),
        Command::Completions { shell } => {
            // Into memory first: clap_complete panics where its writer fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(), "weightlift", &mut script);
            let mut output = Output::stdout(stop)?;
            output.bytes(&script)?;
            output.finish()
        }
    }
}

/// The command without what is hidden, which completions would offer.
fn visible() -> clap::Command {
    let all = Arguments::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    clap::Command::new("weightlift").version(env!("CARGO_PKG_VERSION")).subcommands(shown)
}
