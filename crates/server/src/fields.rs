//! Fields of requests that are read in a way of their own: those that have no effect, those that are
//! refused, and whole numbers.
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

/// A whole number, which some clients write as `4096.0`.
pub fn whole_number<'de, D, N>(deserializer: D) -> Result<Option<N>, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<i64>,
{
    let value = Value::deserialize(deserializer)?;
    let read = match &value {
        Value::Null => return Ok(None),
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15)?;
            Some(float as i64)
        }),
        _ => None,
    };
    match read.and_then(|number| N::try_from(number).ok()) {
        Some(number) => Ok(Some(number)),
        None => {
            // Of a type without a sign, 0 is the least.
            let least = if N::try_from(-1).is_err() { " of at least 0" } else { "" };
            let problem = format!("invalid value {value}: expected a whole number{least}");
            Err(D::Error::custom(problem))
        }
    }
}

/// As [`whole_number`], for a field that must be there.
pub fn needed_number<'de, D, N>(deserializer: D) -> Result<N, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<i64>,
{
    whole_number(deserializer)?.ok_or_else(|| D::Error::custom("expected a whole number, not null"))
}

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
    fn numbers_are_whole_however_they_are_written() {
        let signed =
            |text: &str| whole_number::<_, i64>(&mut serde_json::Deserializer::from_str(text));
        let unsigned =
            |text: &str| whole_number::<_, u64>(&mut serde_json::Deserializer::from_str(text));
        assert_eq!(signed("16").unwrap(), Some(16));
        assert_eq!((signed("16.0").unwrap(), signed("-1e3").unwrap()), (Some(16), Some(-1000)));
        assert_eq!((signed("null").unwrap(), unsigned("5.0").unwrap()), (None, Some(5)));
        for bad in ["1.5", "1e300", "\"1\"", "[]", "true"] {
            assert!(signed(bad).is_err(), "{bad}");
        }
        let error = unsigned("-1.0").unwrap_err().to_string();
        assert!(error.contains("at least 0"), "{error}");
        let needed =
            |text: &str| needed_number::<_, u8>(&mut serde_json::Deserializer::from_str(text));
        assert_eq!(needed("7.0").unwrap(), 7);
        assert!(needed("null").is_err() && needed("256").is_err());
    }

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
