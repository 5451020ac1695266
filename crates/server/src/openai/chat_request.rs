//! The request of a chat completion.

use std::collections::BTreeMap;

use baton_engine::Sampling;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::message::{InputMessage, Tool};
use super::sampling;
use crate::chat::{ChatRequest, Format, Think, ToolChoice, numbers};
use crate::fields::{Ignored, Refused, whole_number};
use crate::models::KeepAlive;
use crate::text_or::{TextOr, Texts};
use crate::{ApiError, Result};

/// A conversation to be answered.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ChatCompletionRequest")]
pub struct Request {
    /// The model that answers.
    pub model: String,
    /// The conversation so far.
    pub messages: Vec<InputMessage>,
    /// Send the answer in pieces, as it comes.
    #[serde(default)]
    pub stream: Option<bool>,
    /// What to send besides the pieces.
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of the answer; without it as many as the context has room for.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    max_tokens: Option<i64>,
    /// The same, under its newer name; it counts if both are given.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    max_completion_tokens: Option<i64>,
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
    /// Subtract this from the logits of tokens that occurred.
    #[serde(default)]
    presence_penalty: Option<f32>,
    /// Subtract this from the logits of tokens for each time they occurred.
    #[serde(default)]
    frequency_penalty: Option<f32>,
    /// Divide the logits of tokens that occurred by this.
    #[serde(default, alias = "repetition_penalty")]
    repeat_penalty: Option<f32>,
    /// Add to the logits of tokens, by their ids.
    #[serde(default)]
    logit_bias: Option<BTreeMap<String, f32>>,
    /// Makes the answer repeatable.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    seed: Option<i64>,
    /// Texts that end the answer and are not part of it.
    #[serde(default)]
    stop: Option<Texts>,
    /// Tell how likely each token was.
    #[serde(default)]
    logprobs: Option<bool>,
    /// Tell of this many other likely tokens for each.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    top_logprobs: Option<usize>,
    /// Number of answers.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    pub n: Option<usize>,
    /// The form of the answer.
    #[serde(default)]
    response_format: Option<ResponseFormat>,
    /// Functions that the model may call.
    #[serde(default)]
    tools: Option<Vec<Tool>>,
    /// Whether it may, must not or must call one, or which one.
    #[serde(default)]
    tool_choice: Option<TextOr<NamedTool>>,
    /// Whether there may be several calls in an answer.
    #[serde(default)]
    parallel_tool_calls: Option<bool>,
    /// How much to think: `none`, `minimal`, `low`, `medium`, `high`.
    #[serde(default)]
    reasoning_effort: Option<String>,
    /// Further variables of the model's chat template, such as `enable_thinking`.
    #[serde(default)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// The last message is the beginning of the answer.
    #[serde(default)]
    continue_final_message: Option<bool>,
    /// How long the model stays in memory after this request.
    #[serde(default)]
    keep_alive: Option<KeepAlive>,
    /// The same, in seconds.
    #[serde(default)]
    ttl: Option<f64>,
    /// Prompts are always cached.
    #[serde(default, rename = "cache_prompt")]
    _cache_prompt: Ignored,
    /// Prompts are always cached.
    #[serde(default, rename = "prompt_cache_key")]
    _prompt_cache_key: Ignored,
    /// Prompts stay cached as long as there is room.
    #[serde(default, rename = "prompt_cache_retention")]
    _prompt_cache_retention: Ignored,
    /// Who asks; nothing is kept of it.
    #[serde(default, rename = "user")]
    _user: Ignored,
    /// Who asks; nothing is kept of it.
    #[serde(default, rename = "safety_identifier")]
    _safety_identifier: Ignored,
    /// Nothing is kept of a request.
    #[serde(default, rename = "metadata")]
    _metadata: Ignored,
    /// Nothing is kept of a request.
    #[serde(default, rename = "store")]
    _store: Ignored,
    /// There is one tier.
    #[serde(default, rename = "service_tier")]
    _service_tier: Ignored,
    /// How long an answer should be in general.
    #[serde(default, rename = "verbosity")]
    _verbosity: Ignored,
    /// What may help to be fast.
    #[serde(default, rename = "prediction")]
    _prediction: Ignored,
    /// Kinds of answers; there is text only.
    #[serde(default)]
    modalities: Option<Vec<String>>,
    /// Spoken answers.
    #[serde(default, rename = "audio")]
    _audio: Refused,
    /// Searches in the web.
    #[serde(default, rename = "web_search_options")]
    _web_search_options: Refused,
    /// The form of tools before there were tools; use `tools`.
    #[serde(default, rename = "functions")]
    _functions: Refused,
    /// The form of `tool_choice` before there were tools.
    #[serde(default, rename = "function_call")]
    _function_call: Refused,
}

/// What to send besides the pieces of an answer.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// The number of tokens at the end.
    #[serde(default)]
    pub include_usage: Option<bool>,
    /// Padding against eavesdroppers.
    #[serde(default, rename = "include_obfuscation")]
    _include_obfuscation: Ignored,
}

/// The form of an answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Any text.
    Text {},
    /// Any JSON object.
    JsonObject {
        /// A schema for it, as llama-server has it.
        #[serde(default)]
        schema: Option<Value>,
    },
    /// JSON that fits a schema.
    JsonSchema {
        /// The schema with its name.
        json_schema: NamedSchema,
    },
    /// Text that fits a grammar.
    Grammar {
        /// `regex` or `lark`.
        syntax: Syntax,
        /// The grammar.
        definition: String,
    },
}

/// A schema with its name.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct NamedSchema {
    /// The schema.
    schema: Value,
}

/// A notation for grammars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Syntax {
    /// A regular expression, which the whole answer fits.
    Regex,
    /// Lark's notation.
    Lark,
}

/// The tool that must be called.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedTool {
    /// `function`.
    #[serde(rename = "type")]
    kind: String,
    /// Which.
    #[serde(default)]
    function: Option<ToolName>,
}

/// The name of a tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolName {
    /// The name.
    name: String,
}

impl Request {
    /// How long the model is to stay.
    pub fn keep_alive(&self) -> Result<Option<KeepAlive>> {
        stay(self.keep_alive, self.ttl)
    }

    /// Whether the number of tokens is wanted at the end of a stream.
    pub fn wants_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage) == Some(true)
    }

    /// The request in its neutral form.
    ///
    /// # Errors
    /// If a field makes no sense, or asks for what Baton does not do.
    pub fn neutral(self) -> Result<ChatRequest> {
        if self.modalities.iter().flatten().any(|kind| kind != "text") {
            return Err(ApiError::unsupported("modalities", "there is only \"text\""));
        }
        let message =
            |(i, message): (usize, InputMessage)| message.neutral(&format!("messages[{i}]"));
        let tool = |(i, tool): (usize, Tool)| tool.neutral(&format!("tools[{i}]"));
        let logprobs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Some(sampling::top_logprobs("top_logprobs", top.unwrap_or(0))?),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let message = "top_logprobs needs logprobs: true";
                return Err(ApiError::invalid("top_logprobs", message));
            }
        };
        Ok(ChatRequest {
            messages: self.messages.into_iter().enumerate().map(message).collect::<Result<_>>()?,
            tools: self.tools.into_iter().flatten().enumerate().map(tool).collect::<Result<_>>()?,
            tool_choice: self.tool_choice.map_or(Ok(ToolChoice::Auto), tool_choice)?,
            think: self
                .reasoning_effort
                .map(|effort| think("reasoning_effort", effort))
                .transpose()?,
            format: self.response_format.map_or(Format::Text, ResponseFormat::neutral),
            sampling: Sampling {
                temperature: self.temperature,
                top_k: numbers::top_k(self.top_k),
                top_p: self.top_p,
                min_p: self.min_p,
                repeat_penalty: self.repeat_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                logit_bias: sampling::logit_bias(self.logit_bias)?,
                seed: numbers::seed(self.seed),
                logprobs,
                ..Sampling::default()
            },
            max_tokens: numbers::limit(self.max_completion_tokens.or(self.max_tokens)),
            stop: self.stop.map_or_else(Vec::new, Texts::into_list),
            template_variables: self.chat_template_kwargs.unwrap_or_default(),
            continue_last: self.continue_final_message.unwrap_or(false),
            parallel_tool_calls: self.parallel_tool_calls,
        })
    }
}

impl ResponseFormat {
    /// The form in its neutral spelling.
    pub fn neutral(self) -> Format {
        match self {
            ResponseFormat::Text {} => Format::Text,
            ResponseFormat::JsonObject { schema: Some(schema) } => Format::JsonSchema(schema),
            ResponseFormat::JsonObject { schema: None } => Format::JsonObject,
            ResponseFormat::JsonSchema { json_schema } => Format::JsonSchema(json_schema.schema),
            ResponseFormat::Grammar { syntax: Syntax::Regex, definition } => {
                Format::Regex(definition)
            }
            ResponseFormat::Grammar { syntax: Syntax::Lark, definition } => {
                Format::Lark(definition)
            }
        }
    }
}

fn tool_choice(given: TextOr<NamedTool>) -> Result<ToolChoice> {
    let problem = |message: String| Err(ApiError::invalid("tool_choice", message));
    match given {
        TextOr::Text(text) => choice_word(&text),
        TextOr::Other(NamedTool { kind, function: Some(function) }) if kind == "function" => {
            Ok(ToolChoice::Named(function.name))
        }
        TextOr::Other(NamedTool { kind, .. }) => problem(format!(
            "tool_choice of type {kind:?} is not supported; use \"function\" and its name"
        )),
    }
}

/// `auto`, `none` or `required`.
pub fn choice_word(text: &str) -> Result<ToolChoice> {
    match text {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => {
            let message = format!(
                "tool_choice is {other:?}; it must be \"auto\", \"none\", \"required\" or a function"
            );
            Err(ApiError::invalid("tool_choice", message))
        }
    }
}

/// Reads how much to think.
pub fn think(param: &str, effort: String) -> Result<Think> {
    match effort.as_str() {
        "none" | "off" => Ok(Think::Off),
        "minimal" => Ok(Think::Effort("low".into())),
        "low" | "medium" | "high" => Ok(Think::Effort(effort)),
        "xhigh" | "max" => Ok(Think::Effort("high".into())),
        other => {
            let message =
                format!("{param} is {other:?}; it must be none, minimal, low, medium or high");
            Err(ApiError::invalid(param, message))
        }
    }
}

/// How long a model stays, by either of the two fields that say so.
pub fn stay(keep_alive: Option<KeepAlive>, ttl: Option<f64>) -> Result<Option<KeepAlive>> {
    let Some(seconds) = ttl.filter(|_| keep_alive.is_none()) else { return Ok(keep_alive) };
    match KeepAlive::from_seconds(seconds) {
        Some(time) => Ok(Some(time)),
        None => Err(ApiError::invalid("ttl", format!("ttl is {seconds}; it must be seconds"))),
    }
}
