//! What an answer is held to: the form that was asked for, and calls that must be made.

use baton_engine::{Grammar, Reasoning};
use baton_text::{OutputFormat, Tokenizer};
use serde_json::{Value, json};

use super::{ChatRequest, Format, ToolChoice};
use crate::{ApiError, Result};

/// A grammar, and where in the output it begins to count.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Constraint {
    /// What it must fit.
    pub grammar: Grammar,
    /// The reasoning before it.
    pub reasoning: Option<Reasoning>,
}

/// What the answer to a conversation that was rendered as `prompt` is held to, if to anything.
///
/// # Errors
/// If it is not known how this model's calls can be forced, or told from the form.
pub(super) fn constraint(
    request: &ChatRequest,
    tools: &[Value],
    output: &OutputFormat,
    tokenizer: &Tokenizer,
    prompt: &str,
) -> Result<Option<Constraint>> {
    let forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let grammar = match &request.format {
        _ if forced => {
            let instead = "calls of this model cannot be forced; let it be \"auto\" or \"none\"";
            let call = call(output.name(), tools, tokenizer);
            let call = call.ok_or_else(|| ApiError::unsupported("tool_choice", instead))?;
            Grammar::Lark(format!("start: call\n{call}"))
        }
        Format::Text => return Ok(None),
        format if tools.is_empty() => grammar(format),
        Format::JsonObject => call_or_json(&json!({ "type": "object" }), output, tools, tokenizer)?,
        Format::JsonSchema(schema) => call_or_json(schema, output, tools, tokenizer)?,
        Format::Regex(_) | Format::Lark(_) => return Err(no_tools()),
    };
    let reasoning = Reasoning::of(output, super::splitter::tail(prompt));
    Ok(Some(Constraint { grammar, reasoning }))
}

/// The grammar for a form.
pub(super) fn grammar(format: &Format) -> Grammar {
    match format {
        // Any text fits.
        Format::Text => Grammar::Regex("(?s:.*)".into()),
        Format::JsonObject => Grammar::JsonObject,
        Format::JsonSchema(schema) => Grammar::JsonSchema(schema.clone()),
        Format::Regex(regex) => Grammar::Regex(regex.clone()),
        Format::Lark(lark) => Grammar::Lark(lark.clone()),
    }
}

fn call_or_json(
    schema: &Value,
    output: &OutputFormat,
    tools: &[Value],
    tokenizer: &Tokenizer,
) -> Result<Grammar> {
    let call = call(output.name(), tools, tokenizer).ok_or_else(no_tools)?;
    let schema = Grammar::bounded(schema.clone());
    Ok(Grammar::Lark(format!("start: call | answer\nanswer: %json {schema}\n{call}")))
}

fn no_tools() -> ApiError {
    let instead = "this model cannot have both this form and tools; leave out one of the two";
    ApiError::unsupported("response_format", instead)
}

/// A rule `call` for one call of one of the tools, as models of this format write it.
fn call(format: &str, tools: &[Value], tokenizer: &Tokenizer) -> Option<String> {
    let (before, arguments, after): (&[Symbol], &str, &[Symbol]) = match format {
        "hermes" => (
            &[Symbol::Marker("<tool_call>"), Symbol::Text("\n")],
            "arguments",
            &[Symbol::Text("\n"), Symbol::Marker("</tool_call>")],
        ),
        "nemotron" => (
            &[Symbol::Marker("<TOOLCALL>"), Symbol::Text("[")],
            "arguments",
            &[Symbol::Text("]"), Symbol::Marker("</TOOLCALL>")],
        ),
        "llama3" => (&[], "parameters", &[]),
        _ => return None,
    };
    let one = |tool: &Value| {
        let function = &tool["function"];
        json!({
            "type": "object",
            "properties": { "name": { "const": function["name"] },
                arguments: function["parameters"] },
            "required": ["name", arguments],
            "additionalProperties": false,
        })
    };
    // White space as models are trained to write it, and no more.
    let spacing =
        json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    let calls: Vec<Value> = tools.iter().map(one).collect();
    let schema = json!({ "x-guidance": spacing, "anyOf": calls });
    let symbols = |symbols: &[Symbol]| -> String {
        symbols.iter().map(|symbol| symbol.spelled(tokenizer) + " ").collect()
    };
    let (before, after) = (symbols(before), symbols(after));
    Some(format!("call: {before}body {after}\nbody: %json {schema}\n"))
}

/// A part of what stands around a call.
enum Symbol {
    /// A marker, which may be a control token.
    Marker(&'static str),
    /// Ordinary text.
    Text(&'static str),
}

impl Symbol {
    /// As it is spelled in Lark's notation, where control tokens are numbers.
    fn spelled(&self, tokenizer: &Tokenizer) -> String {
        let text = match self {
            Symbol::Marker(name) => match tokenizer.id(name) {
                Some(id) if tokenizer.is_control(id) => return format!("<[{id}]>"),
                _ => name,
            },
            Symbol::Text(text) => text,
        };
        Value::from(*text).to_string()
    }
}
