//! The command `weightlift`; what it does stands in the library of this crate.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use weightlift_cli::Stop;

fn main() -> ExitCode {
    ExitCode::from(weightlift_cli::run(std::env::args_os(), &Stop::on_signals()))
}
