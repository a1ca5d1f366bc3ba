//! The metadata: keys and typed values.

use std::collections::BTreeMap;
use std::collections::btree_map;

use super::reader::Reader;
use crate::{Error, ErrorKind, Value};

/// The smallest that a value can be with its key: an empty key, a type, a byte.
pub(super) const LEAST_BYTES: u64 = 8 + 4 + 1;

const ALIGNMENT: &str = "general.alignment";
const USUAL_ALIGNMENT: u64 = 32;
const LARGEST_ALIGNMENT: u32 = 64 << 10;

/// The types of values, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Type {
    /// Each with its name in the specification and its bytes; those of texts and lists vary, and are
    /// at least as many.
    const ALL: [(Self, &'static str, u64); 13] = [
        (Self::U8, "uint8", 1),
        (Self::I8, "int8", 1),
        (Self::U16, "uint16", 2),
        (Self::I16, "int16", 2),
        (Self::U32, "uint32", 4),
        (Self::I32, "int32", 4),
        (Self::F32, "float32", 4),
        (Self::Bool, "bool", 1),
        (Self::Text, "string", 8),
        (Self::List, "array", 12),
        (Self::U64, "uint64", 8),
        (Self::I64, "int64", 8),
        (Self::F64, "float64", 8),
    ];
}

/// Reads so many values, and says what they say about the alignment.
pub(super) fn read(
    reader: &mut Reader<'_>,
    count: u64,
    lists: bool,
) -> Result<(BTreeMap<String, Value>, u64), Error> {
    let mut metadata = BTreeMap::new();
    let mut alignment = USUAL_ALIGNMENT;
    for _ in 0..count {
        reader.keep_values(1)?;
        let key = reader.text()?;
        match metadata.entry(key) {
            btree_map::Entry::Vacant(vacant) => {
                let read = typed(reader, lists).and_then(|(kind, value)| {
                    if vacant.key() == ALIGNMENT {
                        alignment = checked_alignment(kind, &value)?;
                    }
                    Ok(value)
                });
                let value = read.map_err(|error| error.with("key", vacant.key()))?;
                vacant.insert(value);
            }
            btree_map::Entry::Occupied(occupied) => {
                return Err(Error::new(
                    ErrorKind::DuplicateMetadata,
                    "a key stands twice in the metadata",
                )
                .with("key", occupied.key()));
            }
        }
    }
    Ok((metadata, alignment))
}

fn typed(reader: &mut Reader<'_>, lists: bool) -> Result<(&'static str, Value), Error> {
    let (kind, name, _) = kind(reader)?;
    let value = if kind == Type::List { list(reader, lists)? } else { value(reader, kind)? };
    Ok((name, value))
}

fn kind(reader: &mut Reader<'_>) -> Result<(Type, &'static str, u64), Error> {
    let at = reader.position();
    let number = reader.u32()?;
    let known = usize::try_from(number).ok().and_then(|number| Type::ALL.get(number));
    known.copied().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidHeader,
            "the metadata have a value of a type that is not known",
        )
        .with("offset", at)
        .with("expected", format_args!("0 to {}", Type::ALL.len() - 1))
        .with("actual", number)
    })
}

/// A value that is no list.
fn value(reader: &mut Reader<'_>, kind: Type) -> Result<Value, Error> {
    let signed = |number: i64| u64::try_from(number).map_or(Value::Int(number), Value::Uint);
    Ok(match kind {
        Type::U8 => Value::Uint(u8::from_le_bytes(reader.array()?).into()),
        Type::U16 => Value::Uint(u16::from_le_bytes(reader.array()?).into()),
        Type::U32 => Value::Uint(reader.u32()?.into()),
        Type::U64 => Value::Uint(reader.u64()?),
        Type::I8 => signed(i8::from_le_bytes(reader.array()?).into()),
        Type::I16 => signed(i16::from_le_bytes(reader.array()?).into()),
        Type::I32 => signed(i32::from_le_bytes(reader.array()?).into()),
        Type::I64 => signed(i64::from_le_bytes(reader.array()?)),
        Type::F32 => Value::Float(f32::from_le_bytes(reader.array()?).into()),
        Type::F64 => Value::Float(f64::from_le_bytes(reader.array()?)),
        Type::Bool => Value::Bool(reader.array()? != [0]),
        Type::Text => Value::Text(reader.text()?.into()),
        Type::List => return Err(nested(reader)),
    })
}

fn list(reader: &mut Reader<'_>, keep: bool) -> Result<Value, Error> {
    let (kind, name, bytes) = kind(reader)?;
    if kind == Type::List {
        return Err(nested(reader));
    }
    let count = reader.u64()?;
    reader.expect_room(count, bytes)?;
    if keep {
        reader.keep_values(count)?;
        // Not allocated ahead: in memory a value is larger than in the file.
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(match kind {
                Type::Text => Value::Text(reader.text_lossy()?.into()),
                kind => value(reader, kind)?,
            });
        }
        return Ok(Value::List(values));
    }
    if kind == Type::Text {
        for _ in 0..count {
            reader.skip_text()?;
        }
    } else {
        reader.skip(count, bytes)?;
    }
    Ok(Value::Omitted { kind: name, count })
}

// The specification allows it, llama.cpp does not, and nothing writes it. A reader that follows
// each level by calling itself can be made to use up its stack.
fn nested(reader: &Reader<'_>) -> Error {
    Error::new(ErrorKind::Unsupported, "the metadata have a list of lists")
        .with("offset", reader.position())
}

fn checked_alignment(kind: &'static str, value: &Value) -> Result<u64, Error> {
    let refuse = |message: &str| {
        Err(Error::new(ErrorKind::InvalidHeader, message)
            .with("expected", "a uint32 that is a power of two of at most 65536")
            .with("actual", format_args!("{kind} {value}")))
    };
    let number = match value.as_uint().map(u32::try_from) {
        Some(Ok(number)) if kind == "uint32" => number,
        _ => return refuse("the alignment is of the wrong type"),
    };
    if number.is_power_of_two() && number <= LARGEST_ALIGNMENT {
        return Ok(number.into());
    }
    refuse("the alignment is not one that files can have").map_err(|error| {
        if number != 0 && number.is_multiple_of(8) && number <= LARGEST_ALIGNMENT {
            error.hint(
                "the specification allows any multiple of 8, llama.cpp and the package gguf only \
                 powers of two: write the file again with one of those",
            )
        } else {
            error
        }
    })
}
