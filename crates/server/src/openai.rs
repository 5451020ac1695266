//! The interface of OpenAI: chat completions, completions, responses, embeddings, models.

mod chat;
mod chat_request;
mod chat_stream;
mod completion_stream;
mod completions;
mod embeddings;
mod message;
mod models;
mod responses;
mod sampling;
mod shapes;
mod text_or;

use axum::http::Method;

use crate::api::Api;
use crate::routes::{Route, Stream};

/// The routes of this interface. Some clients leave out `/v1`.
pub(crate) fn routes() -> Vec<Route> {
    let chat = "Answer a conversation";
    let complete = "Continue a text";
    let list = "List the models that are here";
    let chat_route = |path| {
        Route::post(Api::OpenAi, path, chat, chat::handle)
            .takes::<chat_request::Request>()
            .gives::<chat::Completion>()
            .streams(Stream::Events)
    };
    vec![
        chat_route("/v1/chat/completions"),
        chat_route("/chat/completions"),
        Route::post(Api::OpenAi, "/v1/completions", complete, completions::handle)
            .takes::<completions::Request>()
            .gives::<completions::Completion>()
            .streams(Stream::Events),
        Route::post(Api::OpenAi, "/v1/embeddings", "Make vectors of texts", embeddings::handle)
            .takes::<embeddings::Request>()
            .gives::<embeddings::Embeddings>(),
        Route::post(Api::OpenAi, "/v1/responses", "Answer a conversation", responses::handle)
            .takes::<responses::Request>()
            .gives::<responses::Answer>()
            .streams(Stream::Events),
        Route::get(Api::OpenAi, "/v1/models", list, models::list).gives::<models::List>(),
        Route::get(Api::OpenAi, "/models", list, models::list).gives::<models::List>(),
        Route::get(Api::OpenAi, "/v1/models/{*model}", "Say what a model is", models::one)
            .gives::<models::Model>(),
        Route::new(
            Method::DELETE,
            Api::OpenAi,
            "/v1/models/{*model}",
            "Delete a model from this machine",
            models::delete,
        )
        .gives::<models::Deleted>(),
    ]
}

#[cfg(test)]
mod tests;
