//! Anthropic's interface, below `/v1/messages`.

mod blocks;
mod messages;
mod reply;
mod request;

use crate::api::Api;
use crate::routes::{Route, Stream};

/// Every endpoint.
pub fn routes() -> Vec<Route> {
    vec![
        Route::post(Api::Anthropic, "/v1/messages", "Answer a conversation", messages::messages)
            .takes::<request::MessagesRequest>()
            .gives::<reply::Message>()
            .streams(Stream::Events),
        Route::post(
            Api::Anthropic,
            "/v1/messages/count_tokens",
            "Tokens of a conversation",
            messages::count_tokens,
        )
        .takes::<request::CountRequest>()
        .gives::<reply::Count>(),
    ]
}

#[cfg(test)]
mod tests;
