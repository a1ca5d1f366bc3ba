//! What went wrong: one line on stderr, an object on stdout, an exit status.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use weightlift::{Error, ErrorKind};

use crate::output::Output;
use crate::signal::STOPPED;
use crate::text::OneLine;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library's error, or one of its kind.
    Error(Error),
    /// The command line is none, or asks for help.
    Arguments(clap::Error),
    /// stdout takes no more.
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Arguments(error)
    }
}

impl Failure {
    /// Whether the work was stopped from outside.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Error(error) if error.kind() == ErrorKind::Cancelled)
    }

    /// Tells it, and returns the exit status.
    pub(crate) fn report(self, json: bool) -> u8 {
        let told = match self {
            Self::Arguments(error) if !error.use_stderr() => return help(&error),
            // Whoever read the output has seen enough; an error has nobody to be told to.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return 0,
            Self::Arguments(error) => Told::from_arguments(&error),
            Self::Error(error) => Told::from_error(&error),
            Self::Output(error) => Told::from_error(
                &Error::new(ErrorKind::Io, "cannot write to stdout").with("reason", &error),
            ),
        };
        told.tell(json);
        told.status
    }
}

/// Whether errors are wanted as JSON too. Asks the words themselves: they may be no command
/// line that could be parsed.
pub(crate) fn wants_json(args: &[OsString]) -> bool {
    args.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// An error as it is told.
struct Told {
    kind: &'static str,
    message: String,
    context: Vec<(&'static str, String)>,
    hint: Option<String>,
    usage: Option<String>,
    status: u8,
}

impl Told {
    fn from_error(error: &Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidOption | ErrorKind::InvalidRoute => 2,
            ErrorKind::Cancelled => STOPPED,
            _ => 1,
        };
        // The library names the field of its structure; here it is an option.
        let hint = match error.value("option") {
            Some("header_bytes") => Some("raise it with --header-limit if you trust the file"),
            _ => error.get_hint(),
        };
        Self {
            kind: error.kind().name(),
            message: error.message().to_owned(),
            context: error.context().to_vec(),
            hint: hint.map(str::to_owned),
            usage: None,
            status,
        }
    }

    /// clap writes paragraphs: what is wrong, tips, the usage, and where to find help.
    fn from_arguments(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let joined = |paragraph: &str| {
            let lines = paragraph.lines().map(str::trim).filter(|line| !line.is_empty());
            lines.collect::<Vec<_>>().join(" ")
        };
        let (text, usage) = match text.split_once("\nUsage: ") {
            Some((text, usage)) => (text, usage.split("\n\n").next().map(joined)),
            None => (text.split("\nFor more information").next().unwrap_or(text), None),
        };
        let mut paragraphs = text.split("\n\n").map(joined).filter(|text| !text.is_empty());
        let message = paragraphs.next().unwrap_or_else(|| "the command line is wrong".to_owned());
        let tips: Vec<String> = paragraphs.map(|tip| tip.replacen("tip: ", "", 1)).collect();
        Self {
            kind: "InvalidArgument",
            message,
            context: Vec::new(),
            hint: if tips.is_empty() { None } else { Some(tips.join("; ")) },
            usage,
            status: 2,
        }
    }

    /// Nothing can be done where even an error cannot be told.
    fn tell(&self, json: bool) {
        let mut line = format!("error: {}", OneLine(&self.message));
        for (number, (name, value)) in self.context.iter().enumerate() {
            let lead = if number == 0 { " (" } else { ", " };
            line.push_str(&format!("{lead}{name}: {}", OneLine(value)));
        }
        if !self.context.is_empty() {
            line.push(')');
        }
        if let Some(hint) = &self.hint {
            line.push_str(&format!("; {}", OneLine(hint)));
        }
        line.push('\n');
        if let Some(usage) = &self.usage {
            line.push_str(&format!("usage: {}\n", OneLine(usage)));
        }
        let _ = io::stderr().write_all(line.as_bytes());
        if json {
            let mut output = Output::claimed();
            let _ = output.json(&Object { error: self }).and_then(|()| output.line(""));
            let _ = output.finish();
        }
    }
}

/// `{"error": {…}}`.
#[derive(serde::Serialize)]
struct Object<'a> {
    error: &'a Told,
}

impl Serialize for Told {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind)?;
        map.serialize_entry("message", &self.message)?;
        map.serialize_entry("context", &Context(&self.context))?;
        if let Some(hint) = &self.hint {
            map.serialize_entry("hint", hint)?;
        }
        map.end()
    }
}

/// Named values in their order. Of two of one name the first counts, as in the library.
struct Context<'a>(&'a [(&'static str, String)]);

impl Serialize for Context<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seen = HashSet::new();
        let once = self.0.iter().filter(|(name, _)| seen.insert(*name));
        serializer.collect_map(once.map(|(name, value)| (name, value)))
    }
}

/// Help and version go to stdout.
fn help(error: &clap::Error) -> u8 {
    let text = error.render();
    let mut output = Output::claimed();
    let printed =
        if io::stdout().is_terminal() { output.text(text.ansi()) } else { output.text(text) };
    match printed.and_then(|()| output.finish()) {
        Ok(()) => 0,
        Err(failure) => failure.report(false),
    }
}
