//! Protocol Buffers' wire format: fields of messages, read forward, what is not wanted passed over.
//!
//! A field is a tag, which is its number and how its value is written, and the value. Refused is
//! what no writer makes, though some readers take it: groups, which ONNX never had; numbers of more
//! than 64 bits; a value that goes on after the message that it is in.

use std::ops::Range;

use crate::bytes::Cursor;
use crate::limits::{self, Limits};
use crate::{Error, ErrorKind};

/// A message of which some fields have been read.
pub(super) struct Message {
    /// Where the next field begins.
    next: u64,
    end: u64,
}

impl Message {
    pub(super) fn new(range: Range<u64>) -> Self {
        Self { next: range.start, end: range.end }
    }
}

/// A field of a message.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) value: Value,
    /// The field in the file, from its tag to the end of its value.
    pub(super) range: Range<u64>,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    /// Text, bytes, a message or numbers one after the other: where they lie in the file.
    Run(Range<u64>),
}

impl Field {
    /// The value of a field that is a number.
    pub(super) fn varint(&self) -> Result<u64, Error> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(self.mistyped()),
        }
    }

    /// Where the text, the bytes or the message lie.
    pub(super) fn run(&self) -> Result<Range<u64>, Error> {
        match &self.value {
            Value::Run(range) => Ok(range.clone()),
            _ => Err(self.mistyped()),
        }
    }

    pub(super) fn mistyped(&self) -> Error {
        malformed("a field is written as another type than it has", self.range.start)
            .with("field", self.number)
    }
}

/// Reads fields of a file.
pub(super) struct Reader<'a> {
    cursor: Cursor<'a>,
    length: u64,
    pub(super) limits: &'a Limits,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a mut dyn crate::Bytes, limits: &'a Limits) -> Self {
        let length = bytes.length();
        Self { cursor: Cursor::new(bytes, 0..length), length, limits }
    }

    /// The whole file as a message.
    pub(super) fn file(&self) -> Message {
        Message::new(0..self.length)
    }

    /// The next field of a message; `None` at its end. What lies in the fields before it may have
    /// been read or not.
    pub(super) fn next(&mut self, message: &mut Message) -> Result<Option<Field>, Error> {
        if message.next >= message.end {
            return Ok(None);
        }
        let start = message.next;
        self.cursor.seek(start)?;
        let tag = self.varint(message.end)?;
        let number = tag >> 3;
        if number == 0 || tag > u64::from(u32::MAX) {
            return Err(malformed("a field has a number that no field can have", start)
                .with("field", number));
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint(message.end)?),
            1 => {
                self.inside(8, message.end, start)?;
                Value::Fixed64(self.cursor.array()?)
            }
            2 => {
                let length = self.varint(message.end)?;
                self.inside(length, message.end, start)?;
                let at = self.cursor.position();
                Value::Run(at..at + length)
            }
            5 => {
                self.inside(4, message.end, start)?;
                Value::Fixed32(self.cursor.array()?)
            }
            kind => {
                let message = if matches!(kind, 3 | 4) {
                    "a field is a group, which ONNX does not have"
                } else {
                    "a field is written in a way that there is not"
                };
                return Err(malformed(message, start).with("field", number));
            }
        };
        message.next = match &value {
            Value::Run(range) => range.end,
            _ => self.cursor.position(),
        };
        Ok(Some(Field { number, value, range: start..message.next }))
    }

    /// Checks that so many bytes are left of a message that ends there.
    fn inside(&self, length: u64, end: u64, start: u64) -> Result<(), Error> {
        let position = self.cursor.position();
        if length <= end.saturating_sub(position) {
            return Ok(());
        }
        let error = if end == self.length {
            Error::new(ErrorKind::Truncated, "the file ends inside what it says it holds")
                .with("offset", start)
                .hint("the file is cut short or damaged: fetch it again")
        } else {
            malformed("a field goes on after the message that it is in", start)
        };
        Err(error.with("expected", u128::from(position) + u128::from(length)).with("actual", end))
    }

    /// A number of variable length that ends before `end`.
    fn varint(&mut self, end: u64) -> Result<u64, Error> {
        let start = self.cursor.position();
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            self.inside(1, end, start)?;
            let byte = self.cursor.byte()?;
            // Of the tenth byte only one bit has room.
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(malformed("a number has more than 64 bits", start))
    }

    /// Numbers of variable length, one after the other, each handed to `take`.
    pub(super) fn varints(
        &mut self,
        range: Range<u64>,
        mut take: impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.cursor.seek(range.start)?;
        while self.cursor.position() < range.end {
            take(self.varint(range.end)?)?;
        }
        Ok(())
    }

    /// The bytes of a range, in parts, each handed to `take`.
    pub(super) fn parts(
        &mut self,
        range: Range<u64>,
        mut take: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        const LONGEST_PART: u64 = 64 << 10;
        self.cursor.seek(range.start)?;
        while self.cursor.position() < range.end {
            let left = range.end - self.cursor.position();
            take(self.cursor.take(left.min(LONGEST_PART))?)?;
        }
        Ok(())
    }

    /// A field that is text.
    pub(super) fn text(&mut self, field: &Field) -> Result<Box<str>, Error> {
        let range = field.run()?;
        let length = range.end - range.start;
        if length > self.limits.text_bytes {
            return Err(limits::exceeded(
                ErrorKind::LimitExceeded,
                "a text is longer than the limit",
                "text_bytes",
                self.limits.text_bytes,
                length,
            )
            .with("offset", range.start)
            .hint(limits::raise("text_bytes")));
        }
        self.cursor.seek(range.start)?;
        let bytes = self.cursor.take(length)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|error| malformed("a text is not UTF-8", range.start).because(error))?;
        Ok(text.into())
    }
}

/// An error of the file's form, at an offset.
pub(super) fn malformed(message: &str, offset: u64) -> Error {
    Error::new(ErrorKind::InvalidHeader, message)
        .with("offset", offset)
        .hint("the file is damaged, or not an ONNX model")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a message that fills a file, and how reading it ended.
    fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, Range<u64>)>, Error> {
        let limits = Limits::default();
        let mut reader = Reader::new(&mut bytes, &limits);
        let mut message = reader.file();
        let mut found = Vec::new();
        while let Some(field) = reader.next(&mut message)? {
            found.push((field.number, field.range));
        }
        Ok(found)
    }

    #[test]
    fn every_way_of_writing_a_value_is_passed_over_right() {
        let bytes = b"\x08\xff\x01\x11abcdefgh\x1a\x03xyz\x25abcd\xf8\xff\xff\xff\x0f\x00";
        let found = fields(bytes).unwrap();
        assert_eq!(found, [(1, 0..3), (2, 3..12), (3, 12..17), (4, 17..22), (536_870_911, 22..28)]);
        assert_eq!(fields(b"").unwrap(), []);
    }

    #[test]
    fn what_is_no_field_is_refused_with_its_offset() {
        let table: [(&[u8], ErrorKind, &str); 12] = [
            (b"\x00\x01", ErrorKind::InvalidHeader, "0"),
            (b"\x08\x01\x02\x00", ErrorKind::InvalidHeader, "2"),
            (b"\x08\x01\x0b\x0c", ErrorKind::InvalidHeader, "2"),
            (b"\x0c", ErrorKind::InvalidHeader, "0"),
            (b"\x0e\x00", ErrorKind::InvalidHeader, "0"),
            (b"\x0f\x00", ErrorKind::InvalidHeader, "0"),
            (b"\x80\x80\x80\x80\x10\x00", ErrorKind::InvalidHeader, "0"),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", ErrorKind::InvalidHeader, "1"),
            (b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", ErrorKind::InvalidHeader, "1"),
            (b"\x08\x80", ErrorKind::Truncated, "1"),
            (b"\x12\x03ab", ErrorKind::Truncated, "0"),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ErrorKind::Truncated, "0"),
        ];
        for (bytes, kind, offset) in table {
            let error = fields(bytes).unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes:?}: {error}");
            assert_eq!(error.get("offset"), Some(offset), "{bytes:?}: {error}");
        }
        assert_eq!(fields(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").unwrap().len(), 1);
    }

    #[test]
    fn nothing_is_read_past_the_message_it_is_in() {
        let limits = Limits::default();
        for inner in [&b"\x12\x03"[..], b"\x08\x80", b"\x09\x01\x02", b"\x0d\x01", b"\x92"] {
            let mut file = vec![0x0a, inner.len() as u8];
            file.extend_from_slice(inner);
            file.extend_from_slice(&[0x08; 20]);
            let mut bytes = &file[..];
            let mut reader = Reader::new(&mut bytes, &limits);
            let mut message = Message::new(2..2 + inner.len() as u64);
            let error = reader.next(&mut message).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidHeader, "{inner:?}");
            assert_eq!(error.get("actual"), Some(&*(2 + inner.len()).to_string()), "{inner:?}");
        }
    }
}
