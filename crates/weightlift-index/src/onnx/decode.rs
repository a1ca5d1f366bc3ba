//! Values that the file has in another form than memory: numbers of variable length, values with a
//! tag each, strings. They become what `raw_data` would be; strings become a count, offsets and
//! characters, as OpenVINO has them.

use std::ops::Range;

use super::types::STRING;
use super::wire::{Message, Reader, Value, malformed};
use crate::{Dtype, Error, ErrorKind};

/// Appends the values of these fields, all of one number, to `out`.
///
/// Memory grows with the bytes that are read, and no further than the shape asks for.
pub(super) fn values(
    reader: &mut Reader<'_>,
    fields: &[Range<u64>],
    dtype: &Dtype,
    elements: u64,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    if *dtype == super::types::dtype(STRING) {
        return strings(reader, fields, elements, out);
    }
    let mut packer = Packer::new(dtype, elements, out);
    packer.reserve(fields);
    for range in fields {
        let mut message = Message::new(range.clone());
        while let Some(field) = reader.next(&mut message)? {
            let at = field.range.start;
            match field.value {
                Value::Varint(value) if packer.width == 0 => packer.integer(value, at)?,
                Value::Run(run) if packer.width == 0 => {
                    reader.varints(run, |value| packer.integer(value, at))?;
                }
                Value::Fixed32(bytes) if packer.width == 4 => packer.floats(&bytes)?,
                Value::Fixed64(bytes) if packer.width == 8 => packer.floats(&bytes)?,
                Value::Run(run)
                    if packer.width > 0 && (run.end - run.start).is_multiple_of(packer.width) =>
                {
                    reader.parts(run, |part| packer.floats(part))?;
                }
                _ => return Err(field.mistyped()),
            }
        }
    }
    packer.finish()
}

/// Puts values into the layout of their type.
struct Packer<'a> {
    out: &'a mut Vec<u8>,
    /// Bits of what one value of the field holds: an element, or the elements of a byte.
    bits: u32,
    /// Bytes of a value that is written in fixed size, as floats are; 0 for integers.
    width: u64,
    /// How many values are expected, and how many came; of floats, how many bytes.
    expected: u64,
    count: u64,
    /// Bits that do not fill a byte yet.
    pending: u32,
    pending_bits: u32,
}

impl<'a> Packer<'a> {
    fn new(dtype: &Dtype, elements: u64, out: &'a mut Vec<u8>) -> Self {
        let bits = dtype.layout().map_or(8, |layout| layout.bytes * 8 / layout.elements);
        let width = match dtype.name() {
            "F32" | "C64" => 4,
            "F64" | "C128" => 8,
            _ => 0,
        };
        let (bits, expected) = match bits {
            // A byte with two or four elements is one value; the last may be filled up.
            2 | 4 => (8, elements.div_ceil(u64::from(8 / bits))),
            bits if width > 0 => (bits, elements.saturating_mul(u64::from(bits / 8))),
            bits => (bits, elements),
        };
        Self { out, bits, width, expected, count: 0, pending: 0, pending_bits: 0 }
    }

    /// Takes memory for what these fields can hold at most. To let a list double as it grows would
    /// take up to twice of what it has at the end, and a value of one byte has eight already.
    fn reserve(&mut self, fields: &[Range<u64>]) {
        let bytes = fields.iter().fold(0, |sum: u64, range| sum + (range.end - range.start));
        // A value has at least a byte in the file; floats are counted in bytes.
        let values = self.expected.min(bytes);
        let size = if self.width > 0 { 1 } else { u64::from(self.bits.div_ceil(8)) };
        let size = usize::try_from(values.saturating_mul(size)).unwrap_or(usize::MAX);
        if self.out.capacity() - self.out.len() < size {
            // And a part of what is there, so that many small tensors do not copy it each time.
            self.out.reserve_exact(size.max(self.out.len() / 16));
        }
    }

    /// Counts values, of which there may not be more than expected.
    fn count(&mut self, more: u64) -> Result<(), Error> {
        self.count = self.count.saturating_add(more);
        if self.count > self.expected { Err(self.mismatch()) } else { Ok(()) }
    }

    fn mismatch(&self) -> Error {
        let message = if self.width > 0 {
            "a tensor has not the bytes its shape asks for"
        } else {
            "a tensor has not as many values as its shape asks for"
        };
        Error::new(ErrorKind::SizeMismatch, message).with("expected", self.expected).with(
            "actual",
            if self.count > self.expected {
                format!("{} or more", self.count)
            } else {
                self.count.to_string()
            },
        )
    }

    fn floats(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.count(bytes.len() as u64)?;
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn integer(&mut self, value: u64, at: u64) -> Result<(), Error> {
        self.count(1)?;
        // A negative number is written with 64 bits, whatever its type. An unsigned number may
        // come as the negative one of the same bits, which the reference takes too, but for six
        // bits, where it says that the others must be zero.
        let fits = match self.bits {
            64 => true,
            6 => value < 64,
            bits => value >> bits == 0 || (value as i64) >> (bits - 1) == -1,
        };
        if !fits {
            return Err(malformed("a value does not fit the type of its tensor", at)
                .with("actual", value as i64));
        }
        if self.bits == 6 {
            self.pending |= (value as u32) << self.pending_bits;
            self.pending_bits += 6;
            while self.pending_bits >= 8 {
                self.out.push(self.pending as u8);
                self.pending >>= 8;
                self.pending_bits -= 8;
            }
        } else {
            let size = (self.bits / 8) as usize;
            self.out.extend(value.to_le_bytes().iter().take(size));
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Error> {
        if self.count != self.expected {
            return Err(self.mismatch());
        }
        if self.pending_bits > 0 {
            self.out.push(self.pending as u8);
        }
        Ok(())
    }
}

fn strings(
    reader: &mut Reader<'_>,
    fields: &[Range<u64>],
    elements: u64,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut offsets = vec![0_u32];
    let mut characters = Vec::new();
    for range in fields {
        let mut message = Message::new(range.clone());
        while let Some(field) = reader.next(&mut message)? {
            reader.parts(field.run()?, |part| {
                characters.extend_from_slice(part);
                Ok(())
            })?;
            let end = u32::try_from(characters.len()).map_err(|_| {
                Error::new(ErrorKind::Overflow, "a tensor's strings have more than 4 GiB together")
            })?;
            offsets.push(end);
        }
    }
    let count = offsets.len() as u64 - 1;
    if count != elements {
        return Err(Error::new(
            ErrorKind::SizeMismatch,
            "a tensor has not as many values as its shape asks for",
        )
        .with("expected", elements)
        .with("actual", count));
    }
    let count = u32::try_from(count).map_err(|_| {
        Error::new(ErrorKind::Overflow, "a tensor has more strings than can be numbered")
    })?;
    out.extend_from_slice(&count.to_le_bytes());
    out.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
    out.append(&mut characters);
    Ok(())
}
