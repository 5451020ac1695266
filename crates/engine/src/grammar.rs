//! Answers held to a grammar: a JSON schema, a regular expression or a Lark grammar.
//!
//! A [`GrammarCompiler`] knows the bytes of every token of a vocabulary. For each request it makes a
//! [`Constraint`], which says before each token which ones may follow. A token may end in the middle
//! of a symbol of the grammar, or reach over several: what counts are bytes. When the grammar is
//! complete, only tokens that end the answer are allowed; when nothing else could follow, the
//! answer is over without one.
//!
//! The parsing is the `llguidance` crate's work. This module turns what users may ask for into its
//! terms, bounds what a hostile grammar can cost, and starts the constraint where the reasoning
//! before an answer ends.

mod compiler;
mod constraint;
mod lead;
mod limits;
mod mask;
mod vocabulary;

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

pub use compiler::GrammarCompiler;
pub use constraint::{Constraint, Reasoning};
pub use mask::TokenMask;

/// What may stand between two tokens of JSON: nothing, a space, or a line break and at most 20
/// spaces of indentation. Models that may write white space for ever do.
const JSON_SPACE: &str = r"\x20|\n\x20{0,20}";

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes. Keywords that cannot be enforced are errors, not ignored.
    /// Properties come in the order of the schema.
    JsonSchema(Value),
    /// All of the answer matches this regular expression, in the syntax of the `regex` crate;
    /// neither anchors inside it nor looking around are possible.
    Regex(String),
    /// A Lark grammar as the `llguidance` crate understands it, with the rule `start`. JSON schemas
    /// in it can be bounded with [`Grammar::bounded`].
    Lark(String),
    /// As [`Grammar::Lark`], for all of the output: the reasoning before the answer is a part of it.
    Whole(String),
}

impl Grammar {
    /// A schema with a bound on the white space in the JSON it allows, as [`Grammar::JsonSchema`]
    /// has it. What the schema itself says about that, under the key `x-guidance` of `llguidance`,
    /// comes first.
    #[must_use]
    pub fn bounded(schema: Value) -> Value {
        let mut schema = match schema {
            // The schema that anything matches.
            Value::Bool(true) => json!({}),
            schema => schema,
        };
        if let Some(root) = schema.as_object_mut() {
            let options = root.entry("x-guidance").or_insert_with(|| json!({}));
            if let Some(options) = options.as_object_mut()
                && options.get("whitespace_flexible") != Some(&Value::Bool(false))
            {
                options.entry("whitespace_pattern").or_insert_with(|| JSON_SPACE.into());
            }
        }
        schema
    }

    /// What it is, for messages.
    fn what(&self) -> &'static str {
        match self {
            Grammar::JsonObject | Grammar::JsonSchema(_) => "the JSON schema",
            Grammar::Regex(_) => "the regular expression",
            Grammar::Lark(_) | Grammar::Whole(_) => "the grammar",
        }
    }

    fn top_level(&self) -> TopLevelGrammar {
        match self {
            Grammar::JsonObject => {
                TopLevelGrammar::from_json_schema(Self::bounded(json!({ "type": "object" })))
            }
            Grammar::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(Self::bounded(schema.clone()))
            }
            Grammar::Regex(regex) => match without_anchors(regex) {
                // Between the slashes that it is put in, nothing would begin a comment.
                "" => TopLevelGrammar::from_regex("(?:)"),
                regex => TopLevelGrammar::from_regex(regex),
            },
            Grammar::Lark(lark) | Grammar::Whole(lark) => TopLevelGrammar::from_lark(lark.clone()),
        }
    }
}

/// The expression without `^` before and `$` after it, which mean nothing where all must match.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // An odd number of backslashes makes it an ordinary dollar sign.
        Some(rest) if limits::backslashes_at_end(rest).is_multiple_of(2) => rest,
        _ => regex,
    }
}

#[cfg(test)]
pub(crate) mod tests;
