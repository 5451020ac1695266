//! `POST /v1/embeddings`: vectors of texts.

use std::borrow::Cow;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chat_request::stay;
use crate::call::{Call, reply};
use crate::fields::{Ignored, whole_number};
use crate::models::KeepAlive;
use crate::text_or::TextOr;
use crate::vectors::{VectorRequest, vectors};
use crate::{ApiError, Result};

/// Most texts of one request, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

/// Texts to make vectors of.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EmbeddingRequest")]
pub struct Request {
    /// The model that makes them.
    model: String,
    /// A text, or a list of texts.
    input: TextOr<Inputs>,
    /// Elements of a vector, if fewer are wanted than the model gives.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<usize>")]
    dimensions: Option<usize>,
    /// How the vectors are written: `float` or `base64`, which is of 32-bit numbers.
    #[serde(default)]
    encoding_format: Option<Encoding>,
    /// Cut a text that is too long at its end; without it such a text is refused.
    #[serde(default)]
    truncate: Option<bool>,
    /// How long the model stays in memory after this request.
    #[serde(default)]
    keep_alive: Option<KeepAlive>,
    /// The same, in seconds.
    #[serde(default)]
    ttl: Option<f64>,
    /// Who asks; nothing is kept of it.
    #[serde(default, rename = "user")]
    _user: Ignored,
}

/// Inputs that are not one text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "EmbeddingInputs")]
#[allow(dead_code)] // What is refused need not be looked at.
enum Inputs {
    /// Several texts.
    Texts(Vec<String>),
    /// Refused: the tokens of one text.
    Tokens(Vec<u32>),
    /// Refused: the tokens of several.
    TokenLists(Vec<Vec<u32>>),
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    /// As numbers.
    #[default]
    Float,
    /// As the bytes of 32-bit numbers, little-endian.
    Base64,
}

/// Vectors of texts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Embeddings {
    object: &'static str,
    /// In the order of the texts.
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

/// The vector of a text.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector of length 1.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "EmbeddingVector")]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

/// Tokens that were read.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "EmbeddingUsage")]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Makes vectors.
pub async fn handle(call: Call) -> Result<Response> {
    let request: Request = call.json()?;
    let keep_alive = stay(request.keep_alive, request.ttl)?;
    let texts = texts(request.input)?;
    let lease = call.state.models.lease(&request.model, keep_alive).await?;
    let made = VectorRequest {
        texts,
        dimensions: request.dimensions,
        truncate: request.truncate.unwrap_or(false),
    };
    let made = vectors(lease, made).await?;
    let encoding = request.encoding_format.unwrap_or_default();
    let row = |(index, vector): (usize, Vec<f32>)| Embedding {
        object: "embedding",
        index,
        embedding: encoding.written(vector),
    };
    Ok(reply(&Embeddings {
        object: "list",
        data: made.vectors.into_iter().enumerate().map(row).collect(),
        model: request.model,
        usage: Usage { prompt_tokens: made.tokens, total_tokens: made.tokens },
    }))
}

fn texts(input: TextOr<Inputs>) -> Result<Vec<String>> {
    let problem = |message: Cow<'static, str>| Err(ApiError::invalid("input", message));
    match input {
        TextOr::Text(text) => Ok(vec![text]),
        TextOr::Other(Inputs::Texts(texts)) if texts.is_empty() => problem("input is empty".into()),
        TextOr::Other(Inputs::Texts(texts)) if texts.len() > MAX_TEXTS => {
            let n = texts.len();
            problem(format!("input has {n} texts; at most {MAX_TEXTS} are taken").into())
        }
        TextOr::Other(Inputs::Texts(texts)) => Ok(texts),
        // Clients make these with OpenAI's tokenizer, to which no other model's ids belong.
        TextOr::Other(Inputs::Tokens(_) | Inputs::TokenLists(_)) => problem(
            "token ids are not supported, as each model has its own; send text (LangChain: \
             check_embedding_ctx_length=False)"
                .into(),
        ),
    }
}

impl Encoding {
    fn written(self, vector: Vec<f32>) -> Vector {
        match self {
            Encoding::Float => Vector::Float(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_written_as_the_client_reads_them() {
        let vector = Encoding::Base64.written(vec![1.0, -2.5]);
        assert_eq!(serde_json::to_value(vector).unwrap(), "AACAPwAAIMA=");
        let vector = Encoding::Float.written(vec![1.0, -2.5]);
        assert_eq!(serde_json::to_value(vector).unwrap(), serde_json::json!([1.0, -2.5]));
    }

    #[test]
    fn only_texts_are_taken() {
        let read = |json: &str| texts(serde_json::from_str(json).unwrap());
        assert_eq!(read("\"a\"").unwrap(), ["a"]);
        assert_eq!(read("[\"a\", \"b\"]").unwrap(), ["a", "b"]);
        for bad in ["[]", "[1, 2]", "[[1], [2]]"] {
            assert_eq!(read(bad).unwrap_err().param.as_deref(), Some("input"), "{bad}");
        }
    }
}
