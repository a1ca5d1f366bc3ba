//! The one error type of the library: a kind, named values, a hint, a cause.

use std::fmt;

/// What went wrong, for programs. [`ErrorKind::name`] is what `--json` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model's files are not what they should be; the kind is the index's own.
    Format(weightlift_index::ErrorKind),
    /// An option's value is refused; the earlier value stays.
    InvalidOption,
    /// A combination of device, route and reading threads that does not exist.
    InvalidRoute,
    /// There is no such file or folder.
    FileNotFound,
    /// The operating system does not let us read it.
    PermissionDenied,
    /// A folder, pipe or device where a regular file is needed.
    NotRegular,
    /// Reading failed.
    Io,
    /// A file was truncated, rewritten or replaced while it was read.
    Changed,
    /// No CUDA driver library on this machine.
    NoDriver,
    /// The CUDA driver is older than what is needed.
    DriverTooOld,
    /// The driver is there but shows no device.
    NoDevice,
    /// There is no device of that number.
    InvalidDevice,
    /// CUDA was used before this process was forked.
    Forked,
    /// The CUDA driver answered with an error.
    Cuda,
    /// An earlier error made the CUDA context unusable for the rest of the process.
    Poisoned,
    /// The device has not enough free memory.
    OutOfDeviceMemory,
    /// The host has not enough memory.
    OutOfHostMemory,
    /// Host memory could not be pinned, and the route or `pin_host` asks for that.
    PinFailed,
    /// A file cannot be read past the page cache, and that was asked for.
    DirectIoUnavailable,
    /// A destination given by the caller does not fit its tensor.
    InvalidDestination,
    /// A tensor or a file is not what a manifest, or whoever published it, says.
    Mismatch,
    /// A manifest is none, or one that this version does not read.
    InvalidManifest,
    /// The load was cancelled.
    Cancelled,
    /// A reader thread died. This is a defect of weightlift.
    Internal,
}

impl ErrorKind {
    /// The kind's name, as printed by `--json`; stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Format(kind) => kind.name(),
            Self::InvalidOption => "InvalidOption",
            Self::InvalidRoute => "InvalidRoute",
            Self::FileNotFound => "FileNotFound",
            Self::PermissionDenied => "PermissionDenied",
            Self::NotRegular => "NotRegular",
            Self::Io => "Io",
            Self::Changed => "Changed",
            Self::NoDriver => "NoDriver",
            Self::DriverTooOld => "DriverTooOld",
            Self::NoDevice => "NoDevice",
            Self::InvalidDevice => "InvalidDevice",
            Self::Forked => "Forked",
            Self::Cuda => "Cuda",
            Self::Poisoned => "Poisoned",
            Self::OutOfDeviceMemory => "OutOfDeviceMemory",
            Self::OutOfHostMemory => "OutOfHostMemory",
            Self::PinFailed => "PinFailed",
            Self::DirectIoUnavailable => "DirectIoUnavailable",
            Self::InvalidDestination => "InvalidDestination",
            Self::Mismatch => "Mismatch",
            Self::InvalidManifest => "InvalidManifest",
            Self::Cancelled => "Cancelled",
            Self::Internal => "Internal",
        }
    }
}

/// What went wrong, where, and what to do about it.
///
/// `Display` is one line: the message, then the named values. The hint stands apart,
/// so that a program can leave it out.
///
/// ```
/// use weightlift::{Error, ErrorKind, Options};
/// let mut options = Options::default();
/// let error: Error = options.set("reading_threads", "65").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidOption);
/// assert!(error.context().iter().any(|(name, value)| *name == "value" && value == "65"));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    context: Vec<(&'static str, String)>,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` says what is wrong, in words, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            hint: None,
            source: None,
        }))
    }

    /// Adds a named value.
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((name, value.to_string()));
        self
    }

    /// Says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Names the error below this one.
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// An error of the operating system about the file `path`.
    pub(crate) fn io(error: std::io::Error, doing: &str, path: impl fmt::Display) -> Self {
        let kind = match error.kind() {
            // The second: a file stands where a folder is named.
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                ErrorKind::FileNotFound
            }
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("cannot {doing}"))
            .with("path", path)
            .with("reason", &error)
            .because(error)
    }

    /// The same error for another who waited for the same thing; without the error below it.
    pub(crate) fn repeat(&self) -> Self {
        let Inner { kind, message, context, hint, .. } = &*self.0;
        let (context, hint) = (context.clone(), hint.clone());
        Self(Box::new(Inner { kind: *kind, message: message.clone(), context, hint, source: None }))
    }

    /// What went wrong, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What went wrong, in words, without the named values.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The named values: file, tensor, offset, expected, actual, route, status and so on.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// The value named `name`, if the error has it.
    pub fn value(&self, name: &str) -> Option<&str> {
        let found = self.0.context.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// What to do, if there is something to do.
    pub fn get_hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (index, (name, value)) in self.0.context.iter().enumerate() {
            let lead = if index == 0 { " (" } else { ", " };
            write!(f, "{lead}{name}: {}", OneLine(value))?;
        }
        if self.0.context.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// Names come from files: control characters are shown escaped, so that an error stays one line.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                fmt::Write::write_char(f, character)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.0.kind.name())?;
        match &self.0.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<weightlift_index::Error> for Error {
    fn from(error: weightlift_index::Error) -> Self {
        let kind = match error.kind() {
            weightlift_index::ErrorKind::Io => ErrorKind::Io,
            kind => ErrorKind::Format(kind),
        };
        let mut own = Self::new(kind, error.message());
        own.0.context = error.context().to_vec();
        own.0.hint = error.get_hint().map(str::to_owned);
        own
    }
}

impl From<Error> for std::io::Error {
    /// For whoever takes a reader: an error of the fitting kind that carries this one, which
    /// [`get_ref`](std::io::Error::get_ref) and [`into_inner`](std::io::Error::into_inner) give.
    fn from(error: Error) -> Self {
        use std::io::ErrorKind as Io;
        let below = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
        let kind = match error.kind() {
            ErrorKind::FileNotFound => Io::NotFound,
            ErrorKind::PermissionDenied => Io::PermissionDenied,
            ErrorKind::OutOfHostMemory => Io::OutOfMemory,
            ErrorKind::InvalidOption => Io::InvalidInput,
            ErrorKind::Format(weightlift_index::ErrorKind::Truncated) => Io::UnexpectedEof,
            // Both mean to a caller: the same call again, at once or later. That has been done.
            ErrorKind::Io => match below.map_or(Io::Other, Self::kind) {
                Io::WouldBlock | Io::Interrupted => Io::TimedOut,
                kind => kind,
            },
            _ => Io::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_a_file_calls_its_tensors() {
        let error = Error::new(ErrorKind::Io, "cannot read")
            .with("tensor", "a\nb\u{1b}[31m")
            .with("offset", 8);
        assert_eq!(error.to_string(), "cannot read (tensor: a\\nb\\u{1b}[31m, offset: 8)");
        assert_eq!(error.value("offset"), Some("8"));
    }
}
