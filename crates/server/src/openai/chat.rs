//! `POST /v1/chat/completions`.

use axum::response::Response;
use futures_util::future::try_join_all;
use schemars::JsonSchema;
use serde::Serialize;

use super::chat_request::Request;
use super::chat_stream::ChatScript;
use super::sampling;
use super::shapes::{FINGERPRINT, Logprobs, Timings, Usage, finish_reason};
use crate::Result;
use crate::call::{Call, reply};
use crate::chat::{self, Answer, ChatRequest, Collected, ToolCall};
use crate::ids;
use crate::models::{KeepAlive, Models};
use crate::routes::Stream;
use crate::stream;

/// A whole answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatCompletion")]
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
#[schemars(rename = "ChatChoice")]
struct Choice {
    index: usize,
    message: AnswerMessage,
    logprobs: Option<Logprobs>,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: &'static str,
}

/// What the model says.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct AnswerMessage {
    role: &'static str,
    /// Its text; none if it only calls.
    content: Option<String>,
    refusal: (),
    /// What it thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// The same, under the name that other servers give it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<AnswerCall>,
}

/// A call that the model makes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct AnswerCall {
    id: String,
    r#type: &'static str,
    function: AnswerFunction,
}

/// What it calls.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct AnswerFunction {
    name: String,
    /// One JSON object.
    arguments: String,
}

/// Answers a conversation.
pub async fn handle(call: Call) -> Result<Response> {
    let request: Request = call.json()?;
    let (model, streams) = (request.model.clone(), request.stream.unwrap_or(false));
    let (wants_usage, keep_alive) = (request.wants_usage(), request.keep_alive()?);
    let n = sampling::choices(request.n)?;
    let request = request.neutral()?;
    let logprobs = request.sampling.logprobs.is_some();
    let each = (0..n).map(|index| {
        let sampling = sampling::of_choice(&request.sampling, index);
        let request = ChatRequest { sampling, ..request.clone() };
        start(&call.state.models, &model, keep_alive, request)
    });
    let answers = try_join_all(each).await?;
    let id = ids::unique("chatcmpl-");
    if streams {
        let script = ChatScript::new(id, model, n, logprobs, wants_usage);
        return Ok(stream::reply(Stream::Events, answers, script));
    }
    let collected = try_join_all(answers.into_iter().map(Answer::collect)).await?;
    Ok(reply(&completion(id, model, collected, logprobs)))
}

async fn start(
    models: &Models,
    model: &str,
    keep_alive: Option<KeepAlive>,
    request: ChatRequest,
) -> Result<Answer> {
    chat::chat(models.lease(model, keep_alive).await?, request).await
}

fn completion(id: String, model: String, collected: Vec<Collected>, logprobs: bool) -> Completion {
    let mut usage = Usage::default();
    collected.iter().for_each(|answer| usage.add_answer(&answer.finish));
    let timings = match collected.as_slice() {
        [only] => Some(Timings::of(&only.finish)),
        _ => None,
    };
    let choices = collected.into_iter().enumerate().map(|(i, a)| choice(i, a, logprobs)).collect();
    Completion {
        id,
        object: "chat.completion",
        created: ids::now(),
        model,
        system_fingerprint: FINGERPRINT,
        choices,
        usage,
        timings,
    }
}

fn choice(index: usize, answer: Collected, logprobs: bool) -> Choice {
    let reasoning = (!answer.reasoning.is_empty()).then_some(answer.reasoning);
    let only_calls = answer.text.is_empty() && !answer.tool_calls.is_empty();
    let message = AnswerMessage {
        role: "assistant",
        content: (!only_calls).then_some(answer.text),
        refusal: (),
        reasoning_content: reasoning.clone(),
        reasoning,
        tool_calls: answer.tool_calls.into_iter().map(AnswerCall::from).collect(),
    };
    let logprobs = logprobs.then(|| Logprobs::of(&answer.logprobs));
    Choice { index, message, logprobs, finish_reason: finish_reason(answer.finish.reason) }
}

impl From<ToolCall> for AnswerCall {
    fn from(call: ToolCall) -> Self {
        let function = AnswerFunction { name: call.name, arguments: call.arguments };
        AnswerCall { id: call.id, r#type: "function", function }
    }
}
