//! Requests, and how they become the form that all interfaces share.

use baton_engine::{Message, Sampling};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{Content, InMessage};
use crate::chat::{ChatRequest, Format, Think, ToolChoice as NeutralChoice, VOLATILE};
use crate::fields::{Ignored, Refused, needed_number, whole_number};
use crate::models::KeepAlive;
use crate::{ApiError, Result};

/// A conversation to be answered.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AnthropicMessagesRequest")]
pub(super) struct MessagesRequest {
    /// The model.
    pub model: String,
    /// Most tokens of the answer.
    #[serde(deserialize_with = "needed_number")]
    #[schemars(with = "u64")]
    pub max_tokens: u64,
    /// The conversation so far.
    messages: Vec<InMessage>,
    /// Instructions for the model.
    system: Option<Content>,
    /// Whether the answer comes as events.
    #[serde(default)]
    pub stream: bool,
    /// Randomness: 0 always takes the likeliest token.
    temperature: Option<f32>,
    /// Choose among the likeliest tokens that together have this probability.
    top_p: Option<f32>,
    /// Choose among this many of the likeliest tokens; 0 for all.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    top_k: Option<usize>,
    /// Texts that end the answer.
    stop_sequences: Option<Vec<String>>,
    /// Tools that the model may call.
    tools: Option<Vec<Tool>>,
    /// Whether it is to call one.
    tool_choice: Option<ToolChoice>,
    /// Whether the model thinks first; not if not said.
    thinking: Option<Thinking>,
    /// The form of the answer, and how much the model thinks.
    output_config: Option<OutputConfig>,
    /// A JSON schema that the answer fits.
    output_format: Option<OutputFormat>,
    /// How long the model stays in memory.
    pub keep_alive: Option<KeepAlive>,
    /// As `keep_alive`, in seconds.
    pub ttl: Option<KeepAlive>,
    /// Nothing is kept of a request.
    #[serde(default, rename = "metadata")]
    _metadata: Ignored,
    /// There is one tier.
    #[serde(default, rename = "service_tier")]
    _service_tier: Ignored,
    /// All prompts are cached.
    #[serde(default, rename = "cache_control")]
    _cache_control: Ignored,
    /// Nothing is ever taken out of a conversation.
    #[serde(default, rename = "context_management")]
    _context_management: Ignored,
    /// Everything happens on this machine.
    #[serde(default, rename = "inference_geo")]
    _inference_geo: Ignored,
    /// Baton runs no tools itself.
    #[serde(default, rename = "container")]
    _container: Refused,
    /// Baton runs no tools itself.
    #[serde(default, rename = "mcp_servers")]
    _mcp_servers: Refused,
}

/// A conversation whose tokens are to be counted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AnthropicCountRequest")]
pub(super) struct CountRequest {
    /// The model.
    pub model: String,
    /// The conversation so far.
    messages: Vec<InMessage>,
    /// Instructions for the model.
    system: Option<Content>,
    /// Tools that the model may call.
    tools: Option<Vec<Tool>>,
    /// Whether it is to call one.
    tool_choice: Option<ToolChoice>,
    /// Whether the model thinks first; not if not said.
    thinking: Option<Thinking>,
    /// The form of the answer, and how much the model thinks.
    output_config: Option<OutputConfig>,
    /// A JSON schema that the answer fits.
    output_format: Option<OutputFormat>,
    /// All prompts are cached.
    #[serde(default, rename = "cache_control")]
    _cache_control: Ignored,
    /// Nothing is ever taken out of a conversation.
    #[serde(default, rename = "context_management")]
    _context_management: Ignored,
    /// Baton runs no tools itself.
    #[serde(default, rename = "mcp_servers")]
    _mcp_servers: Refused,
}

/// A tool that the model may call.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AnthropicTool")]
struct Tool {
    name: String,
    description: Option<String>,
    /// A JSON schema of the arguments.
    input_schema: Option<Value>,
    /// `custom`: tools that Anthropic runs itself are not here.
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default, rename = "cache_control")]
    _cache_control: Ignored,
    #[serde(default, rename = "eager_input_streaming")]
    _eager_input_streaming: Ignored,
    #[serde(default, rename = "strict")]
    _strict: Ignored,
    #[serde(default, rename = "input_examples")]
    _input_examples: Ignored,
}

/// Whether the model is to call a tool.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "AnthropicToolChoice")]
enum ToolChoice {
    Auto {
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    Any {
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    Tool {
        name: String,
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    None {},
}

/// Whether the model thinks first.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "AnthropicThinking")]
enum Thinking {
    Enabled {
        /// The model thinks for as long as it likes.
        #[serde(default, rename = "budget_tokens")]
        _budget_tokens: Ignored,
        #[serde(default, rename = "display")]
        _display: Ignored,
    },
    Adaptive {
        #[serde(default, rename = "display")]
        _display: Ignored,
    },
    Disabled {},
}

#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AnthropicOutputConfig")]
struct OutputConfig {
    /// How much the model thinks, if it thinks.
    effort: Option<String>,
    format: Option<OutputFormat>,
}

/// The form of the answer.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "AnthropicOutputFormat")]
enum OutputFormat {
    JsonSchema { schema: Value },
}

/// What a request of either kind has in common with the other.
macro_rules! conversation {
    ($request:expr) => {
        Conversation {
            messages: $request.messages,
            system: $request.system,
            tools: $request.tools,
            tool_choice: $request.tool_choice,
            thinking: $request.thinking,
            output_config: $request.output_config,
            output_format: $request.output_format,
        }
    };
}

impl MessagesRequest {
    /// The request as all interfaces share it.
    ///
    /// # Errors
    /// If there is anything in it that is not supported or makes no sense.
    pub(super) fn neutral(self) -> Result<ChatRequest> {
        if self.max_tokens == 0 {
            return Err(ApiError::invalid("max_tokens", "max_tokens must be at least 1"));
        }
        let mut request = conversation!(self).neutral()?;
        request.max_tokens = Some(usize::try_from(self.max_tokens).unwrap_or(usize::MAX));
        request.stop = self.stop_sequences.unwrap_or_default();
        request.sampling = Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            ..Sampling::default()
        };
        Ok(request)
    }
}

impl CountRequest {
    /// The request as all interfaces share it.
    ///
    /// # Errors
    /// If there is anything in it that is not supported or makes no sense.
    pub(super) fn neutral(self) -> Result<ChatRequest> {
        conversation!(self).neutral()
    }
}

/// What both kinds of requests have in common.
struct Conversation {
    messages: Vec<InMessage>,
    system: Option<Content>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    output_format: Option<OutputFormat>,
}

impl Conversation {
    fn neutral(self) -> Result<ChatRequest> {
        let mut messages = Vec::with_capacity(self.messages.len() + 1);
        messages.extend(instructions(self.system)?.map(Message::system));
        let continue_last = self.messages.last().is_some_and(InMessage::is_prefill);
        if self.messages.is_empty() {
            return Err(ApiError::invalid("messages", "messages must hold at least one message"));
        }
        for (at, message) in self.messages.into_iter().enumerate() {
            message.neutral(at, &mut messages)?;
        }
        let config = self.output_config;
        let (effort, format) = config.map_or((None, None), |config| (config.effort, config.format));
        let (tool_choice, one_call) = choice(self.tool_choice);
        Ok(ChatRequest {
            messages,
            tools: tools(self.tools.unwrap_or_default())?,
            tool_choice,
            think: Some(match (self.thinking, effort) {
                (None | Some(Thinking::Disabled {}), _) => Think::Off,
                (Some(_), Some(effort)) => Think::Effort(match &*effort {
                    "low" | "medium" => effort,
                    // The most that models know of.
                    _ => "high".into(),
                }),
                (Some(_), None) => Think::On,
            }),
            format: match format.or(self.output_format) {
                Some(OutputFormat::JsonSchema { schema }) => Format::JsonSchema(schema),
                None => Format::Text,
            },
            continue_last,
            parallel_tool_calls: one_call.then_some(false),
            ..ChatRequest::default()
        })
    }
}

/// The instructions without what differs from request to request.
fn instructions(system: Option<Content>) -> Result<Option<String>> {
    let Some(system) = system else { return Ok(None) };
    // Whatever else is in it is refused.
    system.text("system")?;
    let mut texts = system.texts();
    if texts.first().is_some_and(|text| text.trim_start().starts_with(VOLATILE)) {
        texts.remove(0);
    }
    Ok((!texts.is_empty()).then(|| texts.join("\n\n")).filter(|text| !text.is_empty()))
}

fn tools(tools: Vec<Tool>) -> Result<Vec<Value>> {
    let tool = |(at, tool): (usize, Tool)| {
        let place = format!("tools[{at}]");
        if tool.kind.as_ref().is_some_and(|kind| kind != "custom") {
            let instead = "Baton runs no tools itself; describe it with input_schema";
            return Err(ApiError::unsupported(format!("{place}.type"), instead));
        }
        if tool.name.is_empty() {
            return Err(ApiError::invalid(format!("{place}.name"), "a tool must have a name"));
        }
        let parameters = tool.input_schema.unwrap_or_else(|| json!({ "type": "object" }));
        if !parameters.is_object() {
            let problem = format!("{place}.input_schema must be a JSON schema");
            return Err(ApiError::invalid(format!("{place}.input_schema"), problem));
        }
        let description = tool.description.unwrap_or_default();
        Ok(json!({
            "type": "function",
            "function": {
                "name": tool.name, "description": description, "parameters": parameters,
            },
        }))
    };
    tools.into_iter().enumerate().map(tool).collect()
}

/// What the model is to do about tools, and whether it may call one only.
fn choice(choice: Option<ToolChoice>) -> (NeutralChoice, bool) {
    match choice {
        None => (NeutralChoice::Auto, false),
        Some(ToolChoice::Auto { disable_parallel_tool_use }) => {
            (NeutralChoice::Auto, disable_parallel_tool_use)
        }
        Some(ToolChoice::Any { disable_parallel_tool_use }) => {
            (NeutralChoice::Required, disable_parallel_tool_use)
        }
        Some(ToolChoice::Tool { name, disable_parallel_tool_use }) => {
            (NeutralChoice::Named(name), disable_parallel_tool_use)
        }
        Some(ToolChoice::None {}) => (NeutralChoice::None, false),
    }
}
