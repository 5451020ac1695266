//! Texts, tokens and prompts: `/tokenize`, `/detokenize` and `/apply-template`.

use axum::response::Response;
use baton_text::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call::{Call, reply};
use crate::chat::{self, ChatRequest, blocking};
use crate::{ApiError, Result};

/// A text to be split.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LlamaTokenizeRequest")]
pub(super) struct TokenizeRequest {
    /// The model.
    model: Option<String>,
    /// The text.
    content: String,
    /// Whether the tokens that the model wants around texts are added.
    #[serde(default)]
    add_special: bool,
    /// Whether names of control tokens stand for those tokens.
    #[serde(default = "yes")]
    parse_special: bool,
    /// Whether the text of each token is told.
    #[serde(default)]
    with_pieces: bool,
}

fn yes() -> bool {
    true
}

/// The tokens of a text.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaTokenized")]
pub(super) struct Tokenized {
    tokens: Vec<Token>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "LlamaToken")]
enum Token {
    Id(u32),
    WithPiece { id: u32, piece: Piece },
}

/// The text of a token, or its bytes if they are no whole characters.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "LlamaPiece")]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// Tokens to be joined.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LlamaDetokenizeRequest")]
pub(super) struct DetokenizeRequest {
    /// The model.
    model: Option<String>,
    /// The token ids.
    tokens: Vec<u32>,
}

/// The text of tokens.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaDetokenized")]
pub(super) struct Detokenized {
    content: String,
}

/// A conversation to be written as the model reads it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "LlamaApplyRequest")]
pub(super) struct ApplyRequest {
    /// The model.
    model: Option<String>,
    /// Messages in the form of the OpenAI API.
    messages: Vec<Value>,
    /// Tools that the model may call.
    tools: Option<Vec<Value>>,
    /// Further variables of the template.
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    /// Whether the answer begins; yes if not said.
    #[serde(default = "yes")]
    add_generation_prompt: bool,
}

/// What the model reads.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaApplied")]
pub(super) struct Applied {
    prompt: String,
}

/// Splits a text.
pub(super) async fn tokenize(call: Call) -> Result<Response> {
    let request: TokenizeRequest = call.json()?;
    let lease = call.state.models.lease_usual(request.model.as_deref()).await?;
    let tokens = blocking(move || {
        let tokenizer = lease.tokenizer()?;
        let ids = match request.parse_special {
            true => tokenizer.encode(&request.content, request.add_special),
            false => tokenizer.encode_as_text(&request.content, request.add_special),
        };
        let token = |id: u32| match request.with_pieces {
            false => Token::Id(id),
            true => {
                let bytes = tokenizer.token_bytes(id);
                let piece = match std::str::from_utf8(bytes) {
                    Ok(text) => Piece::Text(text.to_owned()),
                    Err(_) => Piece::Bytes(bytes.to_vec()),
                };
                Token::WithPiece { id, piece }
            }
        };
        Ok(ids.map_err(baton_engine::Error::from)?.into_iter().map(token).collect())
    });
    Ok(reply(&Tokenized { tokens: tokens.await? }))
}

/// Joins tokens.
pub(super) async fn detokenize(call: Call) -> Result<Response> {
    let request: DetokenizeRequest = call.json()?;
    let lease = call.state.models.lease_usual(request.model.as_deref()).await?;
    let content = blocking(move || {
        let tokenizer = lease.tokenizer()?;
        let vocabulary = tokenizer.vocab_size();
        if let Some(id) = request.tokens.iter().find(|&&id| id as usize >= vocabulary) {
            let problem = format!("token {id} is not one of the model's {vocabulary}");
            return Err(ApiError::invalid("tokens", problem));
        }
        Ok(tokenizer.decode(&request.tokens, false))
    });
    Ok(reply(&Detokenized { content: content.await? }))
}

/// Writes a conversation as the model reads it.
pub(super) async fn apply(call: Call) -> Result<Response> {
    let request: ApplyRequest = call.json()?;
    let message = |(at, value): (usize, Value)| {
        serde_json::from_value::<Message>(value).map_err(|error| {
            let place = format!("messages[{at}]");
            ApiError::invalid(place.clone(), format!("{place}: {error}"))
        })
    };
    let neutral = ChatRequest {
        messages: request.messages.into_iter().enumerate().map(message).collect::<Result<_>>()?,
        tools: request.tools.unwrap_or_default(),
        template_variables: request.chat_template_kwargs,
        continue_last: !request.add_generation_prompt,
        ..ChatRequest::default()
    };
    let lease = call.state.models.lease_usual(request.model.as_deref()).await?;
    let prompt = blocking(move || chat::rendered(&lease, &neutral)).await?;
    Ok(reply(&Applied { prompt }))
}
