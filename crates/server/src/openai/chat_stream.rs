//! A chat completion in pieces.

use serde_json::{Value, json};

use super::shapes::{Chunks, Logprobs, Timings, Usage, finish_reason};
use crate::ApiError;
use crate::api::Api;
use crate::chat::{Part, TokenInfo};
use crate::stream::{Frames, Script};

/// Tells of answers as OpenAI does: each piece is a chunk with what it adds to the message.
#[derive(Debug)]
pub struct ChatScript {
    chunks: Chunks,
    usage: Usage,
    choices: Vec<Progress>,
}

/// How far one answer has come.
#[derive(Clone, Debug)]
struct Progress {
    /// Whether it was said who speaks.
    began: bool,
    /// Tokens of the text that comes next.
    logprobs: Option<Vec<TokenInfo>>,
}

impl ChatScript {
    /// For `n` answers.
    pub fn new(id: String, model: String, n: usize, logprobs: bool, wants_usage: bool) -> Self {
        let progress = Progress { began: false, logprobs: logprobs.then(Vec::new) };
        let choices = vec![progress; n];
        let chunks = Chunks::new("chat.completion.chunk", id, model, wants_usage);
        ChatScript { chunks, usage: Usage::default(), choices }
    }

    fn choice(&mut self, index: usize, delta: Value, reason: Option<&str>) -> Value {
        let logprobs = match &mut self.choices[index].logprobs {
            Some(tokens) if delta.get("content").is_some() && !tokens.is_empty() => {
                json!(Logprobs::of(&std::mem::take(tokens)))
            }
            _ => Value::Null,
        };
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason });
        self.chunks.chunk(json!([choice]))
    }

    /// What is added to the message. The first time it is also said who speaks.
    fn delta(&mut self, index: usize, mut delta: Value, out: &mut Frames) {
        if !self.choices[index].began {
            self.choices[index].began = true;
            // A message that begins with a call has no text so far.
            let content = if delta.get("tool_calls").is_some() { json!(null) } else { json!("") };
            let mut first = json!({ "role": "assistant", "content": content, "refusal": null });
            if let (Some(calls), Value::Object(first)) = (delta.get_mut("tool_calls"), &mut first) {
                first.insert("tool_calls".into(), calls.take());
                delta = Value::Null;
            }
            let choice = json!({ "index": index, "delta": first, "logprobs": null,
                "finish_reason": null });
            out.data(&self.chunks.chunk(json!([choice])));
        }
        if !delta.is_null() {
            let chunk = self.choice(index, delta, None);
            out.data(&chunk);
        }
    }
}

impl Script for ChatScript {
    fn part(&mut self, index: usize, part: Part, out: &mut Frames) {
        match part {
            Part::Progress { .. } | Part::ToolCallEnd { .. } => {}
            Part::Logprobs(tokens) => {
                if let Some(waiting) = &mut self.choices[index].logprobs {
                    waiting.extend(tokens);
                }
            }
            Part::Text(text) => self.delta(index, json!({ "content": text }), out),
            Part::Reasoning(text) => {
                let delta = json!({ "reasoning_content": text, "reasoning": text });
                self.delta(index, delta, out);
            }
            Part::ToolCallStart { index: call, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                let call =
                    json!({ "index": call, "id": id, "type": "function", "function": function });
                self.delta(index, json!({ "tool_calls": [call] }), out);
            }
            Part::ToolCallArguments { index: call, json } => {
                let call = json!({ "index": call, "function": { "arguments": json } });
                self.delta(index, json!({ "tool_calls": [call] }), out);
            }
            Part::Done(finish) => {
                if !self.choices[index].began {
                    self.delta(index, Value::Null, out);
                }
                self.usage.add_answer(&finish);
                let mut last = self.choice(index, json!({}), Some(finish_reason(finish.reason)));
                if self.choices.len() == 1 {
                    last["timings"] = json!(Timings::of(&finish));
                }
                out.data(&last);
            }
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        out.data(&Api::OpenAi.failure_body(error));
    }

    fn end(&mut self, out: &mut Frames) {
        self.chunks.end(&self.usage, out);
    }
}
