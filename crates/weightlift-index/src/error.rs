//! The one error type of the crate.

use std::error::Error as StdError;
use std::fmt;

/// What is wrong with a model, where, and what can be done about it.
///
/// An error is a [kind](ErrorKind), a message, an ordered list of named values and perhaps a hint
/// and a source. The names of the values are part of the interface; these are in use:
///
/// | name | value |
/// |---|---|
/// | `tensor`, `other` | names of tensors |
/// | `file`, `other_file` | names of files, as the model spells them |
/// | `files`, `shards`, `near` | lists of names, joined by `, ` |
/// | `dtype`, `shape` | as the file writes them |
/// | `offset`, `other_offset` | where a range begins, or `begin..end`, in bytes |
/// | `expected`, `actual` | what had to be there and what is there |
/// | `bytes`, `count`, `of` | amounts |
/// | `limit`, `option` | the value of a limit and the field of [`Limits`](crate::Limits) that sets it |
/// | `key` | a key of a JSON object |
/// | `line`, `column` | a place in JSON text, both counted from 1 |
/// | `path`, `reason` | a refused path and why |
/// | `found` | what a file is instead of what it should be |
///
/// It displays as one line, whatever characters the named values hold; the hint is apart.
pub struct Error(Box<Inner>);

// Boxed, so that a `Result` stays as small as what it carries when all is well.
struct Inner {
    kind: ErrorKind,
    message: String,
    context: Vec<(&'static str, String)>,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a message, which should be one sentence without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            hint: None,
            source: None,
        }))
    }

    /// Adds a named value after those that are there.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// Says what the user can do; replaces an earlier hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Names the error that led to this one; replaces an earlier source.
    #[must_use]
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// The kind, to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without the named values.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The named values in the order they were added.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// The first named value of this name.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.context.iter().find(|(name, _)| *name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// What the user can do, if anything is known.
    pub fn get_hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, &self.0.message)?;
        for (i, (key, value)) in self.0.context.iter().enumerate() {
            f.write_str(if i == 0 { " (" } else { ", " })?;
            write!(f, "{key}: ")?;
            write_line(f, value)?;
        }
        if !self.0.context.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// Writes text with its control characters escaped: names come from files, and one that holds a
/// line break or a terminal sequence must not forge a line of a log.
fn write_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for part in text.split_inclusive(char::is_control) {
        match part.chars().next_back() {
            Some(last) if last.is_control() => {
                f.write_str(&part[..part.len() - last.len_utf8()])?;
                write!(f, "{}", last.escape_default())?;
            }
            _ => f.write_str(part)?,
        }
    }
    Ok(())
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("context", &self.0.context)
            .field("hint", &self.0.hint)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What kind of thing is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl ErrorKind {
            /// The name of the variant, for reports and for other languages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }
        }
    };
}

kinds! {
    /// A tensor name stands twice: in one header, in one index file, or in two files.
    DuplicateTensor,
    /// A key stands twice in a file's metadata, or the metadata stand twice.
    DuplicateMetadata,
    /// Two tensors claim the same bytes.
    Overlap,
    /// Bytes between two tensors, or before the first, belong to none.
    Hole,
    /// A tensor ends before it begins.
    Reversed,
    /// Bytes after the last tensor belong to none.
    TrailingBytes,
    /// A file is shorter than what it says it holds.
    Truncated,
    /// A header is longer than the limit.
    HeaderTooLarge,
    /// A header would end after the end of its file.
    HeaderPastEof,
    /// A file whose name or option says safetensors is of another format.
    NotSafetensors,
    /// A file is of no format that is read, or not of the one that was asked for.
    UnknownFormat,
    /// A file is of a format, or uses a feature of one, that is known and not read.
    Unsupported,
    /// A file is of the other byte order.
    WrongEndian,
    /// A header is not what its format asks for.
    InvalidHeader,
    /// A pickle asks for something that could run code, or that state dicts do not use.
    UnsafePickle,
    /// A tensor's range lies outside the file that is to hold it.
    OutOfRange,
    /// A file with the weights of a model is not there.
    MissingWeights,
    /// A number, or a product of numbers, is too large to be a size.
    Overflow,
    /// A tensor's shape and its number of bytes do not fit each other.
    SizeMismatch,
    /// A tensor does not begin or end where its format, or its data type, allows it.
    Misaligned,
    /// The data type of a tensor is not known, and was needed.
    UnknownDtype,
    /// An index, of shards or of tensors, contradicts itself or is not what its format asks for.
    InvalidIndex,
    /// Files that belong to the model are not there.
    MissingShards,
    /// A file lacks a tensor that the index file says it holds.
    NotInShard,
    /// A file name in a model points out of the model's folder, or may do so somewhere.
    UnsafePath,
    /// Which files are the model cannot be told.
    AmbiguousModel,
    /// There is no model here.
    NoModel,
    /// A count or size exceeds one of the [`Limits`](crate::Limits).
    LimitExceeded,
    /// What was asked for is not in the model.
    NotFound,
    /// Bytes could not be read.
    Io,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Joins names for a named value of an error.
pub(crate) fn join<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut joined = String::new();
    for name in names {
        if !joined.is_empty() {
            joined.push_str(", ");
        }
        joined.push_str(name.as_ref());
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_message_and_values_in_one_line() {
        let error = Error::new(ErrorKind::Overlap, "two tensors overlap")
            .with("tensor", "a\nERROR forged \u{1b}[31m")
            .with("offset", 4)
            .hint("write the file again");
        assert_eq!(
            error.to_string(),
            "two tensors overlap (tensor: a\\nERROR forged \\u{1b}[31m, offset: 4)"
        );
        assert_eq!(error.get("tensor"), Some("a\nERROR forged \u{1b}[31m"));
        assert_eq!(error.get_hint(), Some("write the file again"));
        assert_eq!(Error::new(ErrorKind::NoModel, "nothing").to_string(), "nothing");
    }

    #[test]
    fn keeps_its_source() {
        let cause = Error::new(ErrorKind::NotFound, "inner");
        let error = Error::new(ErrorKind::NoModel, "outer").because(cause);
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("inner"));
    }

    #[test]
    fn is_as_small_as_a_pointer() {
        assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
    }

    #[test]
    fn a_kind_is_named_as_its_variant() {
        for kind in [ErrorKind::DuplicateTensor, ErrorKind::HeaderPastEof, ErrorKind::NotFound] {
            assert_eq!(kind.name(), format!("{kind:?}"));
        }
    }
}
