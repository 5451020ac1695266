//! What a grammar may cost, whoever wrote it.

use std::fmt;

use llguidance::api::ParserLimits;
use serde_json::Value;

use super::Grammar;
use crate::{Error, Result};

/// Bytes of a schema as text.
const MAX_SCHEMA: usize = 1 << 20;
/// How deep a schema may be nested.
const MAX_DEPTH: usize = 128;
/// Bytes of a Lark grammar.
const MAX_LARK: usize = 1 << 18;
/// Escapes such as `\w` in a Lark grammar; one stands for hundreds of ranges.
const MAX_CLASSES: usize = 8192;
/// Bytes of a regular expression, alone or in a schema.
const MAX_REGEX: usize = 1 << 14;
/// Characters of what is said about a grammar that cannot be used.
const MAX_MESSAGE: usize = 1000;

/// Stack for compiling; what is not touched of it costs nothing.
pub(super) const STACK: usize = 256 << 20;

/// The bounds of the parser: each step of it ends after some tens of milliseconds.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        // The largest schemas of practice take most of it, and it some tenths of a second.
        initial_lexer_fuel: 600_000,
        // One or two kB each.
        max_lexer_states: 50_000,
        // It walks all tokens for each large expression before the first token.
        precompute_large_lexemes: false,
        // They repeat the whole grammar and answer.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Refuses a grammar of absurd size before any work is done on it.
///
/// # Errors
/// [`Error::Grammar`].
pub(super) fn check(grammar: &Grammar) -> Result<()> {
    let what = grammar.what();
    match grammar {
        Grammar::JsonObject => Ok(()),
        Grammar::JsonSchema(schema) => check_schema(schema),
        Grammar::Regex(regex) => {
            at_most(what, regex.len(), MAX_REGEX, "bytes")?;
            // It would hide the end of the expression from the parser.
            if backslashes_at_end(regex) % 2 == 1 {
                return Err(error(what, &"it ends within an escape"));
            }
            Ok(())
        }
        Grammar::Lark(lark) | Grammar::Whole(lark) => {
            at_most(what, lark.len(), MAX_LARK, "bytes")?;
            at_most(what, classes(lark), MAX_CLASSES, "character classes")
        }
    }
}

fn at_most(what: &'static str, value: usize, most: usize, unit: &str) -> Result<()> {
    if value <= most {
        return Ok(());
    }
    Err(error(what, &format_args!("it has {value} {unit}; at most {most} are possible")))
}

fn check_schema(schema: &Value) -> Result<()> {
    let what = Grammar::JsonSchema(Value::Null).what();
    let mut size = 0;
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        at_most(what, depth, MAX_DEPTH, "levels")?;
        size += 8;
        match value {
            Value::String(text) => size += text.len(),
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(entries) => {
                for (key, value) in entries {
                    size += key.len();
                    open.push((value, depth + 1));
                    let patterns: Vec<&str> = match (key.as_str(), value) {
                        ("pattern", Value::String(pattern)) => vec![pattern],
                        ("patternProperties", Value::Object(of)) => {
                            of.keys().map(String::as_str).collect()
                        }
                        _ => Vec::new(),
                    };
                    for pattern in patterns {
                        at_most("a pattern in the JSON schema", pattern.len(), MAX_REGEX, "bytes")?;
                    }
                }
            }
            _ => {}
        }
        at_most(what, size, MAX_SCHEMA, "bytes or more")?;
    }
    Ok(())
}

/// Backslashes that a text ends with.
pub(super) fn backslashes_at_end(text: &str) -> usize {
    text.len() - text.trim_end_matches('\\').len()
}

fn classes(text: &str) -> usize {
    let pairs = text.as_bytes().windows(2);
    pairs.filter(|pair| pair[0] == b'\\' && b"wWdDsSpP".contains(&pair[1])).count()
}

/// What is wrong with a grammar, in not too many words.
pub(super) fn error(what: &'static str, problem: &impl fmt::Display) -> Error {
    let problem = problem.to_string();
    // The parser tells of its own faults with all of the call stack.
    let (problem, _) = problem.split_once("\n<backtrace>").unwrap_or((&problem, ""));
    let problem = problem.trim_end_matches("\n<non-verbose/>");
    let problem = problem.replacen("NoExtensionBias", "no text matches it", 1);
    let mut problem = problem.replacen("panic: ", "the parser fails on it: ", 1);
    if let Some((end, _)) = problem.char_indices().nth(MAX_MESSAGE) {
        problem.truncate(end);
        problem.push('…');
    }
    Error::Grammar { what, problem }
}
