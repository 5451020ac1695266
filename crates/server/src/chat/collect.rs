//! A whole answer, for clients that want it in one piece.

use super::{Answer, Finish, Part, TokenInfo};
use crate::{ApiError, Result};

/// Everything that an answer consists of.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// What the model thought.
    pub reasoning: String,
    /// What it says.
    pub text: String,
    /// What it calls.
    pub tool_calls: Vec<ToolCall>,
    /// The tokens of the text, if log-probabilities were asked for.
    pub logprobs: Vec<TokenInfo>,
    /// How it ended.
    pub finish: Finish,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// A name for it, which no other call has.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments: one JSON object.
    pub arguments: String,
}

impl Answer {
    /// Waits for the end of the answer.
    ///
    /// # Errors
    /// The first error.
    pub async fn collect(mut self) -> Result<Collected> {
        let (mut reasoning, mut text) = (String::new(), String::new());
        let (mut tool_calls, mut logprobs) = (Vec::<ToolCall>::new(), Vec::new());
        while let Some(part) = self.next().await {
            match part? {
                Part::Reasoning(more) => reasoning += &more,
                Part::Text(more) => text += &more,
                Part::Logprobs(more) => logprobs.extend(more),
                Part::ToolCallStart { id, name, .. } => {
                    tool_calls.push(ToolCall { id, name, arguments: String::new() });
                }
                Part::ToolCallArguments { index, json } => {
                    if let Some(call) = tool_calls.get_mut(index) {
                        call.arguments += &json;
                    }
                }
                Part::Done(finish) => {
                    return Ok(Collected { reasoning, text, tool_calls, logprobs, finish });
                }
                Part::Progress { .. } | Part::ToolCallEnd { .. } => {}
            }
        }
        Err(ApiError::internal("the answer has no end"))
    }
}
