//! The interface of llama.cpp's server, as far as it is its own: what it shares with OpenAI's is
//! there.
//!
//! That server has one model, and its clients often name none. Here a request without a name means
//! the one that is in memory, or the only one that is installed; if there are several it is refused.

mod completion;
mod saved;
mod state;
mod text;

use crate::api::Api;
use crate::routes::{Route, Stream};

/// Every endpoint.
pub fn routes() -> Vec<Route> {
    use Api::Llama;
    vec![
        Route::get(Llama, "/health", "Whether the server is up", state::health).public(),
        Route::get(Llama, "/v1/health", "As /health", state::health).public(),
        Route::get(Llama, "/metrics", "Counters for Prometheus", state::metrics),
        Route::get(Llama, "/props", "What a loaded model is; ?model= names one", state::props)
            .gives::<state::Props>(),
        Route::get(Llama, "/slots", "The answers being made; ?model= names a model", state::slots)
            .gives::<Vec<state::Slot>>(),
        Route::post(
            Llama,
            "/slots/{id}",
            "Save, restore or erase a model's cache, by ?action=; ?model= names a model",
            saved::act,
        )
        .takes::<saved::SavedRequest>()
        .gives::<saved::Saved>(),
        Route::post(Llama, "/tokenize", "The tokens of a text", text::tokenize)
            .takes::<text::TokenizeRequest>()
            .gives::<text::Tokenized>(),
        Route::post(Llama, "/detokenize", "The text of tokens", text::detokenize)
            .takes::<text::DetokenizeRequest>()
            .gives::<text::Detokenized>(),
        Route::post(
            Llama,
            "/apply-template",
            "What the model reads of a conversation",
            text::apply,
        )
        .takes::<text::ApplyRequest>()
        .gives::<text::Applied>(),
        Route::post(Llama, "/completion", "Continue a text", completion::completion)
            .takes::<completion::CompletionRequest>()
            .gives::<completion::Completion>()
            .streams(Stream::Events),
    ]
}

#[cfg(test)]
mod tests;
