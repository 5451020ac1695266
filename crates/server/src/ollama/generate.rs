//! `POST /api/generate`.

use std::time::Duration;

use axum::response::Response;
use baton_text::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::chat::{lease, load_only, logprobs};
use super::message::{self, ThinkValue, no_images};
use super::options::Options;
use super::reply::{Ending, GenerateReply};
use crate::call::{Call, reply};
use crate::chat::{self, Answer, CompletionRequest, Part, PromptText, TokenInfo};
use crate::fields::Refused;
use crate::models::{KeepAlive, Lease, Wish};
use crate::routes::Stream;
use crate::stream::{self, Frames, Script};
use crate::{ApiError, Result};

/// A text to be answered, or with `raw` to be continued.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaGenerateRequest")]
pub(super) struct GenerateRequest {
    /// The model.
    model: String,
    /// The text; without one the model is only loaded.
    prompt: Option<String>,
    /// Not supported.
    suffix: Option<String>,
    /// Instructions for the model.
    system: Option<String>,
    /// Not supported; the model's own template is used.
    #[serde(default, rename = "template")]
    _template: Refused,
    /// Not supported; `/api/chat` takes a conversation.
    #[serde(default, rename = "context")]
    _context: Refused,
    /// Whether the answer comes in pieces; yes if not said.
    stream: Option<bool>,
    /// Whether the text is continued as it is, without a chat template.
    raw: Option<bool>,
    /// `"json"`, or a JSON schema.
    format: Option<Value>,
    /// How long the model stays in memory; 0 without a text unloads it.
    keep_alive: Option<KeepAlive>,
    /// Not supported.
    images: Option<Vec<Value>>,
    /// How tokens are chosen, and the context that the model needs.
    options: Option<Options>,
    /// Whether the model thinks first.
    think: Option<ThinkValue>,
    /// A text that does not fit is refused, never cut.
    #[serde(default, rename = "truncate")]
    _truncate: Refused,
    /// The context is never shifted.
    #[serde(default, rename = "shift")]
    _shift: Refused,
    /// Whether to tell how likely each token was.
    logprobs: Option<bool>,
    /// How many other tokens to tell of.
    top_logprobs: Option<usize>,
}

/// Answers.
pub(super) async fn generate(call: Call) -> Result<Response> {
    let request: GenerateRequest = call.json()?;
    let models = &call.state.models;
    let model = request.model.clone();
    no_images("images", request.images.as_deref())?;
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::invalid("suffix", format!("{model:?} does not support insert")));
    }
    if request.prompt.as_deref().unwrap_or_default().is_empty() {
        let ending = load_only(models, &model, request.keep_alive).await?;
        return Ok(reply(&GenerateReply::new(&model, String::new(), None, ending)));
    }
    let options = request.options.clone().unwrap_or_default();
    let wish = Wish { keep_alive: request.keep_alive, context: options.context()? };
    // What makes no sense is told before time is spent on loading.
    let (stream, options) = (request.stream, Prepared::new(&request, &options)?);
    let (lease, load) = lease(models, &model, wish).await?;
    let answer = start(lease, request, options).await?;
    if stream == Some(false) {
        return whole(&model, answer, load).await;
    }
    Ok(stream::reply(Stream::Lines, vec![answer], Pieces { model, load, logprobs: Vec::new() }))
}

/// The parts of a request that can be checked without its model.
struct Prepared {
    sampling: baton_engine::Sampling,
    format: chat::Format,
    max_tokens: Option<usize>,
    stop: Vec<String>,
}

impl Prepared {
    fn new(request: &GenerateRequest, options: &Options) -> Result<Self> {
        let mut sampling = options.sampling()?;
        sampling.logprobs = logprobs(request.logprobs, request.top_logprobs)?;
        if request.raw == Some(true) && request.system.as_ref().is_some_and(|s| !s.is_empty()) {
            let problem = "raw mode does not support template, system, or context";
            return Err(ApiError::invalid("system", problem));
        }
        Ok(Prepared {
            sampling,
            format: message::format(request.format.clone())?,
            max_tokens: options.max_tokens(),
            stop: options.stop(),
        })
    }
}

async fn start(lease: Lease, request: GenerateRequest, prepared: Prepared) -> Result<Answer> {
    let Prepared { sampling, format, max_tokens, stop } = prepared;
    let prompt = request.prompt.unwrap_or_default();
    let think = message::think(request.think, &lease.facts, &request.model)?;
    // A base model has no template, and goes on with the text as it is.
    let is_base = lease.engine()?.traits().templates.is_empty();
    let system = request.system.filter(|text| !text.is_empty());
    if is_base && system.is_some() {
        let problem = "the model has no chat template, so it knows no system message";
        return Err(ApiError::invalid("system", problem));
    }
    if request.raw == Some(true) || is_base {
        let prompt = PromptText::Text(prompt);
        let request = CompletionRequest {
            prompt,
            format,
            sampling,
            max_tokens,
            stop,
            ..CompletionRequest::default()
        };
        return chat::complete(lease, request).await;
    }
    let messages = system.map(Message::system).into_iter().chain([Message::user(prompt)]).collect();
    let request = chat::ChatRequest {
        messages,
        think,
        format,
        sampling,
        max_tokens,
        stop,
        ..chat::ChatRequest::default()
    };
    chat::chat(lease, request).await
}

async fn whole(model: &str, answer: Answer, load: Duration) -> Result<Response> {
    let answer = answer.collect().await?;
    let thinking = (!answer.reasoning.is_empty()).then_some(answer.reasoning);
    let ending = Ending::of(&answer.finish, load, &answer.logprobs);
    Ok(reply(&GenerateReply::new(model, answer.text, thinking, ending)))
}

/// Tells an answer in lines.
struct Pieces {
    model: String,
    load: Duration,
    /// The tokens of the text that comes next.
    logprobs: Vec<TokenInfo>,
}

impl Script for Pieces {
    fn part(&mut self, _: usize, part: Part, out: &mut Frames) {
        let (response, thinking, ending) = match part {
            Part::Text(text) => (text, None, Ending::more(&std::mem::take(&mut self.logprobs))),
            Part::Reasoning(text) => (String::new(), Some(text), Ending::more(&[])),
            Part::Done(finish) => {
                (String::new(), None, Ending::of(&finish, self.load, &self.logprobs))
            }
            Part::Logprobs(tokens) => {
                self.logprobs.extend(tokens);
                return;
            }
            // Without tools there are no calls.
            Part::Progress { .. }
            | Part::ToolCallStart { .. }
            | Part::ToolCallArguments { .. }
            | Part::ToolCallEnd { .. } => return,
        };
        out.data(&GenerateReply::new(&self.model, response, thinking, ending));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        out.data(&json!({ "error": error.message }));
    }
}
