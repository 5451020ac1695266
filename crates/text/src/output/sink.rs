//! Where the parsers put what they find.

use std::collections::HashMap;

use serde_json::Value;

use super::Piece;

/// A tool call as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

/// What is known of the tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    pub names: Vec<String>,
    /// The JSON schemas of parameters, by tool and parameter.
    schemas: HashMap<String, HashMap<String, Value>>,
}

impl Tools {
    /// Takes the schemas out of a list of tools as in the OpenAI API.
    pub fn learn(&mut self, tools: &Value) {
        for tool in tools.as_array().into_iter().flatten() {
            let function = tool.get("function").unwrap_or(tool);
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            let properties = schema.and_then(|schema| schema["properties"].as_object());
            let (Some(name), Some(properties)) = (function["name"].as_str(), properties) else {
                continue;
            };
            let properties = properties.iter().map(|(key, value)| (key.clone(), value.clone()));
            self.schemas.insert(name.to_owned(), properties.collect());
        }
    }

    pub fn knows(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// The value of an argument that was written as bare text: JSON, unless its schema says that it
    /// is a string or it is no JSON.
    pub fn value(&self, tool: &str, parameter: &str, text: &str) -> Value {
        let schema = self.schemas.get(tool).and_then(|schema| schema.get(parameter));
        let kind = schema.map(|schema| &schema["type"]);
        let string = || Value::String(text.to_owned());
        if kind.is_some_and(|kind| kind == "string") {
            return string();
        }
        match serde_json::from_str(text.trim()) {
            Ok(value) => value,
            Err(_) => match text.trim() {
                // Models that think in Python write its names.
                "True" => Value::Bool(true),
                "False" => Value::Bool(false),
                "None" => Value::Null,
                _ => string(),
            },
        }
    }
}

/// Collects pieces and joins neighbours of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Sink {
    pieces: Vec<Piece>,
    calls: usize,
    pub tools: Tools,
}

impl Sink {
    pub fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    pub fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }

    /// Takes the calls if all of their tools are known; false if not.
    #[must_use]
    pub fn calls(&mut self, calls: Option<Vec<Call>>) -> bool {
        let known = |call: &Call| self.tools.knows(&call.name);
        let Some(calls) = calls.filter(|calls| !calls.is_empty() && calls.iter().all(known)) else {
            return false;
        };
        for Call { name, arguments } in calls {
            let index = self.calls;
            self.calls += 1;
            self.pieces.push(Piece::ToolCallStart { index, name });
            self.pieces.push(Piece::ToolCallArguments { index, json: arguments });
            self.pieces.push(Piece::ToolCallEnd { index });
        }
        true
    }

    pub fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }
}
