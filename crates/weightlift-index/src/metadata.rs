//! What files say about themselves beside their tensors.

use std::fmt;

use serde::{Serialize, Serializer};

/// A value of a model's metadata. Displays and serialises as JSON, but text displays bare.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number below zero.
    Int(i64),
    /// A whole number of zero or more.
    Uint(u64),
    /// Any other number; in JSON, `null` where it is not finite.
    Float(f64),
    /// Text.
    Text(Box<str>),
    /// Several values.
    List(Vec<Value>),
    /// Several values that were not kept, because they were not asked for.
    Omitted {
        /// What the format calls the type of each.
        kind: &'static str,
        /// How many there are.
        count: u64,
    },
}

impl Value {
    /// The text, where it is text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, where it is a whole number of zero or more.
    pub fn as_uint(&self) -> Option<u64> {
        match self {
            Self::Uint(number) => Some(*number),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Omitted { kind, count } => write!(f, "[{count} x {kind}]"),
            other => f.write_str(&serde_json::to_string(other).map_err(|_| fmt::Error)?),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::Uint(value) => serializer.serialize_u64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(values) => serializer.collect_seq(values),
            Self::Omitted { .. } => serializer.collect_str(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_as_json_but_for_text() {
        let list = Value::List(vec![Value::Text("a\"b".into()), Value::Bool(true), Value::Uint(3)]);
        let table = [
            (Value::Text("a\"b".into()), "a\"b"),
            (list, "[\"a\\\"b\",true,3]"),
            (Value::Int(-4), "-4"),
            (Value::Float(0.5), "0.5"),
            (Value::Float(f64::NAN), "null"),
            (Value::Omitted { kind: "string", count: 128_256 }, "[128256 x string]"),
        ];
        for (value, text) in table {
            assert_eq!(value.to_string(), text);
        }
    }
}
