//! `POST /v1/completions`: text that goes on.

use std::collections::BTreeMap;

use axum::response::Response;
use baton_engine::Sampling;
use futures_util::future::try_join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chat_request::{ResponseFormat, StreamOptions, stay};
use super::completion_stream::CompletionScript;
use super::sampling;
use super::shapes::{FINGERPRINT, Timings, Usage, finish_reason, possible};
use crate::call::{Call, reply};
use crate::chat::{
    self, Answer, Collected, CompletionRequest, Format, PromptText, TokenInfo, numbers,
};
use crate::fields::{Ignored, Refused, whole_number};
use crate::models::{KeepAlive, Models};
use crate::routes::Stream;
use crate::text_or::{TextOr, Texts};
use crate::{ApiError, Result, ids, stream};

/// Tokens of an answer if the request does not say, as OpenAI has it.
const DEFAULT_TOKENS: usize = 16;
/// Most prompts times answers of one request.
const MAX_CHOICES: usize = 64;

/// A text to be continued.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CompletionRequest")]
pub struct Request {
    /// The model that goes on.
    model: String,
    /// A text, a list of token ids, or a list of either.
    prompt: TextOr<Prompts>,
    /// Send the answer in pieces, as it comes.
    #[serde(default)]
    stream: Option<bool>,
    /// What to send besides the pieces.
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    /// Most tokens of the answer: 16 without it, as many as there is room for if below 0.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    max_tokens: Option<i64>,
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
    /// Tell how likely each token was, and of this many other likely ones.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    logprobs: Option<usize>,
    /// Number of answers to each prompt.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    n: Option<usize>,
    /// Number of answers that the best are taken of; must be `n`.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    best_of: Option<usize>,
    /// Begin the answer with the prompt.
    #[serde(default)]
    echo: Option<bool>,
    /// The form of the answer.
    #[serde(default)]
    response_format: Option<ResponseFormat>,
    /// Go on when the model would end its answer.
    #[serde(default)]
    ignore_eos: Option<bool>,
    /// How long the model stays in memory after this request.
    #[serde(default)]
    keep_alive: Option<KeepAlive>,
    /// The same, in seconds.
    #[serde(default)]
    ttl: Option<f64>,
    /// Prompts are always cached.
    #[serde(default, rename = "cache_prompt")]
    _cache_prompt: Ignored,
    /// Who asks; nothing is kept of it.
    #[serde(default, rename = "user")]
    _user: Ignored,
    /// Text behind the answer.
    #[serde(default, rename = "suffix")]
    _suffix: Refused,
}

/// Prompts that are not one text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Prompts {
    /// The tokens of one prompt.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// The tokens of several.
    TokenLists(Vec<Vec<u32>>),
}

/// Whole answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Completion {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    choices: Vec<Choice>,
    usage: Usage,
    /// Of the only answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

/// One of several answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "CompletionChoice")]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    /// `stop` or `length`.
    finish_reason: &'static str,
}

/// How likely the tokens of an answer were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "CompletionLogprobs")]
pub struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    /// The most likely tokens in the place of each.
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each begins in the text, in characters.
    text_offset: Vec<usize>,
}

impl Logprobs {
    /// Those of `tokens`, whose text begins at `offset`, which is moved on.
    pub fn of(tokens: &[TokenInfo], offset: &mut usize) -> Logprobs {
        let mut logprobs = Logprobs::default();
        for token in tokens {
            let text = token.text();
            logprobs.text_offset.push(*offset);
            *offset += text.chars().count();
            logprobs.tokens.push(text);
            logprobs.token_logprobs.push(possible(token.logprob));
            let other = |other: &TokenInfo| (other.text(), possible(other.logprob));
            logprobs.top_logprobs.push(token.top.iter().map(other).collect());
        }
        logprobs
    }
}

impl Request {
    fn prompts(&self) -> Vec<PromptText> {
        match self.prompt.clone() {
            TextOr::Text(text) => vec![PromptText::Text(text)],
            TextOr::Other(Prompts::Tokens(tokens)) => vec![PromptText::Tokens(tokens)],
            TextOr::Other(Prompts::Texts(texts)) => {
                texts.into_iter().map(PromptText::Text).collect()
            }
            TextOr::Other(Prompts::TokenLists(lists)) => {
                lists.into_iter().map(PromptText::Tokens).collect()
            }
        }
    }

    /// A request for each answer: those to the first prompt, then those to the second, …
    fn neutral(self, n: usize) -> Result<Vec<CompletionRequest>> {
        if self.best_of.is_some_and(|best_of| best_of != n) {
            return Err(ApiError::unsupported("best_of", "leave it out, or let it be n"));
        }
        let prompts = self.prompts();
        if prompts.is_empty() || prompts.len() * n > MAX_CHOICES {
            let message = format!(
                "{} prompts with n = {n} are not taken; there must be 1 to {MAX_CHOICES} answers",
                prompts.len()
            );
            return Err(ApiError::invalid("prompt", message));
        }
        let logprobs =
            self.logprobs.map(|top| sampling::top_logprobs("logprobs", top)).transpose()?;
        if self.echo == Some(true) && logprobs.is_some() {
            let instead = "log-probabilities are told of the answer only; leave out one of the two";
            return Err(ApiError::unsupported("echo", instead));
        }
        let sampling = Sampling {
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
        };
        let request = CompletionRequest {
            prompt: PromptText::default(),
            format: self.response_format.map_or(Format::Text, ResponseFormat::neutral),
            sampling,
            max_tokens: self.max_tokens.map_or(Some(DEFAULT_TOKENS), |n| numbers::limit(Some(n))),
            stop: self.stop.map_or_else(Vec::new, Texts::into_list),
            ignore_end: self.ignore_eos.unwrap_or(false),
        };
        let each = prompts.into_iter().flat_map(|prompt| {
            let request = &request;
            (0..n).map(move |index| CompletionRequest {
                prompt: prompt.clone(),
                sampling: sampling::of_choice(&request.sampling, index),
                ..request.clone()
            })
        });
        Ok(each.collect())
    }
}

/// Continues texts.
pub async fn handle(call: Call) -> Result<Response> {
    let request: Request = call.json()?;
    let (model, streams) = (request.model.clone(), request.stream.unwrap_or(false));
    let keep_alive = stay(request.keep_alive, request.ttl)?;
    let options = request.stream_options.as_ref();
    let wants_usage = options.and_then(|options| options.include_usage) == Some(true);
    let (n, echo) = (sampling::choices(request.n)?, request.echo.unwrap_or(false));
    let requests = request.neutral(n)?;
    let logprobs = requests[0].sampling.logprobs.is_some();
    let prompts: Vec<PromptText> = requests.iter().map(|r| r.prompt.clone()).collect();
    let each = requests.into_iter().map(|r| start(&call.state.models, &model, keep_alive, r));
    let answers = try_join_all(each).await?;
    let echoes = match echo {
        true => answers.iter().zip(&prompts).map(echoed).collect::<Result<Vec<_>>>()?,
        false => vec![String::new(); answers.len()],
    };
    let id = ids::unique("cmpl-");
    if streams {
        let script = CompletionScript::new(id, model, n, echoes, logprobs, wants_usage);
        return Ok(stream::reply(Stream::Events, answers, script));
    }
    let collected = try_join_all(answers.into_iter().map(Answer::collect)).await?;
    Ok(reply(&completion(id, model, n, collected, echoes, logprobs)))
}

async fn start(
    models: &Models,
    model: &str,
    keep_alive: Option<KeepAlive>,
    request: CompletionRequest,
) -> Result<Answer> {
    chat::complete(models.lease(model, keep_alive).await?, request).await
}

fn echoed((answer, prompt): (&Answer, &PromptText)) -> Result<String> {
    match prompt {
        PromptText::Text(text) => Ok(text.clone()),
        PromptText::Tokens(ids) => Ok(answer.lease().tokenizer()?.decode(ids, true)),
    }
}

fn completion(
    id: String,
    model: String,
    n: usize,
    collected: Vec<Collected>,
    echoes: Vec<String>,
    logprobs: bool,
) -> Completion {
    let timings = match collected.as_slice() {
        [only] => Some(Timings::of(&only.finish)),
        _ => None,
    };
    let mut usage = Usage::default();
    for answers in collected.chunks(n) {
        let mut prompt = Usage::default();
        answers.iter().for_each(|answer| prompt.add_answer(&answer.finish));
        usage.add_request(&prompt);
    }
    let choices = collected.into_iter().zip(echoes).enumerate().map(|(index, (answer, echo))| {
        let mut offset = echo.chars().count();
        Choice {
            index,
            text: echo + &answer.text,
            logprobs: logprobs.then(|| Logprobs::of(&answer.logprobs, &mut offset)),
            finish_reason: finish_reason(answer.finish.reason),
        }
    });
    Completion {
        id,
        object: "text_completion",
        created: ids::now(),
        model,
        system_fingerprint: FINGERPRINT,
        choices: choices.collect(),
        usage,
        timings,
    }
}
