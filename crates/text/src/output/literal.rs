//! Values as Python and Gemma write them: `{'a': [1, True, None]}`, `{a:<|"|>text<|"|>,b:2}`.

use serde_json::{Map, Number, Value};

const MAX_DEPTH: usize = 100;
/// What Gemma's templates put around strings.
const QUOTES: [&str; 2] = ["<|\"|>", "<escape>"];

/// Reads literals from a text.
pub(super) struct Literals<'a> {
    rest: &'a str,
}

impl<'a> Literals<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    pub fn rest(&self) -> &'a str {
        self.rest
    }

    pub fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Skips space and takes `token` if it comes next.
    pub fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A name: letters, digits and `extra`.
    pub fn name(&mut self, extra: &[char]) -> Option<&'a str> {
        self.skip_space();
        let part = |c: char| c.is_alphanumeric() || c == '_' || extra.contains(&c);
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// `key SEPARATOR value, …` up to `close`, after the bracket that opened it.
    pub fn fields(&mut self, separator: &str, close: &str) -> Option<Map<String, Value>> {
        self.fields_at(separator, close, 0)
    }

    fn fields_at(
        &mut self,
        separator: &str,
        close: &str,
        depth: usize,
    ) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        while !self.eat(close) {
            let key = match self.text() {
                Some(key) => key?,
                None => self.name(&['-', '.', '$'])?.to_owned(),
            };
            if !self.eat(separator) {
                return None;
            }
            let value = self.value(depth)?;
            // A parameter that is there twice has no meaning.
            if fields.insert(key, value).is_some() {
                return None;
            }
            if !self.eat(",") {
                return self.eat(close).then_some(fields);
            }
        }
        Some(fields)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth == MAX_DEPTH {
            return None;
        }
        self.skip_space();
        if let Some(text) = self.text() {
            return text.map(Value::String);
        }
        if self.eat("{") {
            return self.fields_at(":", "}", depth + 1).map(Value::Object);
        }
        for (open, close) in [("[", "]"), ("(", ")")] {
            if self.eat(open) {
                return self.items(close, depth + 1).map(Value::Array);
            }
        }
        let word = self.name(&['-', '+', '.'])?;
        match word {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            "null" | "None" => Some(Value::Null),
            _ => number(word),
        }
    }

    fn items(&mut self, close: &str, depth: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(self.value(depth)?);
            if !self.eat(",") {
                return self.eat(close).then_some(items);
            }
        }
        Some(items)
    }

    /// A text in quotes; `None` if none begins here, `Some(None)` if it has no end.
    fn text(&mut self) -> Option<Option<String>> {
        self.skip_space();
        if let Some(quote) = QUOTES.iter().find(|quote| self.rest.starts_with(**quote)) {
            let inside = &self.rest[quote.len()..];
            return Some(inside.find(quote).map(|end| {
                self.rest = &inside[end + quote.len()..];
                inside[..end].to_owned()
            }));
        }
        let quotes = ["\"\"\"", "'''", "\"", "'"];
        let quote = quotes.iter().find(|quote| self.rest.starts_with(**quote))?;
        let inside = &self.rest[quote.len()..];
        let mut text = String::new();
        let mut chars = inside.char_indices();
        while let Some((place, c)) = chars.next() {
            if inside[place..].starts_with(quote) {
                self.rest = &inside[place + quote.len()..];
                return Some(Some(text));
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some(()) = escape(&mut chars, &mut text) else { return Some(None) };
        }
        Some(None)
    }
}

/// What stands behind a backslash in a Python text.
fn escape(chars: &mut std::str::CharIndices<'_>, text: &mut String) -> Option<()> {
    let (_, c) = chars.next()?;
    let plain = match c {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        _ => c,
    };
    let digits = match c {
        '\n' => return Some(()),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => {
            // Python leaves what it does not know as it is.
            if plain == c && !matches!(c, '\\' | '\'' | '"' | '/') {
                text.push('\\');
            }
            text.push(plain);
            return Some(());
        }
    };
    let mut code = 0;
    for _ in 0..digits {
        let (_, digit) = chars.next()?;
        code = (code << 4) | digit.to_digit(16)?;
    }
    text.push(char::from_u32(code)?);
    Some(())
}

fn number(word: &str) -> Option<Value> {
    if let Ok(whole) = word.parse::<i64>() {
        return Some(Value::Number(whole.into()));
    }
    let starts =
        word.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let value = word.parse::<f64>().ok().filter(|_| starts)?;
    Number::from_f64(value).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(text: &str) -> Option<Value> {
        let mut literals = Literals::new(text);
        let fields = literals.eat("{").then(|| literals.fields(":", "}"))??;
        literals.rest().is_empty().then_some(Value::Object(fields))
    }

    #[test]
    fn python_and_gemma_values_become_json() {
        let cases = [
            ("{}", json!({})),
            ("{'a': 1, \"b\": -2.5e3,}", json!({"a": 1, "b": -2500.0})),
            (
                "{a:<|\"|>it's \"x\"<|\"|>,b:[1,true,null]}",
                json!({"a": "it's \"x\"", "b": [1, true, null]}),
            ),
            ("{a:<escape>x<escape>}", json!({"a": "x"})),
            (
                "{'a': [True, False, None, ()], 'b': {'c': '''x'y'''}}",
                json!({"a": [true, false, null, []], "b": {"c": "x'y"}}),
            ),
            (r#"{'a': "q\"\n\u00e9\x41\d"}"#, json!({"a": "q\"\né\u{41}\\d"})),
        ];
        for (text, value) in cases {
            assert_eq!(object(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let deep = format!("{{a:{}{}}}", "[".repeat(5000), "]".repeat(5000));
        for text in [
            "{a}",
            "{a:}",
            "{a:x}",
            "{a:'x}",
            "{a:inf}",
            "{a:1 b:2}",
            "{a:1,a:2}",
            "{a:[1}",
            "{a:'\\u12'}",
            "{a:'\\ud800'}",
            "{a:1e999}",
            &deep,
        ] {
            assert_eq!(object(text), None, "{text}");
        }
    }
}
