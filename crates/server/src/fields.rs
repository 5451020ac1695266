//! Fields of requests that have no effect, and what of them is refused.
//!
//! A client must never believe that a field did something when it did not. So a request type names
//! every field of its interface: those that work have a type of their own, those that cannot change
//! an answer are [`Ignored`], and the others are [`Refused`]. All else is unknown, and refused too.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The key in a schema that tells what becomes of a field.
pub const STATE: &str = "x-baton-state";

/// A field that is taken with any value and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored;

/// A field that is not supported. Only values that ask for nothing are taken: `null`, `false`, an
/// empty string, list or object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

impl<'de> Deserialize<'de> for Refused {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let asks_for_nothing = match Value::deserialize(deserializer)? {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(true) | Value::Number(_) => false,
        };
        match asks_for_nothing {
            true => Ok(Refused),
            false => Err(D::Error::custom("this is not supported; leave it out")),
        }
    }
}

impl JsonSchema for Ignored {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Ignored".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ STATE: "no effect" })
    }
}

impl JsonSchema for Refused {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Refused".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "null", STATE: "refused" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_asks_for_nothing_is_taken() {
        for nothing in ["null", "false", "\"\"", "[]", "{}"] {
            serde_json::from_str::<Refused>(nothing).unwrap();
        }
        for something in ["true", "0", "\"x\"", "[null]", "{\"a\":1}"] {
            let error = serde_json::from_str::<Refused>(something).unwrap_err();
            assert!(error.to_string().contains("not supported"), "{something}");
        }
        serde_json::from_str::<Ignored>("{\"a\": [1, 2]}").unwrap();
    }
}
