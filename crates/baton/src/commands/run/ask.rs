//! One question, one answer.

use std::io::{self, Write};

use baton_engine::{CancelToken, FinishReason, Grammar, Summary};

use super::{Answer, Sink, Thresholds, stats};
use crate::failure::{Stop, note};
use crate::loaded::Loaded;
use crate::sampling::Sampling;

/// What is asked.
pub struct Question {
    /// The text.
    pub prompt: String,
    /// The system prompt.
    pub system: Option<String>,
    /// Whether the text is continued as it is, without the chat template.
    pub raw: bool,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// What the answer must look like.
    pub grammar: Option<Grammar>,
    /// What it should keep to.
    pub thresholds: Thresholds,
}

/// Asks and prints the answer.
///
/// # Errors
/// If the model fails, the output cannot be written, or Ctrl-C was pressed.
pub fn once(model: &Loaded, question: Question, json: bool, verbose: bool) -> anyhow::Result<()> {
    let cancel = CancelToken::new();
    let mut options = model.answer_options(&question.sampling, &cancel);
    options.grammar = question.grammar;
    let sink = if json { Sink::Collect } else { Sink::Stream };
    let answer = if question.raw {
        let mut session = model.session();
        Answer::receive(session.generate(question.prompt, &options)?, &cancel, sink)?
    } else {
        let mut chat = model.chat(question.system.as_deref())?;
        Answer::receive(chat.send(question.prompt, &options)?, &cancel, sink)?
    };
    if json {
        let mut out = io::stdout().lock();
        let object = stats::json(model.name(), &answer);
        writeln!(out, "{}", serde_json::to_string_pretty(&object)?)?;
        out.flush()?;
    }
    if verbose {
        stats::print(&answer.summary);
    }
    question.thresholds.warn(&answer.summary.metrics);
    match answer.summary.reason {
        FinishReason::Cancelled => Err(Stop::Interrupted.into()),
        FinishReason::Length if fills_context(&answer.summary, model) && !json => {
            let context = model.context();
            note(format_args!(
                "the answer ends here because the context of {context} tokens is full; --ctx makes \
                 it larger"
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether the context, and not only the wanted number of tokens, is full.
pub fn fills_context(summary: &Summary, model: &Loaded) -> bool {
    let metrics = &summary.metrics;
    metrics.prompt_tokens + metrics.generated_tokens >= model.context()
}
