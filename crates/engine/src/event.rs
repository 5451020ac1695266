//! What an answer tells while it is made, and how it ends.

use crate::{Metrics, Result, Token};

/// What happens while an answer is made, in order.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
// There is one `Done`, at the end.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// A chunk of the prompt was evaluated.
    Prefill {
        /// Tokens of the prompt that are in the cache now, reused ones included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen. Its text may come later, or never if it is part of a stop string.
    Token(Token),
    /// More of the answer's text: whole characters, no part of a stop string, no control token.
    Text(String),
    /// The answer is complete; nothing follows.
    Done(Summary),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a token that ends its turn.
    EndOfGeneration,
    /// This stop string came up. It is not part of the text.
    Stop(String),
    /// The wanted number of tokens, or the context, is full.
    Length,
    /// The [`CancelToken`](crate::CancelToken) was used.
    Cancelled,
}

impl FinishReason {
    /// Whether the model or a stop string ended the answer, not a limit or the user.
    pub fn is_complete(&self) -> bool {
        matches!(self, FinishReason::EndOfGeneration | FinishReason::Stop(_))
    }

    /// `stop`, `length` or `cancelled`; the first two as OpenAI's interface names them.
    pub fn name(&self) -> &'static str {
        match self {
            FinishReason::EndOfGeneration | FinishReason::Stop(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// How an answer ended and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// The seed that was sampled with: give it to get the same answer again.
    pub seed: u64,
    /// Counts and times.
    pub metrics: Metrics,
}

/// The whole text of a complete stream of events, and its end.
pub(crate) fn finish(events: impl Iterator<Item = Result<Event>>) -> Result<(String, Summary)> {
    let mut text = String::new();
    let mut summary = None;
    for event in events {
        match event? {
            Event::Text(piece) => text += &piece,
            Event::Done(done) => summary = Some(done),
            _ => {}
        }
    }
    Ok((text, summary.expect("events without an error end with a summary")))
}

/// The text among events.
pub(crate) fn text(
    events: impl Iterator<Item = Result<Event>>,
) -> impl Iterator<Item = Result<String>> {
    events.filter_map(|event| match event {
        Ok(Event::Text(piece)) => Some(Ok(piece)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}
