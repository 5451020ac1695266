//! Ollama's interface, below `/api`.
//!
//! Streams are one JSON object on each line, durations are in nanoseconds, and `keep_alive` is
//! honoured on every route that uses a model.

mod chat;
mod create;
mod embed;
mod generate;
mod manage;
mod message;
mod models;
mod options;
mod reply;

use axum::http::Method;
use axum::response::{IntoResponse, Response};

use crate::api::Api;
use crate::call::{Call, reply};
use crate::routes::{Route, Stream};
use crate::{ApiError, Kind, Result};

/// The version of Ollama whose interface this is. Some clients ask for a least one.
const VERSION: &str = "0.13.0";

/// What `GET /` says to programs.
pub const GREETING: &str = "Ollama is running";

/// Every endpoint.
pub fn routes() -> Vec<Route> {
    vec![
        Route::get(Api::Ollama, "/api/version", "The version of Ollama's interface", version)
            .gives::<Version>()
            .public(),
        Route::get(Api::Ollama, "/api/tags", "The models on this machine", models::tags)
            .gives::<models::Tags>(),
        Route::get(Api::Ollama, "/api/ps", "The models in memory", models::ps)
            .gives::<models::Processes>(),
        Route::post(Api::Ollama, "/api/show", "What a model is", models::show)
            .takes::<models::ShowRequest>()
            .gives::<models::Shown>(),
        Route::post(Api::Ollama, "/api/chat", "Answer a conversation", chat::chat)
            .takes::<chat::ChatRequest>()
            .gives::<reply::ChatReply>()
            .streams(Stream::Lines),
        Route::post(Api::Ollama, "/api/generate", "Answer or continue a text", generate::generate)
            .takes::<generate::GenerateRequest>()
            .gives::<reply::GenerateReply>()
            .streams(Stream::Lines),
        Route::post(Api::Ollama, "/api/embed", "Vectors of texts", embed::embed)
            .takes::<embed::EmbedRequest>()
            .gives::<embed::Embedded>(),
        Route::post(Api::Ollama, "/api/embeddings", "The vector of one text", embed::embeddings)
            .takes::<embed::OldRequest>()
            .gives::<embed::OldReply>(),
        Route::post(Api::Ollama, "/api/pull", "Fetch a model", manage::pull)
            .takes::<manage::PullRequest>()
            .gives::<manage::Progress>()
            .streams(Stream::Lines),
        Route::new(Method::DELETE, Api::Ollama, "/api/delete", "Delete a model", manage::delete)
            .takes::<manage::DeleteRequest>(),
        Route::post(Api::Ollama, "/api/copy", "Give a model a further name", manage::copy)
            .takes::<manage::CopyRequest>(),
        Route::post(Api::Ollama, "/api/create", "Make a model from another", create::create)
            .takes::<create::CreateRequest>()
            .gives::<manage::Progress>()
            .streams(Stream::Lines),
        Route::post(Api::Ollama, "/api/push", "Not supported: Baton keeps no registry", push),
    ]
}

#[derive(serde::Serialize, schemars::JsonSchema)]
#[schemars(rename = "OllamaVersion")]
struct Version {
    /// The version of Ollama whose interface this is.
    version: &'static str,
    /// The server behind it.
    server: String,
}

async fn version(_: Call) -> Result<Response> {
    let server = format!("baton {}", env!("CARGO_PKG_VERSION"));
    Ok(reply(&Version { version: VERSION, server }))
}

async fn push(_: Call) -> Result<Response> {
    let message = "Baton pushes models nowhere; copy the files of its store instead";
    Err(ApiError::new(Kind::NotFound, message))
}

/// An answer without content, as Ollama gives to what it has done.
fn done() -> Response {
    ().into_response()
}

#[cfg(test)]
mod tests;
