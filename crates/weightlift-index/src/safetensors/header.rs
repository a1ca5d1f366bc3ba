//! The text of a header: JSON to entries, each of them checked alone.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Entry, Header, check};
use crate::json::{Failure, Skip, Text};
use crate::limits::{self, Limits};
use crate::{Dtype, Error, ErrorKind};

/// Reads a header. Its entries come back in the order of their offsets, which are still relative
/// to the start of the data, each with a name of its own and a range that fits its shape.
pub(super) fn read(json: &[u8], limits: &Limits) -> Result<Header, Error> {
    let text = text(json)?;
    let mut state = State {
        limits,
        header: Header::default(),
        has_metadata: false,
        dims: Vec::new(),
        opaque: None,
        place: None,
        failure: Failure::default(),
    };
    let mut json = serde_json::Deserializer::from_str(text);
    if let Err(error) = TopLevel(&mut state).deserialize(&mut json).and_then(|()| json.end()) {
        let error =
            state.failure.or(error, || invalid("the header is not what the format asks for"));
        return Err(match state.place {
            Some((key, name)) => error.with(key, name),
            None => error,
        });
    }
    check::names(&state.header.entries)?;
    // Stable, and linear where the header already has this order, as most do.
    state.header.entries.sort_by_key(|entry| (entry.begin, entry.end));
    Ok(state.header)
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidHeader, message)
}

/// The header's text from its first brace to its last.
fn text(json: &[u8]) -> Result<&str, Error> {
    // One pass over all of it is faster than a check of each string.
    let text = std::str::from_utf8(json).map_err(|error| {
        invalid("the header is not UTF-8").with("column", error.valid_up_to() + 1).because(error)
    })?;
    if !text.starts_with('{') {
        let actual = text.chars().next().map_or_else(String::new, |c| format!("{c:?}"));
        return Err(invalid("the header does not begin with a brace").with("actual", actual));
    }
    let text = text.trim_end_matches(' ');
    match text.chars().next_back() {
        Some('}') => Ok(text),
        last => {
            let actual = last.map_or_else(String::new, |c| format!("{c:?}"));
            Err(invalid("the header does not end with a brace and then only spaces")
                .with("actual", actual))
        }
    }
}

/// What the visitors share.
struct State<'a> {
    limits: &'a Limits,
    header: Header,
    has_metadata: bool,
    /// The shape being read: a buffer to keep, so that each shape is allocated once, in its size.
    dims: Vec<u64>,
    /// The last data type that is not known, to be shared by the tensors that have it.
    opaque: Option<Dtype>,
    /// Where the parser was when it failed.
    place: Option<(&'static str, Box<str>)>,
    failure: Failure,
}

/// The header: names to entries.
struct TopLevel<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for TopLevel<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TopLevel<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        while let Some(name) = map.next_key_seed(Text)? {
            if name == "__metadata__" {
                if std::mem::replace(&mut state.has_metadata, true) {
                    let error = Error::new(
                        ErrorKind::DuplicateMetadata,
                        "the header has two sets of metadata",
                    );
                    return Err(state.failure.stop(error.with("key", name)));
                }
                map.next_value_seed(Metadata(state))?;
                continue;
            }
            let name = Box::<str>::from(name);
            match read_entry(state, &mut map) {
                Ok((dtype, shape, begin, end)) => {
                    state.header.entries.push(Entry { name, dtype, shape, begin, end });
                }
                Err(error) => {
                    state.place = Some(("tensor", name));
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

type Fields = (Dtype, Vec<u64>, u64, u64);

fn read_entry<'de, A: MapAccess<'de>>(
    state: &mut State<'_>,
    map: &mut A,
) -> Result<Fields, A::Error> {
    let (count, limit) = (state.header.entries.len() as u64, state.limits.tensors);
    if count >= limit {
        let error = limits::exceeded(
            ErrorKind::LimitExceeded,
            "the header names more tensors than the limit",
            "tensors",
            limit,
            format_args!("more than {count}"),
        );
        return Err(state.failure.stop(error.hint(limits::raise("tensors"))));
    }
    let fields = map.next_value_seed(EntryFields(&mut *state))?;
    let (dtype, shape, begin, end) = &fields;
    match check::tensor(dtype, shape, *begin, *end) {
        Ok(()) => Ok(fields),
        Err(error) => Err(state.failure.stop(error)),
    }
}

/// An entry: the fields of one tensor.
struct EntryFields<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for EntryFields<'_, '_> {
    type Value = Fields;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Fields, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntryFields<'_, '_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let state = self.0;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        let mut others: BTreeSet<Cow<'de, str>> = BTreeSet::new();
        while let Some(key) = map.next_key_seed(Text)? {
            let first = match &*key {
                "dtype" => dtype.replace(map.next_value_seed(DtypeName(state))?).is_none(),
                "shape" => shape.replace(map.next_value_seed(Shape(state))?).is_none(),
                "data_offsets" => offsets.replace(map.next_value_seed(Offsets(state))?).is_none(),
                _ => {
                    map.next_value_seed(Skip)?;
                    others.insert(key.clone())
                }
            };
            if !first {
                let error = invalid("a key stands twice in the entry of a tensor").with("key", key);
                return Err(state.failure.stop(error));
            }
        }
        let missing = match (dtype, shape, offsets) {
            (Some(dtype), Some(shape), Some((begin, end))) => {
                return Ok((dtype, shape, begin, end));
            }
            (None, _, _) => "dtype",
            (_, None, _) => "shape",
            (_, _, None) => "data_offsets",
        };
        let error = invalid("the entry of a tensor lacks a key").with("key", missing);
        Err(state.failure.stop(error))
    }
}

struct DtypeName<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for DtypeName<'_, '_> {
    type Value = Dtype;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Dtype, D::Error> {
        let name = Text.deserialize(deserializer)?;
        if let Some(last) = self.0.opaque.as_ref().filter(|last| last.name() == name) {
            return Ok(last.clone());
        }
        let dtype = Dtype::of_safetensors(&name);
        if dtype.is_opaque() {
            self.0.opaque = Some(dtype.clone());
        }
        Ok(dtype)
    }
}

struct Shape<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for Shape<'_, '_> {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape<'_, '_> {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let State { limits, dims, failure, .. } = self.0;
        dims.clear();
        while let Some(dim) = seq.next_element()? {
            if dims.len() as u64 >= limits.rank {
                let error = limits::exceeded(
                    ErrorKind::LimitExceeded,
                    "a tensor has more dimensions than the limit",
                    "rank",
                    limits.rank,
                    format_args!("more than {}", dims.len()),
                );
                return Err(failure.stop(error.hint(limits::raise("rank"))));
            }
            dims.push(dim);
        }
        Ok(dims.to_vec())
    }
}

struct Offsets<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for Offsets<'_, '_> {
    type Value = (u64, u64);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(u64, u64), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Offsets<'_, '_> {
    type Value = (u64, u64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of two offsets")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(u64, u64), A::Error> {
        let (begin, end) = (seq.next_element()?, seq.next_element()?);
        let mut more = 0u64;
        while end.is_some() && seq.next_element_seed(Skip)?.is_some() {
            more += 1;
        }
        match (begin, end) {
            (Some(begin), Some(end)) if more == 0 => Ok((begin, end)),
            _ => {
                let count = u64::from(begin.is_some()) + u64::from(end.is_some()) + more;
                let error = invalid("data_offsets are not two numbers");
                Err(self.0.failure.stop(error.with("expected", 2).with("actual", count)))
            }
        }
    }
}

/// The value of `__metadata__`: an object of strings, or null for none.
struct Metadata<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for Metadata<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        while let Some(key) = map.next_key_seed(Text)? {
            let value = match map.next_value_seed(Text) {
                Ok(value) => value.into_owned(),
                Err(error) => {
                    state.place = Some(("key", key.into()));
                    return Err(error);
                }
            };
            if state.header.metadata.contains_key(&*key) {
                let error =
                    Error::new(ErrorKind::DuplicateMetadata, "a key stands twice in the metadata");
                return Err(state.failure.stop(error.with("key", key)));
            }
            state.header.metadata.insert(key.into_owned(), value);
        }
        Ok(())
    }
}
