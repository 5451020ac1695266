//! What the replies of this interface have in common: tokens, times, probabilities.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::chat::{Finish, Reason, TokenInfo};
use crate::ids;
use crate::stream::Frames;

/// What is told of the program that made an answer.
pub const FINGERPRINT: &str = concat!("baton-", env!("CARGO_PKG_VERSION"));

/// The log-probability that stands for an impossible token, which JSON has no number for.
const IMPOSSIBLE: f32 = -9999.0;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of the answers.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// More of the prompt.
    pub prompt_tokens_details: PromptDetails,
    /// More of the answers.
    pub completion_tokens_details: CompletionDetails,
}

/// Tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PromptDetails {
    /// Tokens that were in the cache already.
    pub cached_tokens: usize,
}

/// Tokens of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CompletionDetails {
    /// Tokens of thoughts.
    pub reasoning_tokens: usize,
}

impl Usage {
    /// Counts another answer to the same prompt.
    pub fn add_answer(&mut self, finish: &Finish) {
        let usage = finish.usage;
        self.prompt_tokens = usage.prompt;
        self.completion_tokens += usage.generated;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        let cached = &mut self.prompt_tokens_details.cached_tokens;
        // Answers to one prompt share it, so the one that began first says what was there before.
        *cached = if *cached == 0 { usage.cached } else { (*cached).min(usage.cached) };
        self.completion_tokens_details.reasoning_tokens += usage.reasoning;
    }

    /// Counts an answer to another prompt.
    pub fn add_request(&mut self, other: &Usage) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.total_tokens += other.total_tokens;
        self.prompt_tokens_details.cached_tokens += other.prompt_tokens_details.cached_tokens;
        self.completion_tokens_details.reasoning_tokens +=
            other.completion_tokens_details.reasoning_tokens;
    }
}

/// How long an answer took, as llama-server tells it. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Timings {
    /// Tokens of the prompt that were in the cache.
    pub cache_n: usize,
    /// Tokens of the prompt that were evaluated.
    pub prompt_n: usize,
    /// Evaluating them.
    pub prompt_ms: f64,
    /// Each of them.
    pub prompt_per_token_ms: f64,
    /// How many in a second.
    pub prompt_per_second: f64,
    /// Tokens of the answer.
    pub predicted_n: usize,
    /// From the first of them to the last.
    pub predicted_ms: f64,
    /// Each of them.
    pub predicted_per_token_ms: f64,
    /// How many in a second.
    pub predicted_per_second: f64,
    /// Tokens that were guessed, if any were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n: Option<usize>,
    /// Those of them that were right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_n_accepted: Option<usize>,
}

impl Timings {
    /// The times of an answer.
    pub fn of(finish: &Finish) -> Timings {
        let metrics = &finish.metrics;
        let each = |time: Duration, n: usize| if n == 0 { 0.0 } else { ms(time) / n as f64 };
        let steps = metrics.generated_tokens.saturating_sub(1);
        let guessed = metrics.guessed_tokens > 0;
        Timings {
            cache_n: metrics.reused_tokens,
            prompt_n: metrics.prefilled_tokens,
            prompt_ms: ms(metrics.prefill),
            prompt_per_token_ms: each(metrics.prefill, metrics.prefilled_tokens),
            prompt_per_second: metrics.prefill_rate().unwrap_or(0.0),
            predicted_n: metrics.generated_tokens,
            predicted_ms: ms(metrics.decode),
            predicted_per_token_ms: each(metrics.decode, steps),
            predicted_per_second: metrics.decode_rate().unwrap_or(0.0),
            draft_n: guessed.then_some(metrics.guessed_tokens),
            draft_n_accepted: guessed.then_some(metrics.right_guesses),
        }
    }
}

/// What the pieces of one streamed reply have in common.
#[derive(Debug)]
pub struct Chunks {
    object: &'static str,
    id: String,
    created: u64,
    model: String,
    wants_usage: bool,
}

impl Chunks {
    /// Pieces of the kind `object`; with `wants_usage` the last tells of the tokens.
    pub fn new(object: &'static str, id: String, model: String, wants_usage: bool) -> Chunks {
        Chunks { object, id, created: ids::now(), model, wants_usage }
    }

    /// A piece with what is added to each of `choices`.
    pub fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if self.wants_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The end of all answers.
    pub fn end(&self, usage: &Usage, out: &mut Frames) {
        if self.wants_usage {
            let mut last = self.chunk(json!([]));
            last["usage"] = json!(usage);
            out.data(&last);
        }
        out.mark("[DONE]");
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What OpenAI calls the reason.
pub fn finish_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::Cancelled => "stop",
        Reason::Length => "length",
        Reason::ToolCalls => "tool_calls",
    }
}

/// The log-probabilities of a chat's answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Logprobs {
    /// Those of its text.
    content: Vec<TokenLogprob>,
    /// Those of a refusal, of which there is none.
    refusal: (),
}

/// A token with the other likely ones.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct TokenLogprob {
    /// Its text.
    token: String,
    /// Natural logarithm of its probability.
    logprob: f32,
    /// Its bytes.
    bytes: Vec<u8>,
    /// The most likely tokens in its place.
    top_logprobs: Vec<TopLogprob>,
}

/// A likely token.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct TopLogprob {
    /// Its text.
    token: String,
    /// Natural logarithm of its probability.
    logprob: f32,
    /// Its bytes.
    bytes: Vec<u8>,
}

impl Logprobs {
    /// Those of `tokens`.
    pub fn of(tokens: &[TokenInfo]) -> Logprobs {
        let top = |info: &TokenInfo| TopLogprob {
            token: info.text(),
            logprob: possible(info.logprob),
            bytes: info.bytes.clone(),
        };
        let content = tokens.iter().map(|info| TokenLogprob {
            token: info.text(),
            logprob: possible(info.logprob),
            bytes: info.bytes.clone(),
            top_logprobs: info.top.iter().map(top).collect(),
        });
        Logprobs { content: content.collect(), refusal: () }
    }
}

/// A log-probability as a number that JSON has.
pub fn possible(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}
