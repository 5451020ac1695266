//! Messages, tools and forms of answers, in Ollama's words and in ours.

use baton_text::{Content, Message as Neutral};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::chat::{Format, Think};
use crate::fields::Ignored;
use crate::{ApiError, Facts, Kind, Result};

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaMessage")]
pub(super) struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    role: String,
    content: Option<String>,
    /// What the assistant thought.
    thinking: Option<String>,
    /// Not supported: Baton runs no vision models.
    images: Option<Vec<Value>>,
    tool_calls: Option<Vec<Call>>,
    /// The tool that a result is of.
    tool_name: Option<String>,
    /// As `tool_name`.
    name: Option<String>,
    /// The call that a result is of.
    tool_call_id: Option<String>,
}

/// A call of a tool that the assistant made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaToolCall")]
struct Call {
    id: Option<String>,
    #[serde(default, rename = "type")]
    _kind: Ignored,
    function: CallFunction,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaFunctionCall")]
struct CallFunction {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    #[serde(default, rename = "index")]
    _index: Ignored,
}

/// Whether the model is to think first: `true`, `false`, or how much.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OllamaThink")]
pub(super) enum ThinkValue {
    Switch(bool),
    Effort(String),
}

impl Message {
    /// The message as templates know it; `at` is its number.
    ///
    /// # Errors
    /// If it has images.
    pub(super) fn neutral(self, at: usize) -> Result<Neutral> {
        no_images(&format!("messages[{at}].images"), self.images.as_deref())?;
        let mut extra = Map::new();
        if let Some(thinking) = self.thinking.filter(|text| !text.is_empty()) {
            extra.insert("reasoning_content".into(), thinking.into());
        }
        if let Some(calls) = self.tool_calls.filter(|calls| !calls.is_empty()) {
            let calls = calls.into_iter().map(|call| {
                let function = json!({
                    "name": call.function.name, "arguments": call.function.arguments,
                });
                let mut written = json!({ "type": "function", "function": function });
                if let Some(id) = call.id {
                    written["id"] = id.into();
                }
                written
            });
            extra.insert("tool_calls".into(), calls.collect());
        }
        if let Some(name) = self.tool_name.or(self.name) {
            extra.insert("name".into(), name.into());
        }
        if let Some(id) = self.tool_call_id {
            extra.insert("tool_call_id".into(), id.into());
        }
        let content = Some(Content::Text(self.content.unwrap_or_default()));
        Ok(Neutral { role: self.role, content, extra })
    }
}

/// Refuses images.
///
/// # Errors
/// If there are any.
pub(super) fn no_images(param: &str, images: Option<&[Value]>) -> Result<()> {
    match images {
        None | Some([]) => Ok(()),
        Some(_) => Err(ApiError::unsupported(param, "Baton runs no vision models; send text only")),
    }
}

/// The form of an answer: nothing, `"json"`, or a JSON schema.
///
/// # Errors
/// If it is none of these.
pub(super) fn format(value: Option<Value>) -> Result<Format> {
    match value {
        None | Some(Value::Null) => Ok(Format::Text),
        Some(Value::String(text)) if text.is_empty() => Ok(Format::Text),
        Some(Value::String(text)) if text == "json" => Ok(Format::JsonObject),
        Some(schema @ Value::Object(_)) => Ok(Format::JsonSchema(schema)),
        Some(other) => {
            let problem = format!("invalid format {other}; it must be \"json\" or a JSON schema");
            Err(ApiError::invalid("format", problem))
        }
    }
}

/// How much the model is to think.
///
/// # Errors
/// If that is none of the ways there are, or the model does not think.
pub(super) fn think(
    value: Option<ThinkValue>,
    facts: &Facts,
    model: &str,
) -> Result<Option<Think>> {
    let think = match value {
        None => return Ok(None),
        Some(ThinkValue::Switch(false)) => return Ok(Some(Think::Off)),
        Some(ThinkValue::Effort(text)) if text.is_empty() => return Ok(None),
        Some(ThinkValue::Switch(true)) => Think::On,
        Some(ThinkValue::Effort(text)) if matches!(&*text, "low" | "medium" | "high") => {
            Think::Effort(text)
        }
        Some(ThinkValue::Effort(text)) => {
            let problem = format!(
                "invalid think value {text:?}: it must be true, false, \"low\", \"medium\" or \
                 \"high\""
            );
            return Err(ApiError::invalid("think", problem));
        }
    };
    if !facts.capabilities.thinking {
        let message = format!("{model:?} does not support thinking");
        return Err(ApiError {
            param: Some("think".into()),
            ..ApiError::new(Kind::Invalid, message)
        });
    }
    Ok(Some(think))
}

/// The tools of a request, if the model knows how to call tools.
///
/// # Errors
/// If it does not, or one of them is no function with a name.
pub(super) fn tools(tools: Option<Vec<Value>>, facts: &Facts, model: &str) -> Result<Vec<Value>> {
    let tools = tools.unwrap_or_default();
    if !tools.is_empty() && !facts.capabilities.tools {
        return Err(ApiError::invalid("tools", format!("{model:?} does not support tools")));
    }
    for (at, tool) in tools.iter().enumerate() {
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            let param = format!("tools[{at}].function.name");
            let problem = format!("{param}: a tool must be a function with a name");
            return Err(ApiError::invalid(param, problem));
        }
    }
    Ok(tools)
}
