//! Splits the text of an answer into what the model thinks, what it says and what it calls.

use baton_text::{OutputFormat, OutputParser, ParserOptions, Piece};
use serde_json::Value;

use super::Part;
use crate::ids;

/// So much of the end of a prompt tells how the answer begins.
const TAIL: usize = 256;

/// Sees the text of one answer as it comes.
#[derive(Debug)]
pub(super) struct Splitter {
    parser: Option<OutputParser>,
}

impl Splitter {
    /// For an answer to a conversation that was rendered as `prompt`, with these tools.
    pub(super) fn new(format: &OutputFormat, tools: &[Value], prompt: &str) -> Self {
        let name = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
        let options = ParserOptions {
            tools: !tools.is_empty(),
            reasoning: true,
            reasoning_open: false,
            tool_names: tools.iter().filter_map(name).collect(),
        };
        let parser = format.parser_after(options, tail(prompt));
        Splitter { parser: Some(parser.with_schemas(&Value::Array(tools.to_vec()))) }
    }

    /// For text that is nothing but text.
    pub(super) fn plain() -> Self {
        Splitter { parser: None }
    }

    /// More text.
    pub(super) fn push(&mut self, text: String) -> Vec<Part> {
        match &mut self.parser {
            None => vec![Part::Text(text)],
            Some(parser) => parser.push(&text).into_iter().map(Part::from).collect(),
        }
    }

    /// No more will come.
    pub(super) fn finish(&mut self) -> Vec<Part> {
        let pieces = self.parser.as_mut().map(OutputParser::finish).unwrap_or_default();
        pieces.into_iter().map(Part::from).collect()
    }
}

impl From<Piece> for Part {
    fn from(piece: Piece) -> Part {
        match piece {
            Piece::Reasoning(text) => Part::Reasoning(text),
            Piece::Text(text) => Part::Text(text),
            Piece::ToolCallStart { index, name } => {
                Part::ToolCallStart { index, id: ids::unique("call_"), name }
            }
            Piece::ToolCallArguments { index, json } => Part::ToolCallArguments { index, json },
            Piece::ToolCallEnd { index } => Part::ToolCallEnd { index },
        }
    }
}

/// The end of a prompt.
pub(super) fn tail(prompt: &str) -> &str {
    let from = prompt.len().saturating_sub(TAIL);
    let from = (from..=prompt.len()).find(|&at| prompt.is_char_boundary(at));
    &prompt[from.unwrap_or(prompt.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prompt_begins_with_a_whole_character() {
        assert_eq!(tail("short"), "short");
        let long = "é".repeat(TAIL);
        assert_eq!(tail(&long), "é".repeat(TAIL / 2));
        assert_eq!(tail(&(long + "a")).chars().count(), TAIL / 2);
    }
}
