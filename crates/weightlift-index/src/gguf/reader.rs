//! Numbers, texts and counts, each compared with what the file has left and with the limits.

use crate::bytes::Cursor;
use crate::limits;
use crate::{Bytes, Error, ErrorKind, Limits};

/// Reads forward through the header.
pub(super) struct Reader<'a> {
    cursor: Cursor<'a>,
    pub(super) limits: &'a Limits,
    /// Bytes of names and texts kept so far.
    texts: u64,
    /// Values of metadata kept so far.
    values: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a mut dyn Bytes, limits: &'a Limits) -> Self {
        Self { cursor: Cursor::new(bytes, 0..u64::MAX), limits, texts: 0, values: 0 }
    }

    pub(super) fn position(&self) -> u64 {
        self.cursor.position()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.cursor.array()
    }

    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// Checks that the file has room for so many things of at least so many bytes each.
    ///
    /// A count that has passed is no larger than the file, whatever it says.
    pub(super) fn expect_room(&self, count: u64, least: u64) -> Result<(), Error> {
        if count <= self.cursor.left() / least {
            return Ok(());
        }
        let needed = u128::from(count) * u128::from(least);
        Err(Error::new(ErrorKind::Truncated, "the file is too short for what it says it holds")
            .with("offset", self.position())
            .with("count", count)
            .with("expected", u128::from(self.position()) + needed)
            .with("actual", self.position() + self.cursor.left())
            .hint("the file is cut short or damaged: fetch it again"))
    }

    /// Passes over so many things of so many bytes each.
    pub(super) fn skip(&mut self, count: u64, bytes: u64) -> Result<(), Error> {
        self.expect_room(count, bytes)?;
        self.cursor.skip(count * bytes)
    }

    /// Passes over a text.
    pub(super) fn skip_text(&mut self) -> Result<(), Error> {
        let length = self.u64()?;
        self.cursor.skip(length)
    }

    /// A text, which must be UTF-8.
    pub(super) fn text(&mut self) -> Result<String, Error> {
        let at = self.position();
        let text = std::str::from_utf8(self.text_bytes()?);
        text.map(str::to_owned).map_err(|error| {
            Error::new(ErrorKind::InvalidHeader, "a text in the header is not UTF-8")
                .with("offset", at)
                .because(error)
        })
    }

    /// A text, in which what is not UTF-8 is replaced.
    pub(super) fn text_lossy(&mut self) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.text_bytes()?).into_owned())
    }

    fn text_bytes(&mut self) -> Result<&[u8], Error> {
        let length = self.u64()?;
        // First what no limit can help with.
        self.expect_room(length, 1)?;
        if length > self.limits.text_bytes {
            return Err(limits::exceeded(
                ErrorKind::LimitExceeded,
                "a text in the header is longer than the limit",
                "text_bytes",
                self.limits.text_bytes,
                length,
            )
            .with("offset", self.position())
            .hint(limits::raise("text_bytes")));
        }
        // No overflow: each length is that of bytes that are there.
        self.texts += length;
        if self.texts > self.limits.header_bytes {
            return Err(limits::exceeded(
                ErrorKind::HeaderTooLarge,
                "the texts of the header are longer together than the limit",
                "header_bytes",
                self.limits.header_bytes,
                format_args!("at least {}", self.texts),
            )
            .with("offset", self.position())
            .hint(limits::raise("header_bytes")));
        }
        self.cursor.take(length)
    }

    /// Counts values of metadata that will be kept.
    pub(super) fn keep_values(&mut self, count: u64) -> Result<(), Error> {
        self.values = self.values.saturating_add(count);
        if self.values <= self.limits.list_values {
            return Ok(());
        }
        Err(limits::exceeded(
            ErrorKind::LimitExceeded,
            "the metadata hold more values than the limit",
            "list_values",
            self.limits.list_values,
            format_args!("at least {}", self.values),
        )
        .hint(limits::raise("list_values")))
    }
}
