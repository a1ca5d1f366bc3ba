//! One tensor: what its message says, and where its bytes lie.

use std::ops::Range;

use super::decode;
use super::external::{Entries, Locations};
use super::types::{self, STRING, STRINGS};
use super::wire::{Field, Message, Reader, Value, malformed};
use crate::limits;
use crate::{Dtype, Error, ErrorKind};

/// Where the bytes of a tensor lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In the model's file.
    File { offset: u64, length: u64 },
    /// In what was decoded.
    Decoded { offset: u64, length: u64 },
    /// In another file, by its number.
    External { location: u32, offset: u64, length: u64 },
}

/// A tensor without its name.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) place: Place,
}

/// What was read of a tensor's message, or of several that are to be taken together.
#[derive(Debug, Default)]
pub(super) struct Proto {
    pub(super) name: Box<str>,
    dims: Vec<i64>,
    data_type: i32,
    raw: Option<Range<u64>>,
    values: Option<Values>,
    /// A second field with values.
    other_values: Option<u64>,
    in_segments: bool,
    location: u64,
    entries: Entries,
    /// Where the message begins and ends, of several the last.
    pub(super) start: u64,
    end: u64,
}

/// Where the values of a typed field lie.
#[derive(Debug)]
pub(super) struct Values {
    /// The number of the field.
    pub(super) field: u64,
    /// The occurrences of the field with their tags, those that follow each other as one range.
    pub(super) fields: Vec<Range<u64>>,
    /// The values alone, where they are one run of bytes.
    run: Option<Range<u64>>,
}

impl Proto {
    /// Reads a message, which adds to what was read before.
    pub(super) fn read(&mut self, reader: &mut Reader<'_>, at: Range<u64>) -> Result<(), Error> {
        (self.start, self.end) = (at.start, at.end);
        let mut message = Message::new(at);
        while let Some(field) = reader.next(&mut message)? {
            match field.number {
                1 => self.dims(reader, &field)?,
                // As all readers do, of a number of 32 bits the lower half is taken.
                2 => self.data_type = field.varint()? as i32,
                3 => self.in_segments = true,
                types::FLOATS
                | types::INT32S
                | types::STRINGS
                | types::INT64S
                | types::DOUBLES
                | types::UINT64S => self.value(&field)?,
                8 => self.name = reader.text(&field)?,
                9 => self.raw = Some(field.run()?),
                13 => self.entries.add(reader, Message::new(field.run()?))?,
                14 => self.location = field.varint()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn dims(&mut self, reader: &mut Reader<'_>, field: &Field) -> Result<(), Error> {
        let rank = reader.limits.rank;
        let dims = &mut self.dims;
        let mut add = |dim: u64| {
            if dims.len() as u64 >= rank {
                let message = "a tensor has more dimensions than the limit";
                let actual = dims.len() + 1;
                let kind = ErrorKind::LimitExceeded;
                return Err(limits::exceeded(kind, message, "rank", rank, actual)
                    .with("offset", field.range.start)
                    .hint(limits::raise("rank")));
            }
            dims.push(dim as i64);
            Ok(())
        };
        match &field.value {
            Value::Varint(dim) => add(*dim),
            Value::Run(run) => reader.varints(run.clone(), add),
            _ => Err(field.mistyped()),
        }
    }

    /// Notes an occurrence of a field with values.
    fn value(&mut self, field: &Field) -> Result<(), Error> {
        let run = match &field.value {
            Value::Run(run) if run.is_empty() && field.number != STRINGS => return Ok(()),
            Value::Run(run) => Some(run.clone()),
            _ if field.number == STRINGS => return Err(field.mistyped()),
            _ => None,
        };
        match &mut self.values {
            None => {
                let fields = vec![field.range.clone()];
                self.values = Some(Values { field: field.number, fields, run });
            }
            Some(values) if values.field != field.number => {
                self.other_values.get_or_insert(field.number);
            }
            Some(values) => {
                values.run = None;
                match values.fields.last_mut() {
                    Some(last) if last.end == field.range.start => last.end = field.range.end,
                    _ => values.fields.push(field.range.clone()),
                }
            }
        }
        Ok(())
    }

    /// Checks the tensor and says where its bytes lie, which may be in `decoded` when it is done.
    pub(super) fn finish(
        self,
        reader: &mut Reader<'_>,
        locations: &mut Locations,
        decoded: &mut Vec<u8>,
    ) -> Result<Tensor, Error> {
        let dtype = types::dtype(self.data_type);
        let about = |kind, message: &str| {
            Error::new(kind, message)
                .with("dtype", &dtype)
                .with("shape", format_args!("{:?}", self.dims))
        };
        if self.data_type == 0 {
            return Err(malformed("a tensor has no type of elements", self.end));
        }
        if self.in_segments {
            let message = "a tensor is one of several segments, which no reader puts together";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let shape: Option<Vec<u64>> = self.dims.iter().map(|dim| (*dim).try_into().ok()).collect();
        let shape = shape.ok_or_else(|| {
            about(ErrorKind::InvalidHeader, "a tensor has a dimension below zero")
        })?;
        let overflow = || about(ErrorKind::Overflow, "a tensor's shape is too large to be a size");
        let elements = types::elements(&shape).ok_or_else(overflow)?;
        let size = match types::bytes_for(&dtype, elements) {
            None if !dtype.is_opaque() => return Err(overflow()),
            size => size,
        };
        // The length is that of the shape, where the type is known.
        let sized = |given: u64| match size {
            Some(size) if size != given => {
                Err(about(ErrorKind::SizeMismatch, "a tensor has not the bytes its shape asks for")
                    .with("expected", size)
                    .with("actual", given))
            }
            _ => Ok(given),
        };
        let external = match self.location {
            0 => false,
            1 => true,
            other => {
                let message = "where a tensor's data lie is said in a way that there is not";
                return Err(malformed(message, self.end).with("actual", other));
            }
        };
        let has_values = self.values.is_some();
        if usize::from(external) + usize::from(self.raw.is_some()) + usize::from(has_values) > 1
            || self.other_values.is_some()
        {
            return Err(malformed("a tensor's data stand in more than one place", self.end));
        }
        if self.data_type == STRING && (external || self.raw.is_some()) {
            return Err(malformed(
                "strings are given as bytes, which do not say where each ends",
                self.end,
            ));
        }
        let place = if external {
            let mut entries = self.entries;
            let checksum = entries.take_checksum();
            let (location, offset, given) = entries.check()?;
            let length = match (given, size) {
                (Some(given), _) => sized(given)?,
                (None, Some(size)) => size,
                (None, None) if elements == 0 => 0,
                (None, None) => return Err(unsized_type(about)),
            };
            let location = locations.number(location)?;
            if let Some(checksum) = checksum {
                locations.checksum(location, checksum);
            }
            Place::External { location, offset, length }
        } else if let Some(raw) = self.raw {
            let length = sized(raw.end - raw.start)?;
            Place::File { offset: raw.start, length }
        } else if has_values || self.data_type == STRING {
            let expected_field = types::values_field(self.data_type);
            let field = self.values.as_ref().map_or(STRINGS, |values| values.field);
            if expected_field.is_none() {
                return Err(unsized_type(about));
            }
            if expected_field != Some(field) {
                return Err(malformed(
                    "a tensor's data stand in the field of another type",
                    self.end,
                )
                .with("dtype", &dtype)
                .with("field", field));
            }
            match (self.values, size) {
                (Some(Values { run: Some(run), .. }), Some(size))
                    if matches!(field, types::FLOATS | types::DOUBLES) =>
                {
                    let length = run.end - run.start;
                    if length != size {
                        return Err(about(
                            ErrorKind::SizeMismatch,
                            "a tensor has not the bytes its shape asks for",
                        )
                        .with("expected", size)
                        .with("actual", length));
                    }
                    Place::File { offset: run.start, length }
                }
                (values, _) => {
                    let offset = decoded.len() as u64;
                    let fields = values.map_or_else(Vec::new, |values| values.fields);
                    decode::values(reader, &fields, &dtype, elements, decoded)?;
                    Place::Decoded { offset, length: decoded.len() as u64 - offset }
                }
            }
        } else {
            if size.is_none() && elements > 0 {
                return Err(unsized_type(about));
            }
            Place::File { offset: self.end, length: sized(0)? }
        };
        Ok(Tensor { dtype, shape, place })
    }
}

/// The error of a type that is not known where its size is needed.
fn unsized_type(about: impl Fn(ErrorKind, &str) -> Error) -> Error {
    about(
        ErrorKind::UnknownDtype,
        "the tensor's data type is not known, and the file does not say how many bytes it has",
    )
}
