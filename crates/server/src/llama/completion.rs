//! `POST /completion`.

use axum::response::Response;
use baton_engine::Sampling;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::Api;
use crate::call::{Call, reply};
use crate::chat::{self, Answer, Finish, Format, Part, PromptText, Reason, TokenInfo, numbers};
use crate::fields::{Ignored, Refused, whole_number};
use crate::models::KeepAlive;
use crate::routes::Stream;
use crate::stream::{self, Frames, Script};
use crate::{ApiError, Result};

/// A text to be continued.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LlamaCompletionRequest")]
pub(super) struct CompletionRequest {
    /// The model.
    model: Option<String>,
    /// The text, or its token ids.
    prompt: Prompt,
    /// Most tokens to write; below 0 for as many as there is room for.
    #[serde(default, alias = "max_tokens", deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    n_predict: Option<i64>,
    /// Whether the answer comes in pieces.
    #[serde(default)]
    stream: bool,
    /// Texts that end the answer.
    #[serde(default)]
    stop: Vec<String>,
    /// Randomness: 0 always takes the likeliest token.
    temperature: Option<f32>,
    /// Choose among this many of the likeliest tokens; 0 for all.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    top_k: Option<i64>,
    /// Choose among the likeliest tokens that together have this probability.
    top_p: Option<f32>,
    /// Leave out tokens less likely than this times the likeliest.
    min_p: Option<f32>,
    /// Divide the logits of tokens that occurred by this.
    repeat_penalty: Option<f32>,
    /// So many of the last tokens count as occurred; -1 for all.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i32>")]
    repeat_last_n: Option<i32>,
    /// Subtract this from the logits of tokens that occurred.
    presence_penalty: Option<f32>,
    /// Subtract this from the logits of tokens for each time they occurred.
    frequency_penalty: Option<f32>,
    /// Below 0 for one that differs each time.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    seed: Option<i64>,
    /// Tells how likely each token was, and this many others.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    n_probs: Option<usize>,
    /// Whether to go on when the model would end.
    #[serde(default)]
    ignore_eos: bool,
    /// A JSON schema that the answer fits.
    json_schema: Option<Value>,
    /// Not supported: `json_schema` is.
    #[serde(default, rename = "grammar")]
    _grammar: Refused,
    /// How long the model stays in memory.
    keep_alive: Option<KeepAlive>,
    /// All prompts are cached.
    #[serde(default, rename = "cache_prompt")]
    _cache_prompt: Ignored,
    /// Slots are given out by the server.
    #[serde(default, rename = "id_slot")]
    _id_slot: Ignored,
    /// The context is never shifted.
    #[serde(default, rename = "n_keep")]
    _n_keep: Ignored,
    /// The context is never shifted.
    #[serde(default, rename = "n_discard")]
    _n_discard: Ignored,
    /// Timings come at the end.
    #[serde(default, rename = "timings_per_token")]
    _timings_per_token: Refused,
    /// Answers are text.
    #[serde(default, rename = "return_tokens")]
    _return_tokens: Refused,
    /// Samplers have one order.
    #[serde(default, rename = "samplers")]
    _samplers: Refused,
    /// `/v1/completions` takes it.
    #[serde(default, rename = "logit_bias")]
    _logit_bias: Refused,
    /// Baton runs no adapters.
    #[serde(default, rename = "lora")]
    _lora: Refused,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "LlamaPrompt")]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// What follows a text, or a piece of it. The numbers are in the last piece only.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "LlamaCompletion")]
pub(super) struct Completion {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    id_slot: i64,
    stop: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completion_probabilities: Vec<Probability>,
    #[serde(flatten)]
    ending: Option<Ending>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaEnding")]
struct Ending {
    model: String,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    /// Tokens of the prompt that were in the cache.
    tokens_cached: usize,
    truncated: bool,
    /// `eos`, `limit` or `word`.
    stop_type: &'static str,
    stopping_word: String,
    timings: Timings,
}

/// Counts and times of an answer. Times are in milliseconds.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaTimings")]
struct Timings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

/// A token and how likely it was.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaProbability")]
struct Probability {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_logprobs: Vec<Probability>,
}

/// Continues a text.
pub(super) async fn completion(call: Call) -> Result<Response> {
    let request: CompletionRequest = call.json()?;
    let models = &call.state.models;
    let model = models.usual(request.model.as_deref()).await?;
    let lease = models.lease(&model, request.keep_alive).await?;
    let stream = request.stream;
    let answer =
        chat::complete(lease, request.neutral()).await.map_err(|error| match error.param {
            Some(param) if param == chat::FORM => {
                ApiError { param: Some("json_schema".into()), ..error }
            }
            param => ApiError { param, ..error },
        })?;
    if stream {
        let pieces = Pieces { model, probabilities: Vec::new() };
        return Ok(stream::reply(Stream::Events, vec![answer], pieces));
    }
    whole(model, answer).await
}

impl CompletionRequest {
    fn neutral(self) -> chat::CompletionRequest {
        chat::CompletionRequest {
            prompt: match self.prompt {
                Prompt::Text(text) => PromptText::Text(text),
                Prompt::Tokens(tokens) => PromptText::Tokens(tokens),
            },
            format: self.json_schema.map_or(Format::Text, Format::JsonSchema),
            sampling: Sampling {
                temperature: self.temperature,
                top_k: numbers::top_k(self.top_k),
                top_p: self.top_p,
                min_p: self.min_p,
                repeat_penalty: self.repeat_penalty,
                repeat_last_n: self.repeat_last_n,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: numbers::seed(self.seed),
                logprobs: self.n_probs.filter(|&n| n > 0),
                ..Sampling::default()
            },
            max_tokens: numbers::limit(self.n_predict),
            stop: self.stop,
            ignore_end: self.ignore_eos,
        }
    }
}

async fn whole(model: String, answer: Answer) -> Result<Response> {
    let answer = answer.collect().await?;
    Ok(reply(&Completion {
        content: answer.text,
        stop: true,
        completion_probabilities: probabilities(&answer.logprobs),
        ending: Some(Ending::new(model, &answer.finish)),
        ..Completion::default()
    }))
}

impl Ending {
    fn new(model: String, finish: &Finish) -> Self {
        let (usage, metrics) = (&finish.usage, &finish.metrics);
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let per_token = |time: f64, tokens: usize| time / tokens.max(1) as f64;
        let (prompt_ms, predicted_ms) = (ms(metrics.prefill), ms(metrics.decode));
        Ending {
            model,
            tokens_predicted: usage.generated,
            tokens_evaluated: usage.prompt,
            tokens_cached: usage.cached,
            truncated: false,
            stop_type: match (finish.reason, &finish.stop) {
                (Reason::Length, _) => "limit",
                (_, Some(_)) => "word",
                _ => "eos",
            },
            stopping_word: finish.stop.clone().unwrap_or_default(),
            timings: Timings {
                cache_n: usage.cached,
                prompt_n: metrics.prefilled_tokens,
                prompt_ms,
                prompt_per_token_ms: per_token(prompt_ms, metrics.prefilled_tokens),
                prompt_per_second: metrics.prefill_rate().unwrap_or(0.0),
                predicted_n: usage.generated,
                predicted_ms,
                predicted_per_token_ms: per_token(predicted_ms, usage.generated),
                predicted_per_second: metrics.decode_rate().unwrap_or(0.0),
            },
        }
    }
}

fn probabilities(tokens: &[TokenInfo]) -> Vec<Probability> {
    let probability = |token: &TokenInfo| Probability {
        id: token.id,
        token: token.text(),
        bytes: token.bytes.clone(),
        logprob: token.logprob,
        top_logprobs: probabilities(&token.top),
    };
    tokens.iter().map(probability).collect()
}

/// Tells what follows a text in events.
struct Pieces {
    model: String,
    /// Of the text that comes next.
    probabilities: Vec<TokenInfo>,
}

impl Script for Pieces {
    fn part(&mut self, _: usize, part: Part, out: &mut Frames) {
        match part {
            Part::Text(content) => {
                let probabilities = probabilities(&std::mem::take(&mut self.probabilities));
                out.data(&Completion {
                    content,
                    completion_probabilities: probabilities,
                    ..Completion::default()
                });
            }
            Part::Logprobs(tokens) => self.probabilities.extend(tokens),
            Part::Done(finish) => out.data(&Completion {
                stop: true,
                ending: Some(Ending::new(self.model.clone(), &finish)),
                ..Completion::default()
            }),
            // A text that is only continued has none of these.
            Part::Progress { .. }
            | Part::Reasoning(_)
            | Part::ToolCallStart { .. }
            | Part::ToolCallArguments { .. }
            | Part::ToolCallEnd { .. } => {}
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        out.data(&Api::Llama.failure_body(error));
    }
}
