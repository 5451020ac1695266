//! How long a model stays in memory when nobody uses it.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// This long; not at all for zero.
    For(Duration),
    /// Until it is unloaded, or its memory is needed for another model.
    Forever,
}

/// Longer than any server runs, and short enough to be added to a point in time.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl KeepAlive {
    /// A number of seconds; one below zero is for ever.
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        if seconds < 0.0 {
            return Some(KeepAlive::Forever);
        }
        if seconds > LONGEST.as_secs_f64() {
            return Some(KeepAlive::Forever);
        }
        Duration::try_from_secs_f64(seconds).ok().map(KeepAlive::For)
    }

    /// Reads `5m`, `1h30m`, `90s`, `250ms`, or a bare number of seconds; one below zero is for ever.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Ok(seconds) = text.parse::<f64>() {
            return Self::from_seconds(seconds);
        }
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let number: f64 = rest[..digits].parse().ok()?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
            seconds += number * unit(&rest[..letters])?;
            rest = &rest[letters..];
        }
        let digits = text.len() > usize::from(negative);
        Self::from_seconds(if negative { -1.0 } else { seconds }).filter(|_| digits)
    }
}

fn unit(name: &str) -> Option<f64> {
    Some(match name {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

impl<'de> Deserialize<'de> for KeepAlive {
    /// A number of seconds, or a text as [`KeepAlive::parse`] reads it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Seconds(f64),
            Text(String),
        }
        let read = match Form::deserialize(deserializer) {
            Ok(Form::Seconds(seconds)) => Self::from_seconds(seconds),
            Ok(Form::Text(text)) => Self::parse(&text),
            Err(_) => None,
        };
        read.ok_or_else(|| {
            let wanted = "a time must be a number of seconds or a text such as \"5m\" or \"1h30m\"";
            serde::de::Error::custom(wanted)
        })
    }
}

impl schemars::JsonSchema for KeepAlive {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeepAlive".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": ["number", "string"],
            "description": "Seconds, or a text such as \"5m\"; below zero is for ever.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: f64) -> Option<KeepAlive> {
        Some(KeepAlive::For(Duration::from_secs_f64(n)))
    }

    #[test]
    fn texts_are_read_as_clients_write_them() {
        let read = KeepAlive::parse;
        assert_eq!(read("5m"), seconds(300.0));
        assert_eq!(read("1h30m"), seconds(5400.0));
        assert_eq!(read("1.5s"), seconds(1.5));
        assert_eq!(read("250ms"), seconds(0.25));
        assert_eq!(read("90"), seconds(90.0));
        assert_eq!(read("0"), seconds(0.0));
        for forever in ["-1", "-1m", "-5h", "1e30", "999999999h"] {
            assert_eq!(read(forever), Some(KeepAlive::Forever), "{forever}");
        }
        for bad in ["", "-", "m", "5 m", "5x", "5m3", "NaN", "..s", "1..2s", "five"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_are_seconds() {
        let read = |json: &str| serde_json::from_str::<KeepAlive>(json);
        assert_eq!(read("0").ok(), seconds(0.0));
        assert_eq!(read("-1").unwrap(), KeepAlive::Forever);
        assert_eq!(read("\"10m\"").ok(), seconds(600.0));
        for bad in ["true", "[]", "\"soon\"", "null"] {
            assert!(read(bad).unwrap_err().to_string().contains("5m"), "{bad}");
        }
    }
}
