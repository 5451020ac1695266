//! The form that every interface brings its requests into, and what starts an answer to one.

mod answer;
mod calls;
mod collect;
mod constraint;
pub mod numbers;
mod render;
mod splitter;

use std::time::Instant;

use baton_engine::{CancelToken, GenerateOptions, Message, Prompt, Reasoning, Sampling};
use baton_text::OutputFormat;
use serde_json::{Map, Value};

pub use answer::{Answer, Finish, Part, Reason, TokenInfo};
pub use collect::{Collected, ToolCall};
pub use render::{VOLATILE, rendered};

use self::constraint::Manner;
use self::splitter::Splitter;
use crate::models::Lease;
use crate::{ApiError, Kind, Result};

/// A conversation to be answered.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// The messages, in the form of the OpenAI API.
    pub messages: Vec<Message>,
    /// Tools that the model may call, each as the OpenAI API writes it.
    pub tools: Vec<Value>,
    /// Whether it may, must, or must not call one.
    pub tool_choice: ToolChoice,
    /// Whether it is to think first; the model's own habit if none.
    pub think: Option<Think>,
    /// The form of the answer.
    pub format: Format,
    /// How tokens are chosen; what is not set is the model's recommendation.
    pub sampling: Sampling,
    /// Most tokens of the answer; as many as the context has room for if none.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Further variables of the chat template.
    pub template_variables: Map<String, Value>,
    /// The last message is the beginning of the answer.
    pub continue_last: bool,
    /// Whether there may be more than one call in an answer; yes if none.
    pub parallel_tool_calls: Option<bool>,
}

/// A text to be continued.
#[derive(Clone, Debug, Default)]
pub struct CompletionRequest {
    /// The text.
    pub prompt: PromptText,
    /// The form of what comes after it.
    pub format: Format,
    /// How tokens are chosen; what is not set is the model's recommendation.
    pub sampling: Sampling,
    /// Most tokens of the answer; as many as the context has room for if none.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Go on when the model would end its answer.
    pub ignore_end: bool,
}

/// A text, or the tokens of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptText {
    /// Text; names of control tokens in it stand for those tokens.
    Text(String),
    /// Token ids, all of them.
    Tokens(Vec<u32>),
}

impl Default for PromptText {
    fn default() -> Self {
        PromptText::Text(String::new())
    }
}

/// Whether the model is to call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// It must not, and is not told of any.
    None,
    /// It must call one.
    Required,
    /// It must call the one of this name.
    Named(String),
}

/// How much the model is to think before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Think {
    /// Not at all.
    Off,
    /// As much as it likes.
    On,
    /// So much: `low`, `medium`, `high`, for models that know of efforts.
    Effort(String),
}

/// The form of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Format {
    /// Any text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema(Value),
    /// Text that fits a regular expression as a whole.
    Regex(String),
    /// Text that a grammar in Lark's notation produces.
    Lark(String),
}

/// The field that the form of an answer is asked for by, in the words of OpenAI's chat interface.
pub const FORM: &str = "response_format";

/// Starts an answer to a conversation.
///
/// # Errors
/// If the model cannot chat, the conversation makes no sense to it or does not fit its context, an
/// option makes no sense, or too many requests wait.
pub async fn chat(lease: Lease, request: ChatRequest) -> Result<Answer> {
    let started = Instant::now();
    blocking(move || {
        let tools = render::offered(&request)?;
        let rendered = render::rendered(&lease, &request)?;
        let template = render::template(&lease, !tools.is_empty())?.source();
        let format = OutputFormat::detect(Some(template));
        let tokenizer = lease.tokenizer()?;
        let prompt = splitter::tail(&rendered);
        let manner = Manner { output: &format, template, tokenizer, prompt };
        let options = GenerateOptions {
            grammar: constraint::constraint(&request, &tools, &manner)?,
            reasoning: Reasoning::of(&format, prompt),
            show: format.visible_tokens().iter().filter_map(|name| tokenizer.id(name)).collect(),
            ..options(&lease, &request.sampling, request.max_tokens, request.stop)
        };
        let splitter = Splitter::new(&format, &tools, &rendered);
        let one_call = request.parallel_tool_calls == Some(false);
        let prompt = Prompt::Rendered(rendered);
        let held = options.grammar.is_some();
        let engine = lease.engine()?.clone();
        let answer = Answer::start(lease, prompt, options, splitter, started);
        let answer = answer.map_err(|error| match error.param.as_deref() {
            // The grammar is made of the form and of what the tools take.
            Some(FORM) if held => match constraint::tool_at_fault(&engine, &tools) {
                Some((at, problem)) => {
                    let at = request.tools.iter().position(|tool| *tool == tools[at]).unwrap_or(at);
                    ApiError::invalid(format!("tools[{at}].function.parameters"), problem)
                }
                None => error,
            },
            _ => blaming("messages", error),
        })?;
        Ok(if one_call { answer.with_one_call() } else { answer })
    })
    .await
}

/// Starts to continue a text.
///
/// # Errors
/// As [`chat`].
pub async fn complete(lease: Lease, request: CompletionRequest) -> Result<Answer> {
    let started = Instant::now();
    blocking(move || {
        let options = GenerateOptions {
            ignore_end: request.ignore_end,
            grammar: (request.format != Format::Text).then(|| constraint::grammar(&request.format)),
            ..options(&lease, &request.sampling, request.max_tokens, request.stop)
        };
        let prompt = match request.prompt {
            PromptText::Text(text) => Prompt::Text(text),
            PromptText::Tokens(tokens) => {
                render::check_tokens(&lease, &tokens)?;
                Prompt::Tokens(tokens)
            }
        };
        let answer = Answer::start(lease, prompt, options, Splitter::plain(), started);
        answer.map_err(|error| blaming("prompt", error))
    })
    .await
}

/// Runs what takes time or waits for files in a thread that may be blocked.
///
/// # Errors
/// Those of `work`; [`Kind::Internal`](crate::Kind::Internal) if it panics.
pub async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.map_err(ApiError::internal)?
}

fn options(
    lease: &Lease,
    sampling: &Sampling,
    max_tokens: Option<usize>,
    stop: Vec<String>,
) -> GenerateOptions {
    let defaults = &lease.facts.defaults;
    GenerateOptions {
        sampling: sampling.or(&lease.recommended),
        max_tokens: max_tokens.or(defaults.max_tokens),
        stop: if stop.is_empty() { defaults.stop.clone() } else { stop },
        cancel: CancelToken::new(),
        ..GenerateOptions::default()
    }
}

/// Says which field a prompt that is too long came by.
fn blaming(param: &str, error: ApiError) -> ApiError {
    match error.kind {
        Kind::TooLong => ApiError { param: Some(param.into()), ..error },
        _ => error,
    }
}
