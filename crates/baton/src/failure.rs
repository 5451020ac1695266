//! How a command ends: exit codes, and the one clear line with a hint that a user sees.

use std::fmt;
use std::io;
use std::process::ExitCode;

use console::{StyledObject, style};

use crate::format;

/// The program did what it was asked.
pub const OK: u8 = 0;
/// It tried and could not.
pub const FAILED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// Ctrl-C ended it.
pub const INTERRUPTED: u8 = 130;

/// Ways to end that are more than a message.
#[derive(Debug)]
pub enum Stop {
    /// The command line asks for something that makes no sense.
    Usage(String),
    /// The user stopped the program.
    Interrupted,
    /// Everything was said already; only the exit code is left.
    Said,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Usage(message) => f.write_str(message),
            Stop::Interrupted => f.write_str("interrupted"),
            Stop::Said => f.write_str("failed"),
        }
    }
}

impl std::error::Error for Stop {}

/// An error with advice on what to do, for use with [`anyhow::Error`].
#[derive(Debug)]
struct Hinted {
    message: String,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// An error of one line, and what the user can do about it.
pub fn hinted(message: impl fmt::Display, hint: impl fmt::Display) -> anyhow::Error {
    Hinted { message: message.to_string(), hint: hint.to_string() }.into()
}

/// A mistake in the command line.
pub fn usage(message: impl fmt::Display) -> anyhow::Error {
    Stop::Usage(message.to_string()).into()
}

/// True if the reader of our output has gone away, which is no failure of ours.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_error = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(io_error)
}

/// Says what went wrong on standard error, unless there is nothing to say, and gives the exit code.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let error = match result {
        Ok(()) => return ExitCode::from(OK),
        Err(error) => error,
    };
    if is_broken_pipe(&error) {
        return ExitCode::from(OK);
    }
    match error.downcast_ref::<Stop>() {
        Some(Stop::Interrupted) => return ExitCode::from(INTERRUPTED),
        Some(Stop::Said) => return ExitCode::from(FAILED),
        Some(Stop::Usage(message)) => {
            say(message, Some("`baton help` and `baton COMMAND --help` show what can be said"));
            return ExitCode::from(USAGE);
        }
        None => {}
    }
    let hint = error.chain().find_map(|cause| cause.downcast_ref::<Hinted>());
    say(&one_line(&error), hint.map(|hinted| hinted.hint.as_str()));
    ExitCode::from(FAILED)
}

/// Prints an error, and a hint below it. A model can have words in both.
pub fn say(message: &str, hint: Option<&str>) {
    prefixed(style("error:").red().bold(), format_args!("{message}"));
    if let Some(hint) = hint {
        prefixed(style("hint:").cyan().bold(), format_args!("{hint}"));
    }
}

/// Prints a remark that is no error.
pub fn note(message: impl fmt::Display) {
    prefixed(style("note:").cyan().bold(), format_args!("{message}"));
}

/// Prints a line that begins with a word in a colour.
pub fn prefixed(word: StyledObject<&str>, line: fmt::Arguments<'_>) {
    use io::Write;
    let line = line.to_string();
    let _ = writeln!(io::stderr(), "{} {}", word.for_stderr(), format::harmless(&line));
}

/// An error and its causes in one line. A cause that its parent's message already holds is left out.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !line.contains(&text) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
    }
    line
}

/// Writes a line to standard error; a closed standard error is no reason to fail. Whatever words of files
/// are in it command no terminal.
pub fn eprintln_quietly(line: fmt::Arguments<'_>) {
    use io::Write;
    let _ = writeln!(io::stderr(), "{}", format::harmless(&line.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_joined_but_not_repeated() {
        let cause = io::Error::other("disk on fire");
        let error =
            anyhow::Error::from(cause).context("cannot read x: disk on fire").context("no model");
        assert_eq!(one_line(&error), "no model: cannot read x: disk on fire");
    }

    #[test]
    fn a_hint_is_found_below_context() {
        let error = Err::<(), _>(hinted("no", "try yes")).context("outer").unwrap_err();
        assert!(error.chain().any(|cause| cause.is::<Hinted>()));
        assert_eq!(one_line(&error), "outer: no");
    }

    #[test]
    fn a_broken_pipe_is_recognised_wherever_it_hides() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::from(pipe).context("while printing")));
        assert!(!is_broken_pipe(&anyhow::anyhow!("other")));
    }
}
