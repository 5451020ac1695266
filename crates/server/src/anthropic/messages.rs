//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::response::Response;

use super::reply::{Count, Events, Message};
use super::request::{CountRequest, MessagesRequest};
use crate::call::{Call, reply};
use crate::chat::{self, blocking};
use crate::routes::Stream;
use crate::{Result, stream};

/// Answers.
pub(super) async fn messages(call: Call) -> Result<Response> {
    let request: MessagesRequest = call.json()?;
    let (model, stream) = (request.model.clone(), request.stream);
    let keep_alive = request.keep_alive.or(request.ttl);
    let request = request.neutral()?;
    let lease = call.state.models.lease(&model, keep_alive).await?;
    let answer = chat::chat(lease, request).await?;
    if stream {
        let events = Events::new(model, answer.prompt_tokens);
        return Ok(stream::reply(Stream::Events, vec![answer], events));
    }
    Ok(reply(&Message::new(model, answer.collect().await?)))
}

/// Counts the tokens that the model would read.
pub(super) async fn count_tokens(call: Call) -> Result<Response> {
    let request: CountRequest = call.json()?;
    let model = request.model.clone();
    let request = request.neutral()?;
    let lease = call.state.models.lease(&model, None).await?;
    let input_tokens = blocking(move || {
        let rendered = chat::rendered(&lease, &request)?;
        let tokens = lease.engine().tokenizer()?.encode_guarded(&rendered);
        Ok(tokens.map_err(baton_engine::Error::from)?.len())
    });
    Ok(reply(&Count { input_tokens: input_tokens.await? }))
}
