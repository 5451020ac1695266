//! Tool calls between two tags whose inside has a form of its own.

use serde_json::{Map, Value};

use super::json::{self, arguments_object};
use super::literal::Literals;
use super::sink::{Call, Tools};

/// The inside of such a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// `call:NAME{key:value}`, as Gemma 4 and FunctionGemma write.
    Gemma,
    /// `NAME<｜tool▁sep｜>{…}`, `function<｜tool▁sep｜>NAME` and the arguments in a fence, or JSON.
    DeepSeek,
    /// `functions.NAME:0<|tool_call_argument_begin|>{…}`.
    Kimi,
    /// `NAME` and `<arg_key>key</arg_key><arg_value>value</arg_value>`, as GLM writes.
    ArgKeys,
}

impl Inside {
    /// The call, if there is one.
    pub fn call(self, text: &str, tools: &Tools) -> Option<Call> {
        match self {
            Inside::Gemma => gemma(text),
            Inside::DeepSeek => deepseek(text),
            Inside::Kimi => kimi(text),
            Inside::ArgKeys => arg_keys(text, tools),
        }
    }
}

fn gemma(text: &str) -> Option<Call> {
    let mut literals = Literals::new(text);
    if !literals.eat("call:") {
        return None;
    }
    let name = literals.name(&['.', '-', ':'])?;
    // What a grammar has it write is JSON.
    let rest = literals.rest().trim_start();
    if let Some(arguments) = rest.starts_with('{').then(|| arguments_object(rest)).flatten() {
        return Some(Call { name: name.to_owned(), arguments });
    }
    if !literals.eat("{") {
        return None;
    }
    let arguments = Value::Object(literals.fields(":", "}")?).to_string();
    literals.skip_space();
    literals.rest().is_empty().then(|| Call { name: name.to_owned(), arguments })
}

fn deepseek(text: &str) -> Option<Call> {
    let Some((first, rest)) = text.split_once("<｜tool▁sep｜>") else {
        // Some templates show JSON instead.
        return json::calls(text).filter(|calls| calls.len() == 1)?.pop();
    };
    let rest = rest.trim();
    let (name, arguments) = match rest.strip_suffix("```") {
        Some(fenced) => fenced.split_once("```json")?,
        None => (first, rest),
    };
    let arguments = arguments_object(arguments)?;
    Some(Call { name: name.trim().to_owned(), arguments })
}

fn kimi(text: &str) -> Option<Call> {
    let (id, arguments) = text.split_once("<|tool_call_argument_begin|>")?;
    let id = id.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match name.rsplit_once(':') {
        Some((name, count)) if number(count) => name,
        _ => name,
    };
    Some(Call { name: name.to_owned(), arguments: arguments_object(arguments)? })
}

fn arg_keys(text: &str, tools: &Tools) -> Option<Call> {
    let end = text.find('<').unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    let name = name.trim().to_owned();
    let mut fields = Map::new();
    while let Some(pair) = rest.trim_start().strip_prefix("<arg_key>") {
        let (key, after) = pair.split_once("</arg_key>")?;
        let value = after.trim_start().strip_prefix("<arg_value>")?;
        let (value, after) = value.split_once("</arg_value>")?;
        fields.insert(key.trim().to_owned(), tools.value(&name, key.trim(), value));
        rest = after;
    }
    let arguments = Value::Object(fields).to_string();
    rest.trim().is_empty().then_some(Call { name, arguments })
}
