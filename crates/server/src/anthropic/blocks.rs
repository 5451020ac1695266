//! What messages consist of, and how that becomes messages as templates know them.

use baton_text::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::fields::Ignored;
use crate::{ApiError, Result};

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AnthropicInputMessage")]
pub(super) struct InMessage {
    role: Role,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "AnthropicRole")]
enum Role {
    User,
    Assistant,
}

/// A text, or blocks of several kinds.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "AnthropicContent")]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block of a message.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "AnthropicInputBlock")]
pub(super) enum Block {
    Text {
        text: String,
        /// All prompts are cached.
        #[serde(default, rename = "cache_control")]
        _cache_control: Ignored,
        #[serde(default, rename = "citations")]
        _citations: Ignored,
    },
    Thinking {
        thinking: String,
        #[serde(default, rename = "signature")]
        _signature: Ignored,
    },
    /// What only Anthropic can read is left out.
    RedactedThinking {
        #[serde(default, rename = "data")]
        _data: Ignored,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
        #[serde(default, rename = "cache_control")]
        _cache_control: Ignored,
        #[serde(default, rename = "caller")]
        _caller: Ignored,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<Content>,
        is_error: Option<bool>,
        #[serde(default, rename = "cache_control")]
        _cache_control: Ignored,
    },
    /// Not supported: Baton runs no vision models.
    Image {
        #[serde(default, rename = "source")]
        _source: Ignored,
    },
    /// Not supported.
    Document {
        #[serde(default, rename = "source")]
        _source: Ignored,
    },
}

impl Content {
    /// The text of it, at `place` in the request.
    ///
    /// # Errors
    /// If there is anything else in it.
    pub(super) fn text(&self, place: &str) -> Result<String> {
        let blocks = match self {
            Content::Text(text) => return Ok(text.clone()),
            Content::Blocks(blocks) => blocks,
        };
        let mut texts = Vec::with_capacity(blocks.len());
        for (at, block) in blocks.iter().enumerate() {
            match block {
                Block::Text { text, .. } => texts.push(text.as_str()),
                other => return Err(other.refused(&format!("{place}[{at}]"))),
            }
        }
        Ok(texts.join("\n\n"))
    }

    /// The texts of its blocks.
    pub(super) fn texts(&self) -> Vec<&str> {
        match self {
            Content::Text(text) => vec![text],
            Content::Blocks(blocks) => {
                let texts = blocks.iter().filter_map(|block| match block {
                    Block::Text { text, .. } => Some(text.as_str()),
                    _ => None,
                });
                texts.collect()
            }
        }
    }
}

impl Block {
    fn refused(&self, place: &str) -> ApiError {
        let what = match self {
            Block::Image { .. } => "images are",
            Block::Document { .. } => "documents are",
            _ => "a block of this type is",
        };
        let problem = format!("{place}: {what} not supported here; send text");
        ApiError::invalid(place, problem)
    }
}

impl InMessage {
    /// Whether it is the beginning of an answer that the model is to go on with.
    pub(super) fn is_prefill(&self) -> bool {
        let calls = |block: &Block| matches!(block, Block::ToolUse { .. });
        let has_calls =
            matches!(&self.content, Content::Blocks(blocks) if blocks.iter().any(calls));
        self.role == Role::Assistant && !has_calls
    }

    /// The messages that it is, as templates know them; `at` is its number. Results of tools come
    /// before what the user says beside them.
    ///
    /// # Errors
    /// If there is anything in it that is not supported.
    pub(super) fn neutral(self, at: usize, out: &mut Vec<Message>) -> Result<()> {
        let blocks = match self.content {
            Content::Text(text) => {
                let role = if self.role == Role::User { "user" } else { "assistant" };
                out.push(Message::new(role, text));
                return Ok(());
            }
            Content::Blocks(blocks) => blocks,
        };
        match self.role {
            Role::User => user(at, blocks, out),
            Role::Assistant => {
                out.push(assistant(at, blocks)?);
                Ok(())
            }
        }
    }
}

fn user(at: usize, blocks: Vec<Block>, out: &mut Vec<Message>) -> Result<()> {
    let mut texts = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        let place = format!("messages[{at}].content[{index}]");
        match block {
            Block::Text { text, .. } => texts.push(text),
            Block::ToolResult { tool_use_id, content, is_error, .. } => {
                let text = match content {
                    Some(content) => content.text(&format!("{place}.content"))?,
                    None => String::new(),
                };
                let text = match is_error {
                    Some(true) => format!("Error: {text}"),
                    _ => text,
                };
                let mut message = Message::new("tool", text);
                message.extra.insert("tool_call_id".into(), tool_use_id.into());
                out.push(message);
            }
            other => return Err(other.refused(&place)),
        }
    }
    if !texts.is_empty() {
        out.push(Message::user(texts.join("\n\n")));
    }
    Ok(())
}

fn assistant(at: usize, blocks: Vec<Block>) -> Result<Message> {
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text { text, .. } => texts.push(text),
            Block::Thinking { thinking, .. } => thoughts.push(thinking),
            Block::RedactedThinking { .. } => {}
            Block::ToolUse { id, name, input, .. } => {
                let function = json!({ "name": name, "arguments": input });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            other => return Err(other.refused(&format!("messages[{at}].content[{index}]"))),
        }
    }
    let mut message = Message::assistant(texts.join("\n\n"));
    if !thoughts.is_empty() {
        message.extra.insert("reasoning_content".into(), thoughts.join("\n\n").into());
    }
    if !calls.is_empty() {
        message.extra.insert("tool_calls".into(), Value::Array(calls));
    }
    Ok(message)
}
