//! Reading what the user types: line editing, history, texts of several lines.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use console::style;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};

use super::command::COMPLETIONS;
use crate::failure::{eprintln_quietly, note};

/// Begins and ends a text of several lines.
const FENCE: &str = "\"\"\"";
const PROMPT: &str = ">>> ";
/// Entries of the history that are kept.
const HISTORY: usize = 1000;

/// What the user did at the prompt.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    /// A text, without the marks that let it span lines.
    Text(String),
    /// Ctrl-D, or Ctrl-C twice.
    Leave,
}

/// The prompt.
pub struct Input {
    editor: Editor<Help, FileHistory>,
    history: Option<PathBuf>,
    /// Ctrl-C was pressed at an empty prompt just now.
    warned: bool,
}

impl Input {
    /// Opens the terminal; `history` is the file in which lines are kept between chats.
    ///
    /// # Errors
    /// If there is no usable terminal.
    pub fn open(history: Option<PathBuf>) -> anyhow::Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY)?
            .history_ignore_dups(true)?
            .bracketed_paste(true)
            .build();
        let mut editor = Editor::with_config(config).context("cannot read from the terminal")?;
        editor.set_helper(Some(Help));
        let mut input = Self { editor, history, warned: false };
        if let Some(file) = input.history.clone() {
            input.load_history(&file);
        }
        Ok(input)
    }

    fn load_history(&mut self, file: &Path) {
        let loaded = match file.parent().map(std::fs::create_dir_all) {
            Some(Err(error)) => Err(ReadlineError::Io(error)),
            _ => self.editor.load_history(file),
        };
        match loaded {
            Ok(()) => {}
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!("no history: {}: {error}", file.display());
                self.history = None;
            }
        }
    }

    /// Waits for the next text that is not blank.
    ///
    /// # Errors
    /// If the terminal fails.
    pub fn read(&mut self) -> anyhow::Result<Typed> {
        loop {
            match self.editor.readline(PROMPT) {
                Ok(text) => {
                    self.warned = false;
                    if text.trim().is_empty() {
                        continue;
                    }
                    self.remember(&text);
                    return Ok(Typed::Text(without_fence(&text)));
                }
                Err(ReadlineError::Interrupted) if self.warned => return Ok(Typed::Leave),
                Err(ReadlineError::Interrupted) => {
                    self.warned = true;
                    note("press Ctrl-C again to leave, or type /bye");
                }
                Err(ReadlineError::Eof) => {
                    eprintln_quietly(format_args!(""));
                    return Ok(Typed::Leave);
                }
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
    }

    fn remember(&mut self, text: &str) {
        let added = self.editor.add_history_entry(text).unwrap_or(false);
        if let Some(file) = self.history.as_deref().filter(|_| added)
            && let Err(error) = self.editor.append_history(file)
        {
            tracing::warn!("the history cannot be kept: {}: {error}", file.display());
            self.history = None;
        }
    }
}

/// True if a text of several lines was begun and not ended.
fn is_open(text: &str) -> bool {
    text.trim_start().starts_with(FENCE) && text.matches(FENCE).count() == 1
}

/// The text between the marks, or the text itself if there are none.
fn without_fence(text: &str) -> String {
    let inner = text.trim().strip_prefix(FENCE);
    let inner = inner.map(|inner| inner.split_once(FENCE).unwrap_or((inner, "")));
    match inner {
        // What follows the closing mark belongs to the question as well.
        Some((inner, "")) => inner.trim_matches('\n').to_owned(),
        Some((inner, after)) => format!("{}\n{}", inner.trim_matches('\n'), after.trim()),
        None => text.trim().to_owned(),
    }
}

/// Completes commands, dims a placeholder, and asks for more lines while a text is open.
struct Help;

impl Helper for Help {}

impl Completer for Help {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        let fits = |text: &&&str| typed.starts_with('/') && text.starts_with(typed);
        Ok((0, COMPLETIONS.iter().filter(fits).map(|text| (*text).to_owned()).collect()))
    }
}

impl Hinter for Help {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, context: &Context<'_>) -> Option<String> {
        let first = line.is_empty() && context.history_index() == 0;
        first.then(|| "Ask something (/? for help)".to_owned())
    }
}

impl Highlighter for Help {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        Cow::Owned(style(prompt).cyan().to_string())
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(style(hint).dim().to_string())
    }
}

impl Validator for Help {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let open = is_open(context.input());
        Ok(if open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_hold_lines_together_and_go_away() {
        assert!(is_open("\"\"\"a") && is_open("  \"\"\"\na\nb"));
        for closed in ["a", "\"\"\"a\"\"\"", "\"\"\"a\nb\"\"\"", "say \"\"\" please"] {
            assert!(!is_open(closed), "{closed}");
        }
        assert_eq!(without_fence("  hi "), "hi");
        assert_eq!(without_fence("\"\"\"\na\n b\n\"\"\""), "a\n b");
        assert_eq!(without_fence("\"\"\"a\nb\"\"\" and c"), "a\nb\nand c");
        assert_eq!(without_fence("\"\"\"\"\"\""), "");
    }
}
