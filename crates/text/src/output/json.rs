//! Tool calls written as JSON.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::body::Progress;
use super::sink::Call;

/// How deep arguments may nest; parsers of JSON give up soon after.
const MAX_DEPTH: usize = 100;
/// The keys that an object may start with to be taken for a call where no marker announces one.
const FIRST_KEYS: [&str; 6] = ["name", "type", "function", "id", "tool_name", "tool_call_id"];
const LONGEST_KEY: usize = 16;

/// Finds the end of an object or a list, a character at a time, and says at once if it is no JSON.
///
/// Numbers are only looked over, and line breaks in strings let pass, as models write them.
#[derive(Clone, Debug)]
pub(super) struct JsonScan {
    /// The open brackets; true is an object.
    stack: Vec<bool>,
    at: At,
    /// The first key as far as it is read, if it decides.
    first_key: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    Text {
        key: bool,
        escaped: bool,
    },
    Number,
    /// What is left of `true`, `false` or `null`.
    Word(&'static str),
}

impl JsonScan {
    /// With `bare`, objects that do not begin like a call are refused.
    pub fn new(bare: bool) -> Self {
        let first_key = bare.then(String::new);
        Self { stack: Vec::new(), at: At::Value, first_key }
    }

    pub fn push(&mut self, c: char) -> Progress {
        match self.next(c) {
            None => Progress::Failed,
            Some(_) if self.stack.is_empty() => Progress::Done,
            Some(at) => {
                self.at = at;
                Progress::More
            }
        }
    }

    fn next(&mut self, c: char) -> Option<At> {
        let space = matches!(c, ' ' | '\t' | '\r' | '\n');
        match self.at {
            At::Text { key, escaped: true } => {
                let known = matches!(c, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u');
                known.then_some(At::Text { key, escaped: false })
            }
            At::Text { key, .. } => match c {
                '\\' => Some(At::Text { key, escaped: true }),
                '"' if key => self.fits().then_some(At::Colon),
                '"' => Some(At::CommaOrEnd),
                _ => {
                    if let Some(first) = self.first_key.as_mut().filter(|_| key) {
                        first.push(c);
                        return (first.len() <= LONGEST_KEY).then_some(self.at);
                    }
                    Some(self.at)
                }
            },
            At::Word(rest) => match rest.strip_prefix(c)? {
                "" => Some(At::CommaOrEnd),
                rest => Some(At::Word(rest)),
            },
            At::Number => match c {
                '0'..='9' | '+' | '-' | '.' | 'e' | 'E' => Some(At::Number),
                _ => {
                    self.at = At::CommaOrEnd;
                    self.next(c)
                }
            },
            // Outside of everything there is no space to skip: the caller did.
            _ if space => (!self.stack.is_empty()).then_some(self.at),
            At::Value => self.value(c),
            At::ValueOrEnd if c == ']' => self.close(false),
            At::ValueOrEnd => self.value(c),
            At::KeyOrEnd if c == '}' => self.close(true),
            At::Key | At::KeyOrEnd => (c == '"').then_some(At::Text { key: true, escaped: false }),
            At::Colon => (c == ':').then_some(At::Value),
            At::CommaOrEnd => match c {
                ',' if *self.stack.last()? => Some(At::Key),
                ',' => Some(At::Value),
                '}' => self.close(true),
                ']' => self.close(false),
                _ => None,
            },
        }
    }

    fn value(&mut self, c: char) -> Option<At> {
        let container = matches!(c, '{' | '[');
        if !container && self.stack.is_empty() || self.stack.len() == MAX_DEPTH {
            return None;
        }
        if container {
            self.stack.push(c == '{');
        }
        match c {
            '{' => Some(At::KeyOrEnd),
            // Where it matters, a list of anything but objects is none of calls.
            '[' => (self.first_key.is_none() || self.stack.len() == 1).then_some(At::ValueOrEnd),
            _ if self.first_key.is_some() && self.stack.last() == Some(&false) => None,
            '"' => Some(At::Text { key: false, escaped: false }),
            't' => Some(At::Word("rue")),
            'f' => Some(At::Word("alse")),
            'n' => Some(At::Word("ull")),
            '-' | '0'..='9' => Some(At::Number),
            _ => None,
        }
    }

    fn close(&mut self, object: bool) -> Option<At> {
        (self.stack.pop()? == object).then_some(At::CommaOrEnd)
    }

    /// Whether a key may be where it is: only the first one can be wrong.
    fn fits(&mut self) -> bool {
        self.first_key.take().is_none_or(|key| FIRST_KEYS.contains(&key.as_str()))
    }
}

/// The calls in a JSON text: one object or a list of them.
pub(super) fn calls(text: &str) -> Option<Vec<Call>> {
    let text = escape_controls(text.trim());
    if text.starts_with('[') {
        let list: Vec<&RawValue> = serde_json::from_str(&text).ok()?;
        return list.into_iter().map(|call| one(call.get(), true)).collect();
    }
    Some(vec![one(&text, true)?])
}

/// A call in one of the forms that models use.
fn one(text: &str, may_wrap: bool) -> Option<Call> {
    let fields: HashMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let wrapped = fields.get("function").filter(|inner| inner.get().starts_with('{'));
    if let Some(inner) = wrapped.filter(|_| may_wrap) {
        return one(inner.get(), false);
    }
    let name = ["name", "function", "tool_name"].iter().find_map(|key| fields.get(*key))?;
    let name: String = serde_json::from_str(name.get()).ok()?;
    let given = ["arguments", "parameters", "args"].iter().find_map(|key| fields.get(*key));
    let arguments = given.map_or("{}", |raw| raw.get());
    Some(Call { name, arguments: arguments_object(arguments)? })
}

/// The arguments of a call as a JSON object: what is an object, a string that holds one, or null.
pub(super) fn arguments_object(text: &str) -> Option<String> {
    let text = escape_controls(text.trim());
    if text.is_empty() || text == "null" {
        return Some("{}".to_owned());
    }
    if text.starts_with('"') {
        let inner: String = serde_json::from_str(&text).ok()?;
        let inner = inner.trim();
        return (!inner.starts_with('"')).then(|| arguments_object(inner))?;
    }
    serde_json::from_str::<Map<String, Value>>(&text).ok()?;
    Some(text.into_owned())
}

/// The text with line breaks and the like in strings written as JSON wants them.
fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c < ' ') {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len() + 16);
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        if quoted && c < ' ' {
            match c {
                '\n' => result.push_str("\\n"),
                '\r' => result.push_str("\\r"),
                '\t' => result.push_str("\\t"),
                _ => result.push_str(&format!("\\u{:04x}", u32::from(c))),
            }
            escaped = false;
            continue;
        }
        quoted ^= c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        result.push(c);
    }
    Cow::Owned(result)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The length of the JSON that `text` begins with.
    fn scan(text: &str, bare: bool) -> Option<usize> {
        let mut scan = JsonScan::new(bare);
        for (place, c) in text.char_indices() {
            match scan.push(c) {
                Progress::More => {}
                Progress::Done => return Some(place + c.len_utf8()),
                Progress::Failed => return None,
            }
        }
        None
    }

    #[test]
    fn the_end_of_a_value_is_found() {
        for text in ["{}", "[]", r#"{"a" : [1, -2.5e3, true,false ,null], "b\"}": {"c": "é\\"}}"#]
        {
            assert_eq!(scan(&format!("{text}}}]"), false), Some(text.len()), "{text}");
        }
        for text in
            ["1", "\"a\"", "[1 2]", "[,]", "{a:1}", "{\"a\"}", "[tru]", "[}", "{\"a\\x\":1}"]
        {
            assert_eq!(scan(text, false), None, "{text}");
        }
    }

    #[test]
    fn only_what_begins_like_a_call_is_read_without_a_marker() {
        for text in [r#"{"name": [["x"]]}"#, r#"[{"type": 1}, 2]"#] {
            assert_eq!(scan(text, true), Some(text.len()), "{text}");
        }
        for text in [r#"{"title": 1}"#, "[1]", "[[{", r#"["name"]"#, r#"{"a_very_long_key_that"#] {
            assert_eq!(scan(text, true), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn what_is_json_is_never_refused(text in r#"[{}\[\]",:\\ a-c1-2.e-]{0,24}"#) {
            let text = format!("{{\"a\":[{text}]}}");
            if serde_json::from_str::<Value>(&text).is_ok() {
                prop_assert_eq!(scan(&text, false), Some(text.len()));
            }
        }

        #[test]
        fn arguments_are_objects(text in r#"[{}"\\:a\n1]{0,12}"#) {
            if let Some(object) = arguments_object(&text) {
                prop_assert!(serde_json::from_str::<Map<String, Value>>(&object).is_ok());
            }
        }
    }
}
