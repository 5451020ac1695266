//! Splits the text of an answer into what the model thinks, what it says and what it calls.

use super::{ChatRequest, Part};

/// Sees the text of one answer as it comes.
#[derive(Debug)]
pub(super) struct Splitter;

impl Splitter {
    /// For an answer to a conversation.
    pub(super) fn new(_: &ChatRequest) -> Self {
        Splitter
    }

    /// For text that is nothing but text.
    pub(super) fn plain() -> Self {
        Splitter
    }

    /// More text.
    pub(super) fn push(&mut self, text: String) -> Vec<Part> {
        vec![Part::Text(text)]
    }

    /// No more will come.
    pub(super) fn finish(&mut self) -> Vec<Part> {
        Vec::new()
    }
}
