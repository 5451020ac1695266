//! What templates written for Python expect of their language.
//!
//! Values print as Python prints them (`True`, `None`, `['a']`), strings have Python's methods, and
//! `tojson` writes what `json.dumps(..., ensure_ascii=False)` does.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// How deep a printed value may be nested.
const MAX_DEPTH: usize = 64;
/// The longest text that one value may print as. A small value can hold the same list again and
/// again, and print longer than any memory.
const MAX_PRINTED: usize = 8 << 20;
/// The deepest indentation of one level of JSON.
const MAX_INDENT: usize = 16;

/// The words of a template that called `raise_exception`.
#[derive(Debug)]
pub(super) struct Refused(pub String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Adds filters, functions, tests and methods to `environment`.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_formatter(|out, _, value| {
        let mut text = String::new();
        print(value, &mut text)?;
        out.write_str(&text).map_err(Error::from)
    });
    environment.set_unknown_method_callback(method);
    // Python's language does not have it, and it joins lists without a charge for their items.
    environment.remove_filter("chain");
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: Value| -> Result<String, Error> {
        let mut text = String::new();
        print(&value, &mut text)?;
        Ok(text)
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
            .with_source(Refused(message)))
    });
    // To Jinja an undefined value is an empty sequence, and a string is one of characters.
    environment.add_test("sequence", |value: Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_test("iterable", |value: Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
}

/// The function `strftime_now`, which tells `now` or else the time of the clock.
pub(super) fn strftime_now(now: Option<jiff::civil::DateTime>) -> Value {
    Value::from_function(move |format: String| -> Result<String, Error> {
        let now = now.unwrap_or_else(|| jiff::Zoned::now().datetime());
        jiff::fmt::strtime::format(&format, now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    })
}

/// Python's methods of strings, lists and dictionaries.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let affix = |strip: fn(&'_ str, &str) -> Option<usize>| -> Option<Value> {
        let (text, affix) = (value.as_str()?, args.first()?.as_str()?);
        Some(match strip(text, affix) {
            Some(length) if name == "removeprefix" => Value::from(&text[text.len() - length..]),
            Some(length) => Value::from(&text[..length]),
            None => value.clone(),
        })
    };
    let own = match name {
        "removeprefix" => affix(|text, prefix| text.strip_prefix(prefix).map(str::len)),
        "removesuffix" => affix(|text, suffix| text.strip_suffix(suffix).map(str::len)),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Appends `str(value)`.
fn print(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => {
            out.push_str(value.as_str().unwrap_or_default());
            Ok(())
        }
        _ => represent(value, out, 0),
    }
}

/// Appends `repr(value)`.
fn represent(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check_bounds(out, depth)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => represent_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                represent(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                represent(&key, out, depth + 1)?;
                out.push_str(": ");
                represent(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => _ = write!(out, "{value}"),
    }
    Ok(())
}

/// Appends a string in quotes, as Python chooses them.
fn represent_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if character.is_control() => _ = write!(out, "\\x{:02x}", u32::from(character)),
            _ => out.push(character),
        }
    }
    out.push(quote);
}

/// How JSON is laid out.
struct Layout {
    indent: Option<usize>,
    between: String,
    after_key: String,
    sorted: bool,
    ascii: bool,
}

/// The filter `tojson`.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let mut layout = Layout {
        indent: indent.map(|indent| indent.min(MAX_INDENT)),
        between: if indent.is_some() { "," } else { ", " }.to_owned(),
        after_key: ": ".to_owned(),
        sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    if let Some(separators) = separators {
        let [between, after_key] = <[String; 2]>::try_from(separators).map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings")
        })?;
        (layout.between, layout.after_key) = (between, after_key);
    }
    let mut out = String::new();
    layout.write(value, &mut out, 0)?;
    Ok(out)
}

impl Layout {
    fn write(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        check_bounds(out, depth)?;
        match value.kind() {
            ValueKind::Undefined => {
                return Err(Error::new(
                    ErrorKind::UndefinedError,
                    "tojson: an undefined value has no JSON",
                ));
            }
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                self.write_list(['[', ']'], value.try_iter()?, out, depth, |item, out| {
                    self.write(&item, out, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.write_list(['{', '}'], keys.iter(), out, depth, |key, out| {
                    match key.as_str() {
                        Some(text) => self.write_text(text, out),
                        None => self.write_text(&key.to_string(), out),
                    }
                    out.push_str(&self.after_key);
                    self.write(&value.get_item(key)?, out, depth + 1)
                })?;
            }
            _ => _ = write!(out, "{value}"),
        }
        Ok(())
    }

    fn write_list<T>(
        &self,
        [open, close]: [char; 2],
        items: impl IntoIterator<Item = T>,
        out: &mut String,
        depth: usize,
        mut write: impl FnMut(T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        out.push(open);
        let mut empty = true;
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                out.push_str(&self.between);
            }
            line(out, depth + 1);
            write(item, out)?;
            empty = false;
        }
        if !empty {
            line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => _ = write!(out, "\\u{:04x}", u32::from(character)),
                _ if self.ascii && !character.is_ascii() => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// Refuses a value that is nested too deeply, or has become too long a text.
fn check_bounds(out: &str, depth: usize) -> Result<(), Error> {
    let problem = if depth > MAX_DEPTH {
        format!("a value is nested deeper than {MAX_DEPTH}")
    } else if out.len() > MAX_PRINTED {
        format!("a value prints longer than {MAX_PRINTED} bytes")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidOperation, problem))
}
