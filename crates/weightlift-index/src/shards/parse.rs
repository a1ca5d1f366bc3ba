//! The text of an index file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{ShardIndex, check_name};
use crate::json::{Failure, Skip, Text};
use crate::limits::{self, Limits};
use crate::{Error, ErrorKind};

/// Parses an index file (`*.safetensors.index.json`).
///
/// The text must be UTF-8 and strict JSON: an object with a `weight_map` from tensors to files and
/// perhaps `metadata`; other keys are ignored. Every name of a file has passed [`check_name`]
/// when this returns. The name of the index file is for the caller to add to an error.
///
/// # Errors
///
/// - [`ErrorKind::InvalidIndex`] if the text is not that, naming the place;
/// - [`ErrorKind::DuplicateTensor`] if a tensor stands twice, naming both files, even if they are
///   the same;
/// - [`ErrorKind::DuplicateMetadata`] if a key stands twice in the metadata;
/// - [`ErrorKind::UnsafePath`] for a file name, naming the first `tensor` that it stands at;
/// - [`ErrorKind::LimitExceeded`] for [`Limits::index_bytes`] and [`Limits::tensors`].
pub fn parse_index(json: &[u8], limits: &Limits) -> Result<ShardIndex, Error> {
    if json.len() as u64 > limits.index_bytes {
        let error = limits::exceeded(
            ErrorKind::LimitExceeded,
            "the index file is larger than the limit",
            "index_bytes",
            limits.index_bytes,
            json.len(),
        );
        return Err(error.hint(limits::raise("index_bytes")));
    }
    let text = std::str::from_utf8(json).map_err(|error| {
        invalid("the index file is not UTF-8")
            .with("column", error.valid_up_to() + 1)
            .because(error)
    })?;
    let mut state = State::new(limits);
    let mut json = serde_json::Deserializer::from_str(text);
    if let Err(error) = TopLevel(&mut state).deserialize(&mut json).and_then(|()| json.end()) {
        let error =
            state.failure.or(error, || invalid("the index file is not what the format asks for"));
        return Err(match state.tensor {
            Some(tensor) => error.with("tensor", tensor),
            None => error,
        });
    }
    if state.weight_map.is_empty() {
        return Err(invalid("the index file names no tensor").with("key", "weight_map"));
    }
    Ok(sorted(state))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidIndex, message)
}

/// Numbers the files by name, where the state numbered them as they came.
fn sorted(state: State<'_>) -> ShardIndex {
    let State { mut weight_map, numbers, metadata, .. } = state;
    let mut shards: Vec<(Box<str>, u32)> = numbers.into_iter().collect();
    shards.sort_unstable();
    let mut new = vec![0; shards.len()];
    for (position, (_, old)) in (0..).zip(&shards) {
        new[*old as usize] = position;
    }
    for number in weight_map.values_mut() {
        *number = new[*number as usize];
    }
    let shards = shards.into_iter().map(|(name, _)| name).collect();
    ShardIndex { weight_map, shards, metadata }
}

/// What the visitors share.
struct State<'a> {
    limits: &'a Limits,
    weight_map: HashMap<Box<str>, u32>,
    /// The files met so far, each with its number, counted from 0.
    numbers: HashMap<Box<str>, u32>,
    /// The last file met: most tensors lie in the same file as the one before.
    last: Option<(Box<str>, u32)>,
    metadata: BTreeMap<String, String>,
    /// The tensor at which the parser failed.
    tensor: Option<Box<str>>,
    failure: Failure,
}

impl<'a> State<'a> {
    fn new(limits: &'a Limits) -> Self {
        Self {
            limits,
            weight_map: HashMap::new(),
            numbers: HashMap::new(),
            last: None,
            metadata: BTreeMap::new(),
            tensor: None,
            failure: Failure::default(),
        }
    }

    fn number(&mut self, file: &str) -> Result<u32, Error> {
        if let Some((last, number)) = &self.last
            && **last == *file
        {
            return Ok(*number);
        }
        let number = match self.numbers.get(file) {
            Some(number) => *number,
            None => {
                check_name(file)?;
                let number = u32::try_from(self.numbers.len()).map_err(|_| {
                    Error::new(ErrorKind::LimitExceeded, "the index file names too many files")
                        .with("limit", u32::MAX)
                })?;
                self.numbers.insert(file.into(), number);
                number
            }
        };
        self.last = Some((file.into(), number));
        Ok(number)
    }

    fn add(&mut self, tensor: Box<str>, file: &str) -> Result<(), Error> {
        let limit = self.limits.tensors;
        if self.weight_map.len() as u64 >= limit {
            let error = limits::exceeded(
                ErrorKind::LimitExceeded,
                "the index file names more tensors than the limit",
                "tensors",
                limit,
                format_args!("more than {limit}"),
            );
            return Err(error.hint(limits::raise("tensors")));
        }
        let number = self.number(file).map_err(|error| error.with("tensor", &tensor))?;
        // Looked up before it is put in, so that the error can name both.
        if let Some(earlier) = self.weight_map.get(&tensor) {
            let earlier = self.numbers.iter().find(|(_, number)| *number == earlier);
            let earlier = earlier.map_or("", |(name, _)| name);
            return Err(Error::new(
                ErrorKind::DuplicateTensor,
                "a tensor stands twice in the index file",
            )
            .with("tensor", &tensor)
            .with("file", file)
            .with("other_file", earlier));
        }
        self.weight_map.insert(tensor, number);
        Ok(())
    }
}

/// The whole file: an object.
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
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key_seed(Text)? {
            if keys.contains(&key) {
                let error = invalid("a key stands twice in the index file").with("key", key);
                return Err(state.failure.stop(error));
            }
            match &*key {
                "weight_map" => map.next_value_seed(WeightMap(state))?,
                "metadata" => map.next_value_seed(Metadata(state))?,
                _ => map.next_value_seed(Skip)?,
            }
            keys.insert(key);
        }
        if keys.contains("weight_map") {
            return Ok(());
        }
        Err(state.failure.stop(invalid("the index file lacks a key").with("key", "weight_map")))
    }
}

struct WeightMap<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for WeightMap<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensors to files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        while let Some(tensor) = map.next_key_seed(Text)? {
            let tensor = Box::<str>::from(tensor);
            let file = match map.next_value_seed(Text) {
                Ok(file) => file,
                Err(error) => {
                    state.tensor = Some(tensor);
                    return Err(error);
                }
            };
            state.add(tensor, &file).map_err(|error| state.failure.stop(error))?;
        }
        Ok(())
    }
}

/// The value of `metadata`: an object of anything, or null for none.
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
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key_seed(Text)? {
            let value = map.next_value_seed(Scalar)?;
            if !keys.insert(key.clone()) {
                let error =
                    Error::new(ErrorKind::DuplicateMetadata, "a key stands twice in the metadata");
                return Err(state.failure.stop(error.with("key", key)));
            }
            if let Some(value) = value {
                state.metadata.insert(key.into_owned(), value);
            }
        }
        Ok(())
    }
}

/// A value of the metadata as text; `None` for null, lists and objects.
struct Scalar;

impl<'de> DeserializeSeed<'de> for Scalar {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scalar {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Some(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        Skip.visit_seq(seq).map(|()| None)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Skip.visit_map(map).map(|()| None)
    }
}
