//! Vectors of texts: `/api/embed` and the older `/api/embeddings`.

use std::time::Instant;

use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chat::lease;
use super::options::Options;
use super::reply::nanoseconds;
use crate::Result;
use crate::call::{Call, reply};
use crate::models::{KeepAlive, Wish};
use crate::text_or::Texts;
use crate::vectors::{VectorRequest, vectors};

/// Texts to make vectors of.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaEmbedRequest")]
pub(super) struct EmbedRequest {
    /// The model.
    model: String,
    /// One text or several.
    input: Option<Texts>,
    /// Whether a text that is too long is cut; yes if not said, as Ollama does.
    truncate: Option<bool>,
    /// Elements of a vector, if fewer are wanted than the model gives.
    dimensions: Option<usize>,
    /// How long the model stays in memory.
    keep_alive: Option<KeepAlive>,
    /// How tokens are chosen, and the context that the model needs.
    options: Option<Options>,
}

/// Vectors, in the order of the texts.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedded")]
pub(super) struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// A text to make a vector of.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaEmbeddingsRequest")]
pub(super) struct OldRequest {
    /// The model.
    model: String,
    /// The text.
    prompt: Option<String>,
    /// How long the model stays in memory.
    keep_alive: Option<KeepAlive>,
    /// How tokens are chosen, and the context that the model needs.
    options: Option<Options>,
}

/// A vector.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddingsReply")]
pub(super) struct OldReply {
    embedding: Vec<f32>,
}

/// Makes vectors of texts.
pub(super) async fn embed(call: Call) -> Result<Response> {
    let request: EmbedRequest = call.json()?;
    let options = request.options.unwrap_or_default();
    options.sampling()?;
    let wish = Wish { keep_alive: request.keep_alive, context: options.context()? };
    let (lease, load) = lease(&call.state.models, &request.model, wish).await?;
    let texts = match request.input {
        // As Ollama does: no text, no vector.
        None => Vec::new(),
        Some(Texts::Text(text)) if text.is_empty() => Vec::new(),
        Some(texts) => texts.into_list(),
    };
    let begun = Instant::now();
    let dimensions = request.dimensions;
    let truncate = request.truncate.unwrap_or(true);
    let made = vectors(lease, VectorRequest { texts, dimensions, truncate }).await?;
    Ok(reply(&Embedded {
        model: request.model,
        embeddings: made.vectors,
        total_duration: nanoseconds(load + begun.elapsed()),
        load_duration: nanoseconds(load),
        prompt_eval_count: made.tokens,
    }))
}

/// Makes a vector of one text.
pub(super) async fn embeddings(call: Call) -> Result<Response> {
    let request: OldRequest = call.json()?;
    let options = request.options.unwrap_or_default();
    options.sampling()?;
    let wish = Wish { keep_alive: request.keep_alive, context: options.context()? };
    let (lease, _) = lease(&call.state.models, &request.model, wish).await?;
    let texts: Vec<String> = request.prompt.filter(|text| !text.is_empty()).into_iter().collect();
    let truncate = true;
    let made = vectors(lease, VectorRequest { texts, truncate, ..VectorRequest::default() });
    let embedding = made.await?.vectors.into_iter().next().unwrap_or_default();
    Ok(reply(&OldReply { embedding }))
}
