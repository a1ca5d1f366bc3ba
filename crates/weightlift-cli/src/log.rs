//! `WEIGHTLIFT_LOG`: what the library traces, on stderr. Off unless asked for.

use tracing_subscriber::EnvFilter;
use weightlift::{Error, ErrorKind};

use crate::error::Failure;

const VARIABLE: &str = "WEIGHTLIFT_LOG";

/// Starts logging where the environment asks for it: `info`, `weightlift=debug` and so on.
pub(crate) fn start() -> Result<(), Failure> {
    let Some(wanted) = std::env::var_os(VARIABLE).filter(|wanted| !wanted.is_empty()) else {
        return Ok(());
    };
    let wanted = wanted.to_string_lossy();
    let filter = EnvFilter::builder().parse(&wanted).map_err(|error| {
        Error::new(ErrorKind::InvalidOption, "a value is refused for a variable")
            .with("option", VARIABLE)
            .with("value", &wanted)
            .with("reason", error)
            .hint("take `info`, `debug` or `trace`, or directives such as `weightlift=debug`")
    })?;
    // Where a log is set up already, as in a program that calls us, that one stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // Otherwise a closed stderr would be told of on stderr, which panics.
        .log_internal_errors(false)
        .try_init();
    Ok(())
}
