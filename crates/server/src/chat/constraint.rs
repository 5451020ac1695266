//! What an answer is held to: the form that was asked for, and calls that must be made.

use baton_engine::{Engine, Grammar};
use baton_text::{OutputFormat, Tokenizer};
use serde_json::{Value, json};

use super::calls::{self, marked};
use super::{ChatRequest, Format, ToolChoice};
use crate::{ApiError, Result};

/// What a model and a conversation say of how an answer is written.
pub(super) struct Manner<'a> {
    /// How the model writes reasoning and calls.
    pub output: &'a OutputFormat,
    /// Its chat template.
    pub template: &'a str,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The conversation as the model reads it, or the end of it.
    pub prompt: &'a str,
}

/// What an answer is held to, if to anything.
///
/// # Errors
/// If it is not known how this model's calls can be forced, or told from the form.
pub(super) fn constraint(
    request: &ChatRequest,
    tools: &[Value],
    manner: &Manner<'_>,
) -> Result<Option<Grammar>> {
    let forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let either = |schema: Value| {
        let schema = Grammar::bounded(schema);
        manner.call_or(tools, Some(&format!("%json {schema}"))).ok_or_else(no_tools)
    };
    let grammar = match &request.format {
        _ if forced => {
            let instead = "calls of this model cannot be forced; let it be \"auto\" or \"none\"";
            let call = manner.call_or(tools, None);
            call.ok_or_else(|| ApiError::unsupported("tool_choice", instead))?
        }
        Format::Text => return Ok(None),
        format if tools.is_empty() => grammar(format),
        Format::JsonObject => either(json!({ "type": "object" }))?,
        Format::JsonSchema(schema) => either(schema.clone())?,
        Format::Regex(_) | Format::Lark(_) => return Err(no_tools()),
    };
    Ok(Some(grammar))
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

/// The tool whose schema cannot be obeyed, by its place, and why.
pub(super) fn tool_at_fault(engine: &Engine, tools: &[Value]) -> Option<(usize, String)> {
    tools.iter().enumerate().find_map(|(at, tool)| {
        let schema = Grammar::JsonSchema(calls::arguments(&tool["function"]["parameters"]));
        Some((at, engine.constraint(&schema, None).err()?.to_string()))
    })
}

impl Manner<'_> {
    /// A grammar of one call, or of the form `answer` where there is one; none if it is not known how
    /// the model calls.
    fn call_or(&self, tools: &[Value], answer: Option<&str>) -> Option<Grammar> {
        let call = calls::rules(self.output, self.template, tools, self.tokenizer)?;
        let choice = if answer.is_some() { "call | answer" } else { "call" };
        if self.output.name() == "gpt-oss" {
            return Some(Grammar::Whole(self.harmony(choice, &call, answer)));
        }
        let answer = answer.map(|answer| format!("answer: {answer}\n")).unwrap_or_default();
        Some(Grammar::Lark(format!("start: {choice}\n{answer}{call}")))
    }

    /// The messages of the harmony format. Each has a header, which says whether it is reasoning, a
    /// call or the answer, so that the grammar cannot wait for the end of the reasoning: it covers it.
    fn harmony(&self, choice: &str, call: &str, answer: Option<&str>) -> String {
        let marker = |name: &str| marked(name, self.tokenizer);
        let [channel, message] = ["<|channel|>", "<|message|>"].map(marker);
        let [start, end, constrain] = ["<|start|>", "<|end|>", "<|constrain|>"].map(marker);
        let open = match self.output.reasoning_open(self.prompt) {
            true => "thoughts".to_owned(),
            false => format!("({channel} \"analysis\" {message} thoughts)?"),
        };
        let answer = answer.map(|answer| {
            let form = format!("(\" \"? {constrain} \"json\")?");
            format!("answer: {channel} \"final\" {form} {message} form\nform: {answer}\n")
        });
        format!(
            "start: {open} ({choice})\n\
             thoughts: /(?s:.*)/ {end} {start} \"assistant\"\n\
             {}{call}",
            answer.unwrap_or_default()
        )
    }
}

fn no_tools() -> ApiError {
    let instead = "this model cannot have both this form and tools; leave out one of the two";
    ApiError::unsupported("response_format", instead)
}
