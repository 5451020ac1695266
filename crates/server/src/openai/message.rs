//! The messages of a chat completion, and the tools that may be called.

use baton_engine::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::text_or::TextOr;
use crate::fields::{Ignored, Refused};
use crate::{ApiError, Result};

/// One message.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ChatMessage")]
pub struct InputMessage {
    /// Who speaks.
    role: Role,
    /// What is said: a text, or a list of parts.
    #[serde(default)]
    content: Option<TextOr<Vec<Part>>>,
    /// Who of several speaks; the tool whose result it is.
    #[serde(default)]
    name: Option<String>,
    /// Calls of tools that the assistant made.
    #[serde(default)]
    tool_calls: Option<Vec<InputCall>>,
    /// The call whose result a message of role `tool` is.
    #[serde(default)]
    tool_call_id: Option<String>,
    /// What the assistant thought before.
    #[serde(default)]
    reasoning_content: Option<String>,
    /// The same, under the name that other servers give it.
    #[serde(default)]
    reasoning: Option<String>,
    /// The refusal of another answer.
    #[serde(default)]
    refusal: Option<String>,
    /// Remarks on an answer.
    #[serde(default, rename = "annotations")]
    _annotations: Ignored,
    /// The marks of other servers on their own answers.
    #[serde(default, rename = "provider_specific_fields")]
    _provider_specific_fields: Ignored,
    /// Spoken answers.
    #[serde(default, rename = "audio")]
    _audio: Refused,
    /// The form of calls before there were tools; use `tool_calls`.
    #[serde(default, rename = "function_call")]
    _function_call: Refused,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    /// The same as `system`.
    Developer,
    User,
    Assistant,
    Tool,
}

/// A part of a content.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// The refusal of another answer.
    Refusal {
        /// Its text.
        refusal: String,
    },
    /// Not supported.
    ImageUrl {},
    /// Not supported.
    InputAudio {},
    /// Not supported.
    File {},
}

/// A call that the assistant made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatToolCall")]
struct InputCall {
    /// Its name.
    #[serde(default)]
    id: Option<String>,
    /// What was called.
    function: InputFunction,
}

/// What was called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatFunctionCall")]
struct InputFunction {
    /// The tool.
    name: String,
    /// Its arguments: an object, written as a string.
    #[serde(default)]
    arguments: Option<TextOr<Map<String, Value>>>,
}

/// A tool that may be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatTool")]
pub struct Tool {
    /// `function`; no other kind is supported.
    r#type: String,
    /// What can be called.
    #[serde(default)]
    function: Option<Function>,
}

/// A function that may be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatFunction")]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What it does, for the model to read.
    #[serde(default)]
    pub description: Option<String>,
    /// The schema of its arguments.
    #[serde(default)]
    pub parameters: Option<Map<String, Value>>,
}

/// The longest name of a tool.
const MAX_NAME: usize = 128;

impl InputMessage {
    /// The message in its neutral form. `place` is where it stands in the request.
    ///
    /// # Errors
    /// If it has parts that are not text, or lacks what its role needs.
    pub fn neutral(self, place: &str) -> Result<Message> {
        let role = match self.role {
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let mut extra = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            extra.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("name", self.name.map(Value::from));
        put("tool_call_id", self.tool_call_id.map(Value::from));
        put("reasoning_content", self.reasoning_content.or(self.reasoning).map(Value::from));
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let has_calls = calls.is_some();
        put("tool_calls", calls.map(|calls| calls.into_iter().map(InputCall::neutral).collect()));
        let content = match self.content.map(|content| text(content, place)).transpose()? {
            None => self.refusal,
            some => some,
        };
        if content.is_none() && !has_calls && role != "assistant" {
            let param = format!("{place}.content");
            return Err(ApiError::invalid(
                param,
                format!("a message of role {role} needs content"),
            ));
        }
        // Templates add texts up, and not all of them look first whether there is one.
        let content = Some(baton_text::Content::Text(content.unwrap_or_default()));
        Ok(Message { role: role.to_owned(), content, extra })
    }
}

/// The text of a content. Parts follow one another without anything between.
fn text(content: TextOr<Vec<Part>>, place: &str) -> Result<String> {
    let parts = match content {
        TextOr::Text(text) => return Ok(text),
        TextOr::Other(parts) => parts,
    };
    let text = |(index, part): (usize, Part)| {
        let kind = match part {
            Part::Text { text } => return Ok(text),
            Part::Refusal { refusal } => return Ok(refusal),
            Part::ImageUrl {} => "images",
            Part::InputAudio {} => "sounds",
            Part::File {} => "files",
        };
        let param = format!("{place}.content[{index}]");
        let message = format!("{param}: {kind} are not supported; send text");
        Err(ApiError::invalid(param, message))
    };
    parts.into_iter().enumerate().map(text).collect()
}

impl InputCall {
    fn neutral(self) -> Value {
        let arguments = match self.function.arguments {
            None => Value::from("{}"),
            Some(TextOr::Text(text)) => text.into(),
            Some(TextOr::Other(object)) => object.into(),
        };
        let mut call = json!({ "type": "function",
            "function": { "name": self.function.name, "arguments": arguments } });
        if let Some(id) = self.id {
            call["id"] = id.into();
        }
        call
    }
}

impl Tool {
    /// The tool as templates print it.
    ///
    /// # Errors
    /// If it is no function, or its name cannot be one.
    pub fn neutral(self, place: &str) -> Result<Value> {
        match (self.r#type.as_str(), self.function) {
            ("function", Some(function)) => function.neutral(&format!("{place}.function")),
            ("function", None) => {
                Err(ApiError::invalid(format!("{place}.function"), "a tool needs its function"))
            }
            (other, _) => {
                let message =
                    format!("tools of type {other:?} are not supported; use \"function\"");
                Err(ApiError::invalid(format!("{place}.type"), message))
            }
        }
    }
}

impl Function {
    /// The function as a tool, as templates print it.
    ///
    /// # Errors
    /// If its name cannot be one.
    pub fn neutral(self, place: &str) -> Result<Value> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(fits) {
            let message = format!(
                "{:?} is no name for a tool: letters, digits, `_`, `-` and `.` only, at most \
                 {MAX_NAME} of them",
                self.name
            );
            return Err(ApiError::invalid(format!("{place}.name"), message));
        }
        let mut function = json!({ "name": self.name });
        if let Some(description) = self.description {
            function["description"] = description.into();
        }
        // Many templates look at the parameters without asking whether there are any.
        let none = || json!({ "type": "object", "properties": {} });
        function["parameters"] = self.parameters.map_or_else(none, Value::from);
        Ok(json!({ "type": "function", "function": function }))
    }
}
