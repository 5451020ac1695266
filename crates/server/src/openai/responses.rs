//! `POST /v1/responses`: answers made of items. Nothing is kept from one request to the next, so
//! the whole conversation is in the request.

mod input;
mod request;
mod script;

use axum::response::Response;

use crate::call::{Call, reply};
use crate::routes::Stream;
use crate::stream::{self, Frames, Script};
use crate::{ApiError, Result, chat};
pub(super) use request::Request;
use script::ResponseScript;

/// A whole answer.
#[derive(Debug, schemars::JsonSchema)]
#[schemars(rename = "Response")]
#[allow(dead_code)] // Describes what the script builds.
pub(super) struct Answer {
    id: String,
    object: String,
    /// `completed`, `incomplete`, `failed` or `in_progress`.
    status: String,
    /// Items of type `message`, `reasoning` and `function_call`.
    output: Vec<serde_json::Value>,
}

/// Names the field at fault as this interface does.
fn in_own_words(error: ApiError) -> ApiError {
    let param = error.param.map(|param| match param.as_str() {
        chat::FORM => "text.format".to_owned(),
        "messages" => "input".to_owned(),
        _ => param.replace(".function.", "."),
    });
    ApiError { param, ..error }
}

/// Answers a conversation.
pub(super) async fn handle(call: Call) -> Result<Response> {
    let request: Request = call.json()?;
    let (model, streams) = (request.model.clone(), request.stream.unwrap_or(false));
    let keep_alive = request.keep_alive()?;
    let echo = request.echo();
    let request = request.neutral()?;
    let logprobs = request.sampling.logprobs.is_some();
    let lease = call.state.models.lease(&model, keep_alive).await?;
    let mut answer = chat::chat(lease, request).await.map_err(in_own_words)?;
    let mut script = ResponseScript::new(echo, logprobs);
    if streams {
        return Ok(stream::reply(Stream::Events, vec![answer], script));
    }
    // The same items as in pieces, of which only the last word is sent.
    let mut unsent = Frames::new(Stream::Events);
    while let Some(part) = answer.next().await {
        script.part(0, part?, &mut unsent);
        unsent.clear();
    }
    match script.finished() {
        Some(response) => Ok(reply(response)),
        None => Err(ApiError::internal("the answer has no end")),
    }
}
