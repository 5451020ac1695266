//! What is asked for.

use baton_engine::Sampling;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::input::{self, Item};
use crate::chat::{ChatRequest, Format, ToolChoice, numbers};
use crate::fields::{Ignored, Refused, whole_number};
use crate::models::KeepAlive;
use crate::openai::chat_request::{ResponseFormat, Syntax, choice_word, stay, think};
use crate::openai::message::Function;
use crate::openai::sampling;
use crate::text_or::TextOr;
use crate::{ApiError, Result, ids};

/// A conversation to be answered.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ResponseRequest")]
pub struct Request {
    /// The model that answers.
    pub model: String,
    /// What is said: a text of the user, or all items of the conversation.
    input: TextOr<Vec<Item>>,
    /// What the model is to know or to be before the conversation begins.
    #[serde(default)]
    instructions: Option<String>,
    /// Send the answer in pieces, as it comes.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Padding of the pieces.
    #[serde(default, rename = "stream_options")]
    _stream_options: Ignored,
    /// Most tokens of the answer; without it as many as the context has room for.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    max_output_tokens: Option<i64>,
    /// Randomness: 0 always takes the likeliest token.
    #[serde(default)]
    temperature: Option<f32>,
    /// Choose among the likeliest tokens that together have this probability.
    #[serde(default)]
    top_p: Option<f32>,
    /// Choose among this many of the likeliest tokens; 0 for all.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    top_k: Option<i64>,
    /// Leave out tokens less likely than this times the likeliest.
    #[serde(default)]
    min_p: Option<f32>,
    /// Makes the answer repeatable.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    seed: Option<i64>,
    /// Tell of this many other likely tokens for each.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    top_logprobs: Option<usize>,
    /// What to add to the answer; `message.output_text.logprobs` is known.
    #[serde(default)]
    include: Option<Vec<String>>,
    /// The form of the answer.
    #[serde(default)]
    text: Option<Text>,
    /// Functions that the model may call.
    #[serde(default)]
    tools: Option<Vec<Tool>>,
    /// Whether it may, must not or must call one, or which one.
    #[serde(default)]
    tool_choice: Option<TextOr<NamedTool>>,
    /// Whether there may be several calls in an answer.
    #[serde(default)]
    parallel_tool_calls: Option<bool>,
    /// How much to think.
    #[serde(default)]
    reasoning: Option<Reasoning>,
    /// What to do with a conversation that is too long: `disabled`, which refuses it.
    #[serde(default)]
    truncation: Option<String>,
    /// How long the model stays in memory after this request.
    #[serde(default)]
    keep_alive: Option<KeepAlive>,
    /// The same, in seconds.
    #[serde(default)]
    ttl: Option<f64>,
    /// Comes back with the answer.
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
    /// Nothing is kept of a request.
    #[serde(default, rename = "store")]
    _store: Ignored,
    /// Who asks; nothing is kept of it.
    #[serde(default, rename = "user")]
    _user: Ignored,
    /// Who asks; nothing is kept of it.
    #[serde(default, rename = "safety_identifier")]
    _safety_identifier: Ignored,
    /// There is one tier.
    #[serde(default, rename = "service_tier")]
    _service_tier: Ignored,
    /// Prompts are always cached.
    #[serde(default, rename = "prompt_cache_key")]
    _prompt_cache_key: Ignored,
    /// Prompts stay cached as long as there is room.
    #[serde(default, rename = "prompt_cache_retention")]
    _prompt_cache_retention: Ignored,
    /// Most calls of built-in tools, of which there are none.
    #[serde(default, rename = "max_tool_calls")]
    _max_tool_calls: Ignored,
    /// Goes on from an answer that the server kept; it keeps none.
    #[serde(default, rename = "previous_response_id")]
    _previous_response_id: Refused,
    /// A conversation that the server kept; it keeps none.
    #[serde(default, rename = "conversation")]
    _conversation: Refused,
    /// A prompt that the server kept; it keeps none.
    #[serde(default, rename = "prompt")]
    _prompt: Refused,
    /// Answers that are fetched later.
    #[serde(default, rename = "background")]
    _background: Refused,
}

/// The form of an answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Text {
    /// Its form.
    #[serde(default)]
    format: Option<TextFormat>,
    /// How long an answer should be in general.
    #[serde(default, rename = "verbosity")]
    _verbosity: Ignored,
}

/// The form of a text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    /// Any text.
    Text {},
    /// Any JSON object.
    JsonObject {},
    /// JSON that fits a schema.
    JsonSchema {
        /// The schema.
        schema: Value,
    },
    /// Text that fits a grammar.
    Grammar {
        /// `regex` or `lark`.
        syntax: Syntax,
        /// The grammar.
        definition: String,
    },
}

/// How much to think.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    /// `none`, `minimal`, `low`, `medium` or `high`.
    #[serde(default)]
    effort: Option<String>,
    /// Thoughts come as they are.
    #[serde(default, rename = "summary")]
    _summary: Ignored,
    /// Thoughts come as they are.
    #[serde(default, rename = "generate_summary")]
    _generate_summary: Ignored,
}

/// A function that may be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseTool")]
struct Tool {
    /// `function`; no other kind is supported.
    #[serde(rename = "type")]
    kind: String,
    /// The function.
    #[serde(flatten)]
    function: Map<String, Value>,
}

/// The tool that must be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseNamedTool")]
struct NamedTool {
    /// `function`.
    #[serde(rename = "type")]
    kind: String,
    /// Which.
    #[serde(default)]
    name: Option<String>,
}

/// What include asks for with the text of an answer.
const LOGPROBS: &str = "message.output_text.logprobs";

impl Request {
    /// How long the model is to stay.
    pub fn keep_alive(&self) -> Result<Option<KeepAlive>> {
        stay(self.keep_alive, self.ttl)
    }

    /// An answer of which nothing is there yet. It repeats what was asked for.
    pub fn echo(&self) -> Value {
        let tools: Vec<Value> = self.tools.iter().flatten().map(Tool::echo).collect();
        let format = match self.text.as_ref().and_then(|text| text.format.as_ref()) {
            None | Some(TextFormat::Text {}) => json!({ "type": "text" }),
            Some(TextFormat::JsonObject {}) => json!({ "type": "json_object" }),
            Some(TextFormat::JsonSchema { schema }) => {
                json!({ "type": "json_schema", "name": "answer", "schema": schema, "strict": true })
            }
            Some(TextFormat::Grammar { definition, .. }) => {
                json!({ "type": "grammar", "definition": definition })
            }
        };
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_ref());
        json!({
            "id": ids::unique("resp_"),
            "object": "response",
            "created_at": ids::now(),
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": null,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": { "effort": effort, "summary": null },
            "service_tier": "default",
            "store": false,
            "temperature": self.temperature,
            "text": { "format": format },
            "tool_choice": self.choice_echo(),
            "tools": tools,
            "top_logprobs": self.top_logprobs.unwrap_or(0),
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": null,
            "user": null,
            "metadata": self.metadata.clone().unwrap_or_default(),
        })
    }

    fn choice_echo(&self) -> Value {
        match &self.tool_choice {
            None => "auto".into(),
            Some(TextOr::Text(word)) => word.as_str().into(),
            Some(TextOr::Other(tool)) => json!({ "type": tool.kind, "name": tool.name }),
        }
    }

    /// The request in its neutral form.
    ///
    /// # Errors
    /// If a field makes no sense, or asks for what Baton does not do.
    pub fn neutral(self) -> Result<ChatRequest> {
        if self.truncation.as_deref().is_some_and(|word| word != "disabled") {
            let instead = "nothing is cut off silently; leave out old items yourself";
            return Err(ApiError::unsupported("truncation", instead));
        }
        let wants_logprobs = self.include.iter().flatten().any(|what| what == LOGPROBS);
        let top = self.top_logprobs.filter(|&top| top > 0);
        let logprobs = match (wants_logprobs, top) {
            (_, Some(top)) => Some(sampling::top_logprobs("top_logprobs", top)?),
            (wanted, None) => wanted.then_some(0),
        };
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let tool = |(i, tool): (usize, Tool)| tool.neutral(&format!("tools[{i}]"));
        Ok(ChatRequest {
            messages: input::messages(self.instructions, self.input)?,
            tools: self.tools.into_iter().flatten().enumerate().map(tool).collect::<Result<_>>()?,
            tool_choice: self.tool_choice.map_or(Ok(ToolChoice::Auto), tool_choice)?,
            think: effort.map(|effort| think("reasoning.effort", effort)).transpose()?,
            format: self
                .text
                .and_then(|text| text.format)
                .map_or(Format::Text, TextFormat::neutral),
            sampling: Sampling {
                temperature: self.temperature,
                top_k: numbers::top_k(self.top_k),
                top_p: self.top_p,
                min_p: self.min_p,
                seed: numbers::seed(self.seed),
                logprobs,
                ..Sampling::default()
            },
            max_tokens: numbers::limit(self.max_output_tokens),
            stop: Vec::new(),
            template_variables: Map::new(),
            continue_last: false,
            parallel_tool_calls: self.parallel_tool_calls,
        })
    }
}

impl TextFormat {
    fn neutral(self) -> Format {
        match self {
            TextFormat::Text {} => Format::Text,
            TextFormat::JsonObject {} => Format::JsonObject,
            TextFormat::JsonSchema { schema } => Format::JsonSchema(schema),
            TextFormat::Grammar { syntax, definition } => {
                ResponseFormat::Grammar { syntax, definition }.neutral()
            }
        }
    }
}

impl Tool {
    fn echo(&self) -> Value {
        let mut tool = json!({ "type": self.kind, "parameters": null, "strict": null });
        if let Value::Object(fields) = &mut tool {
            fields.extend(self.function.clone());
        }
        tool
    }

    fn neutral(self, place: &str) -> Result<Value> {
        if self.kind != "function" {
            let kind = &self.kind;
            let message = format!("tools of type {kind:?} are not supported; use \"function\"");
            return Err(ApiError::invalid(format!("{place}.type"), message));
        }
        let function: Function = serde_json::from_value(self.function.into())
            .map_err(|error| ApiError::invalid(place, format!("{place}: {error}")))?;
        function.neutral(place)
    }
}

fn tool_choice(given: TextOr<NamedTool>) -> Result<ToolChoice> {
    match given {
        TextOr::Text(word) => choice_word(&word),
        TextOr::Other(NamedTool { kind, name: Some(name) }) if kind == "function" => {
            Ok(ToolChoice::Named(name))
        }
        TextOr::Other(NamedTool { kind, .. }) => {
            let message = format!(
                "tool_choice of type {kind:?} is not supported; use \"function\" and its name"
            );
            Err(ApiError::invalid("tool_choice", message))
        }
    }
}
