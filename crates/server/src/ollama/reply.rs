//! Answers in Ollama's words.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::chat::{Finish, Reason, TokenInfo, ToolCall};

/// An answer to a conversation, or a piece of one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaChatReply")]
pub(super) struct ChatReply {
    model: String,
    created_at: String,
    message: ReplyMessage,
    #[serde(flatten)]
    ending: Ending,
}

/// What the model says.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaReplyMessage")]
pub(super) struct ReplyMessage {
    /// `assistant`.
    pub role: Assistant,
    pub content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ReplyCall>,
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "OllamaAssistant")]
pub(super) enum Assistant {
    #[default]
    Assistant,
}

/// A call of a tool.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaReplyCall")]
pub(super) struct ReplyCall {
    id: String,
    function: ReplyFunction,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaReplyFunction")]
struct ReplyFunction {
    index: usize,
    name: String,
    arguments: Map<String, Value>,
}

/// An answer to a text, or a piece of one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaGenerateReply")]
pub(super) struct GenerateReply {
    model: String,
    created_at: String,
    response: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(flatten)]
    ending: Ending,
}

/// What the pieces of both kinds have in common. The numbers are in the last one only; durations
/// are in nanoseconds.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaEnding")]
pub(super) struct Ending {
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_duration: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Logprob>,
}

/// A token and how likely it was.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaLogprob")]
pub(super) struct Logprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<Logprob>,
}

impl ChatReply {
    pub(super) fn new(model: &str, message: ReplyMessage, ending: Ending) -> Self {
        ChatReply { model: model.to_owned(), created_at: now(), message, ending }
    }
}

impl GenerateReply {
    pub(super) fn new(
        model: &str,
        response: String,
        thinking: Option<String>,
        ending: Ending,
    ) -> Self {
        let (model, created_at) = (model.to_owned(), now());
        GenerateReply { model, created_at, response, thinking, ending }
    }
}

impl ReplyCall {
    /// A call whose arguments are complete; as text, if they are no JSON object.
    pub(super) fn new(index: usize, call: ToolCall) -> Result<Self, String> {
        let ToolCall { id, name, arguments } = call;
        let text = if arguments.trim().is_empty() { "{}" } else { &*arguments };
        match serde_json::from_str(text) {
            Ok(arguments) => {
                Ok(ReplyCall { id, function: ReplyFunction { index, name, arguments } })
            }
            Err(_) => Err(format!("{name}({arguments})")),
        }
    }
}

impl Ending {
    /// A piece in the middle.
    pub(super) fn more(logprobs: &[TokenInfo]) -> Self {
        Ending { logprobs: logprobs.iter().map(Logprob::new).collect(), ..Ending::default() }
    }

    /// There is nothing to answer: a model was loaded or unloaded.
    pub(super) fn of_load(reason: &'static str, load: Duration) -> Self {
        Ending {
            done: true,
            done_reason: Some(reason),
            total_duration: Some(nanoseconds(load)),
            load_duration: Some(nanoseconds(load)),
            ..Ending::default()
        }
    }

    /// The answer is complete; `load` is how long its model took to be there.
    pub(super) fn of(finish: &Finish, load: Duration, logprobs: &[TokenInfo]) -> Self {
        let metrics = &finish.metrics;
        Ending {
            done: true,
            done_reason: Some(match finish.reason {
                Reason::Length => "length",
                Reason::Stop | Reason::ToolCalls | Reason::Cancelled => "stop",
            }),
            total_duration: Some(nanoseconds(load + finish.total)),
            load_duration: Some(nanoseconds(load)),
            prompt_eval_count: Some(finish.usage.prompt),
            prompt_eval_duration: Some(nanoseconds(metrics.prefill)),
            eval_count: Some(finish.usage.generated),
            eval_duration: Some(nanoseconds(metrics.decode)),
            ..Ending::more(logprobs)
        }
    }
}

impl Logprob {
    fn new(token: &TokenInfo) -> Self {
        Logprob {
            token: token.text(),
            logprob: token.logprob,
            bytes: token.bytes.clone(),
            top_logprobs: token.top.iter().map(Logprob::new).collect(),
        }
    }
}

/// Never 0: clients divide by it.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// The time of day.
pub(super) fn now() -> String {
    jiff::Timestamp::now().to_string()
}
