//! stdout: buffered, and its errors are errors, not panics.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

use crate::error::Failure;
use crate::signal::Stop;

/// What a command prints to. Nothing counts as printed before [`finish`](Self::finish).
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// For a command's result. An error if the process is ending and has told so there.
    pub(crate) fn stdout(stop: &Stop) -> Result<Self, Failure> {
        if stop.claim_stdout() { Ok(Self::claimed()) } else { Err(stop.error().into()) }
    }

    /// For whoever has [claimed](Stop::claim_stdout) stdout, and for what is no JSON.
    pub(crate) fn claimed() -> Self {
        Self(BufWriter::with_capacity(1 << 16, io::stdout().lock()))
    }

    /// A line of text.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        writeln!(self.0, "{text}").map_err(Failure::Output)
    }

    /// Text as it is.
    pub(crate) fn text(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        write!(self.0, "{text}").map_err(Failure::Output)
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(Failure::Output)
    }

    /// A value as JSON, without a line's end.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.0, value).map_err(|error| Failure::Output(error.into()))
    }

    /// Hands out all that is still in buffers: a full disk shows here at the latest.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.0.flush().map_err(Failure::Output)
    }
}
