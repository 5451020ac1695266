//! Answers in Anthropic's words, whole and as events.

use baton_hub::Sha256;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::Api;
use crate::chat::{Collected, Finish, Part, Reason, ToolCall};
use crate::stream::{Frames, Script};
use crate::{ApiError, ids};

/// An answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicMessage")]
pub(super) struct Message {
    id: String,
    /// `message`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// `assistant`.
    role: &'static str,
    model: String,
    content: Vec<Block>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    stop_reason: Option<&'static str>,
    /// The text that ended it.
    stop_sequence: Option<String>,
    usage: Usage,
}

/// A part of an answer.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnthropicBlock")]
enum Block {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// Tokens of a request and its answer.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicUsage")]
struct Usage {
    /// Tokens of the prompt that were evaluated.
    input_tokens: usize,
    /// None: nothing is paid for.
    cache_creation_input_tokens: usize,
    /// Tokens of the prompt that were in the cache.
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

/// Tokens of a conversation.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicCount")]
pub(super) struct Count {
    pub input_tokens: usize,
}

impl Message {
    /// A whole answer.
    pub(super) fn new(model: String, answer: Collected) -> Self {
        let mut content = Vec::new();
        if !answer.reasoning.is_empty() {
            let signature = signature(&answer.reasoning);
            content.push(Block::Thinking { thinking: answer.reasoning, signature });
        }
        if !answer.text.is_empty() {
            content.push(Block::Text { text: answer.text });
        }
        for ToolCall { id, name, arguments } in answer.tool_calls {
            content.push(match object(&arguments) {
                Some(input) => Block::ToolUse { id, name, input },
                None => Block::Text { text: format!("{name}({arguments})") },
            });
        }
        let (stop_reason, stop_sequence) = stop(&answer.finish);
        Message { content, stop_reason, stop_sequence, ..Message::begun(model, 0) }
            .with_usage(Usage::of(&answer.finish))
    }

    fn begun(model: String, prompt_tokens: usize) -> Self {
        Message {
            id: ids::unique("msg_"),
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage {
                input_tokens: prompt_tokens,
                cache_creation_input_tokens: 0,
                cache_read_input_tokens: 0,
                output_tokens: 0,
            },
        }
    }

    fn with_usage(self, usage: Usage) -> Self {
        Message { usage, ..self }
    }
}

impl Usage {
    fn of(finish: &Finish) -> Self {
        let usage = &finish.usage;
        Usage {
            input_tokens: usage.prompt.saturating_sub(usage.cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached,
            output_tokens: usage.generated,
        }
    }
}

fn stop(finish: &Finish) -> (Option<&'static str>, Option<String>) {
    match (finish.reason, &finish.stop) {
        (Reason::ToolCalls, _) => (Some("tool_use"), None),
        (Reason::Length, _) => (Some("max_tokens"), None),
        (_, Some(text)) => (Some("stop_sequence"), Some(text.clone())),
        (Reason::Stop | Reason::Cancelled, None) => (Some("end_turn"), None),
    }
}

fn object(arguments: &str) -> Option<Map<String, Value>> {
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    serde_json::from_str(text).ok()
}

/// Some clients drop thoughts that bear no signature. This one proves nothing.
fn signature(thinking: &str) -> String {
    Sha256::of(thinking.as_bytes()).to_string()
}

/// Tells an answer as events.
pub(super) struct Events {
    model: String,
    prompt_tokens: usize,
    /// Number of the next block.
    next: usize,
    open: Option<Open>,
}

/// The block that is being written.
enum Open {
    Text,
    Thinking(String),
    Call,
}

impl Events {
    pub(super) fn new(model: String, prompt_tokens: usize) -> Self {
        Events { model, prompt_tokens, next: 0, open: None }
    }

    /// Begins a block, after ending the one before it.
    fn start(&mut self, open: Open, block: &Value, out: &mut Frames) {
        self.stop(out);
        let event = json!({
            "type": "content_block_start", "index": self.next, "content_block": block,
        });
        out.event("content_block_start", &event);
        self.open = Some(open);
    }

    fn delta(&self, delta: &Value, out: &mut Frames) {
        let event = json!({ "type": "content_block_delta", "index": self.next, "delta": delta });
        out.event("content_block_delta", &event);
    }

    fn stop(&mut self, out: &mut Frames) {
        let Some(open) = self.open.take() else { return };
        if let Open::Thinking(text) = open {
            let signature = signature(&text);
            self.delta(&json!({ "type": "signature_delta", "signature": signature }), out);
        }
        let event = json!({ "type": "content_block_stop", "index": self.next });
        out.event("content_block_stop", &event);
        self.next += 1;
    }
}

impl Script for Events {
    fn begin(&mut self, out: &mut Frames) {
        let message = Message::begun(self.model.clone(), self.prompt_tokens);
        out.event("message_start", &json!({ "type": "message_start", "message": message }));
        out.event("ping", &json!({ "type": "ping" }));
    }

    fn part(&mut self, _: usize, part: Part, out: &mut Frames) {
        match part {
            // It shows that the server is at work.
            Part::Progress { .. } => out.event("ping", &json!({ "type": "ping" })),
            Part::Reasoning(text) => {
                if !matches!(self.open, Some(Open::Thinking(_))) {
                    let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    self.start(Open::Thinking(String::new()), &block, out);
                }
                self.delta(&json!({ "type": "thinking_delta", "thinking": text }), out);
                if let Some(Open::Thinking(all)) = &mut self.open {
                    *all += &text;
                }
            }
            Part::Text(text) => {
                if !matches!(self.open, Some(Open::Text)) {
                    self.start(Open::Text, &json!({ "type": "text", "text": "" }), out);
                }
                self.delta(&json!({ "type": "text_delta", "text": text }), out);
            }
            Part::ToolCallStart { id, name, .. } => {
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.start(Open::Call, &block, out);
            }
            Part::ToolCallArguments { json, .. } => {
                let delta = json!({ "type": "input_json_delta", "partial_json": json });
                self.delta(&delta, out);
            }
            Part::ToolCallEnd { .. } => self.stop(out),
            Part::Logprobs(_) => {}
            Part::Done(finish) => {
                self.stop(out);
                let (stop_reason, stop_sequence) = stop(&finish);
                let delta = json!({ "stop_reason": stop_reason, "stop_sequence": stop_sequence });
                let usage = Usage::of(&finish);
                let event = json!({ "type": "message_delta", "delta": delta, "usage": usage });
                out.event("message_delta", &event);
                out.event("message_stop", &json!({ "type": "message_stop" }));
            }
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        out.event("error", &Api::Anthropic.failure_body(error));
    }
}
