//! Reading JSON one entry at a time, strictly.
//!
//! Headers can be larger than 100 MB, so no tree of values is built; visitors take each entry as
//! it passes, and text is borrowed from the input unless it holds an escape.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::Error;

/// Text, borrowed if possible.
pub(crate) struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }
}

/// A value of any kind that is not needed, but must be valid.
///
/// serde's own `IgnoredAny` is laxer: `serde_json` then skips without a limit of depth and lets
/// lone surrogates pass.
pub(crate) struct Skip;

impl<'de> DeserializeSeed<'de> for Skip {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Skip)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(Text)?.is_some() {
            map.next_value_seed(Skip)?;
        }
        Ok(())
    }
}

/// Where a visitor leaves an error of ours while it stops the parser with one of the parser's,
/// which could carry a message but neither a kind nor named values.
#[derive(Default)]
pub(crate) struct Failure(Option<Error>);

impl Failure {
    /// Keeps the error and gives back one that stops the parser.
    pub(crate) fn stop<E: de::Error>(&mut self, error: Error) -> E {
        self.0 = Some(error);
        E::custom("stopped")
    }

    /// The error to report for one of the parser's: the one kept, or else one made from it.
    pub(crate) fn or(self, error: serde_json::Error, make: impl FnOnce() -> Error) -> Error {
        self.0.unwrap_or_else(|| {
            let (line, column) = (error.line(), error.column());
            let text = error.to_string();
            // The parser's words, without the place, which stands beside them.
            let reason = text.split(" at line ").next().unwrap_or(&text);
            let reason: String = reason.chars().take(120).collect();
            make().with("reason", reason).with("line", line).with("column", column).because(error)
        })
    }
}
