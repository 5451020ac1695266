//! The messages of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// One message, in the form of the OpenAI API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What is said. A message that only calls tools says nothing.
    #[serde(default)]
    pub content: Option<Content>,
    /// Everything else the template may look at, such as `tool_calls` or `reasoning_content`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// A list of parts, such as `{"type": "text", "text": "..."}`.
    Parts(Vec<Value>),
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(text.into())), extra: Map::new() }
    }

    /// Instructions for the model.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new("system", text)
    }

    /// A message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new("user", text)
    }

    /// An answer of the model.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new("assistant", text)
    }

    /// The text of the content, with the texts of parts joined.
    pub fn text(&self) -> String {
        match self.content.clone().map(Content::into_text) {
            Some(Content::Text(text)) => text,
            _ => String::new(),
        }
    }
}

impl Content {
    /// The content as plain text: the texts of all parts, in order.
    pub(super) fn into_text(self) -> Self {
        match self {
            Content::Text(_) => self,
            Content::Parts(parts) => Content::Text(
                parts.iter().filter_map(|part| part["text"].as_str().or(part.as_str())).collect(),
            ),
        }
    }

    /// Text as a list of one part.
    pub(super) fn text_part(text: String) -> Self {
        Content::Parts(vec![json!({ "type": "text", "text": text })])
    }
}
