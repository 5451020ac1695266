//! `POST /api/chat`.

use std::time::{Duration, Instant};

use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::message::{self, Message, ThinkValue};
use super::options::Options;
use super::reply::{ChatReply, Ending, ReplyCall, ReplyMessage};
use crate::call::{Call, reply};
use crate::chat::{self, Answer, Part, TokenInfo, ToolCall};
use crate::fields::Refused;
use crate::models::{KeepAlive, Lease, Models, Wish};
use crate::routes::Stream;
use crate::stream::{self, Frames, Script};
use crate::{ApiError, Result};

/// A conversation to be answered.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaChatRequest")]
pub(super) struct ChatRequest {
    /// The model.
    model: String,
    /// The conversation; without any the model is only loaded.
    messages: Option<Vec<Message>>,
    /// Tools that the model may call.
    tools: Option<Vec<Value>>,
    /// Whether the answer comes in pieces; yes if not said.
    stream: Option<bool>,
    /// `"json"`, or a JSON schema.
    format: Option<Value>,
    /// How long the model stays in memory; 0 without messages unloads it.
    keep_alive: Option<KeepAlive>,
    /// How tokens are chosen, and the context that the model needs.
    options: Option<Options>,
    /// Whether the model thinks first.
    think: Option<ThinkValue>,
    /// `true` leaves out the oldest messages if the conversation does not fit. Without it such a
    /// conversation is refused.
    truncate: Option<bool>,
    /// The context is never shifted.
    #[serde(default, rename = "shift")]
    _shift: Refused,
    /// Whether to tell how likely each token was.
    logprobs: Option<bool>,
    /// How many other tokens to tell of.
    top_logprobs: Option<usize>,
}

/// Answers.
pub(super) async fn chat(call: Call) -> Result<Response> {
    let request: ChatRequest = call.json()?;
    let models = &call.state.models;
    let messages = request.messages.unwrap_or_default();
    if messages.is_empty() {
        let ending = load_only(models, &request.model, request.keep_alive).await?;
        return Ok(reply(&ChatReply::new(&request.model, ReplyMessage::default(), ending)));
    }
    let options = request.options.unwrap_or_default();
    let neutral = messages.into_iter().enumerate().map(|(at, message)| message.neutral(at));
    let mut neutral = chat::ChatRequest {
        messages: neutral.collect::<Result<_>>()?,
        format: message::format(request.format)?,
        sampling: options.sampling()?,
        max_tokens: options.max_tokens(),
        stop: options.stop(),
        ..chat::ChatRequest::default()
    };
    neutral.sampling.logprobs = logprobs(request.logprobs, request.top_logprobs)?;
    let wish = Wish { keep_alive: request.keep_alive, context: options.context()? };
    let (lease, load) = lease(models, &request.model, wish).await?;
    neutral.tools = message::tools(request.tools, &lease.facts, &request.model)?;
    neutral.think = message::think(request.think, &lease.facts, &request.model)?;
    let answer = match request.truncate {
        Some(true) => cut_to_fit(models, lease, neutral).await?,
        _ => chat::chat(lease, neutral).await?,
    };
    if request.stream == Some(false) {
        return whole(&request.model, answer, load).await;
    }
    Ok(stream::reply(Stream::Lines, vec![answer], Pieces::new(request.model, load)))
}

/// Loads a model without asking it anything, or unloads it.
pub(super) async fn load_only(
    models: &Models,
    name: &str,
    keep_alive: Option<KeepAlive>,
) -> Result<Ending> {
    let started = Instant::now();
    if keep_alive == Some(KeepAlive::For(Duration::ZERO)) {
        models.facts(name).await?;
        models.unload(name).await;
        return Ok(Ending::of_load("unload", started.elapsed()));
    }
    models.lease(name, keep_alive).await?;
    Ok(Ending::of_load("load", started.elapsed()))
}

/// A lease, and how long it took to get.
pub(super) async fn lease(models: &Models, name: &str, wish: Wish) -> Result<(Lease, Duration)> {
    let started = Instant::now();
    let lease = models.lease_with(name, wish).await?;
    Ok((lease, started.elapsed()))
}

/// How many tokens to tell of in the place of each.
///
/// # Errors
/// If there are more than anybody wants.
pub(super) fn logprobs(wanted: Option<bool>, top: Option<usize>) -> Result<Option<usize>> {
    match top {
        Some(top) if top > 20 => {
            Err(ApiError::invalid("top_logprobs", "top_logprobs must be between 0 and 20"))
        }
        _ => Ok((wanted == Some(true)).then(|| top.unwrap_or(0))),
    }
}

/// Answers a conversation without as many of its oldest messages as do not fit. The system's and
/// the last one stay.
async fn cut_to_fit(
    models: &Models,
    lease: Lease,
    mut request: chat::ChatRequest,
) -> Result<Answer> {
    let name = lease.name.clone();
    let mut lease = Some(lease);
    loop {
        let held = match lease.take() {
            Some(lease) => lease,
            None => models.lease(&name, None).await?,
        };
        let error = match chat::chat(held, request.clone()).await {
            Err(error) if error.kind == crate::Kind::TooLong => error,
            other => return other,
        };
        let last = request.messages.len() - 1;
        let oldest = request.messages.iter().take(last).position(|m| m.role != "system");
        match oldest {
            Some(at) => drop(request.messages.remove(at)),
            None => return Err(error),
        }
        // A result is of no use without its call.
        while let Some(at) = request.messages.iter().position(|m| m.role != "system")
            && request.messages[at].role == "tool"
            && at + 1 < request.messages.len()
        {
            request.messages.remove(at);
        }
        tracing::warn!(model = name, "the oldest message was left out, as the request allows");
    }
}

async fn whole(model: &str, answer: Answer, load: Duration) -> Result<Response> {
    let answer = answer.collect().await?;
    let mut message = ReplyMessage {
        content: answer.text,
        thinking: (!answer.reasoning.is_empty()).then_some(answer.reasoning),
        ..ReplyMessage::default()
    };
    for (index, call) in answer.tool_calls.into_iter().enumerate() {
        match ReplyCall::new(index, call) {
            Ok(call) => message.tool_calls.push(call),
            Err(text) => message.content += &text,
        }
    }
    let ending = Ending::of(&answer.finish, load, &answer.logprobs);
    Ok(reply(&ChatReply::new(model, message, ending)))
}

/// Tells an answer in lines.
struct Pieces {
    model: String,
    load: Duration,
    /// The call whose arguments are coming.
    call: Option<ToolCall>,
    /// The tokens of the text that comes next.
    logprobs: Vec<TokenInfo>,
}

impl Pieces {
    fn new(model: String, load: Duration) -> Self {
        Pieces { model, load, call: None, logprobs: Vec::new() }
    }

    fn say(&mut self, message: ReplyMessage, out: &mut Frames) {
        let ending = Ending::more(&std::mem::take(&mut self.logprobs));
        out.data(&ChatReply::new(&self.model, message, ending));
    }
}

impl Script for Pieces {
    fn part(&mut self, _: usize, part: Part, out: &mut Frames) {
        match part {
            Part::Text(content) => {
                self.say(ReplyMessage { content, ..ReplyMessage::default() }, out);
            }
            Part::Reasoning(thinking) => {
                let thinking = Some(thinking);
                self.say(ReplyMessage { thinking, ..ReplyMessage::default() }, out);
            }
            Part::Logprobs(tokens) => self.logprobs.extend(tokens),
            Part::ToolCallStart { id, name, .. } => {
                self.call = Some(ToolCall { id, name, arguments: String::new() });
            }
            Part::ToolCallArguments { json, .. } => {
                if let Some(call) = &mut self.call {
                    call.arguments += &json;
                }
            }
            Part::ToolCallEnd { index } => {
                let message = match self.call.take().map(|call| ReplyCall::new(index, call)) {
                    Some(Ok(call)) => {
                        ReplyMessage { tool_calls: vec![call], ..ReplyMessage::default() }
                    }
                    Some(Err(content)) => ReplyMessage { content, ..ReplyMessage::default() },
                    None => return,
                };
                self.say(message, out);
            }
            Part::Done(finish) => {
                let ending = Ending::of(&finish, self.load, &self.logprobs);
                out.data(&ChatReply::new(&self.model, ReplyMessage::default(), ending));
            }
            Part::Progress { .. } => {}
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        out.data(&json!({ "error": error.message }));
    }
}
