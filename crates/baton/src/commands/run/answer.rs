//! One answer: its text to where it belongs, piece by piece.

use std::io::{self, IsTerminal, Write};

use baton_engine::{CancelToken, Event, Summary};

use crate::format;
use crate::interrupt;
use crate::progress::Spinner;

/// A whole answer.
pub struct Answer {
    /// Its text.
    pub text: String,
    /// How it ended and what it took.
    pub summary: Summary,
}

/// Where the text of an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// To standard output, as it comes.
    Stream,
    /// Nowhere; it is only collected.
    Collect,
}

impl Answer {
    /// Runs the answer that gives `events` to its end, or until Ctrl-C uses `cancel`.
    ///
    /// # Errors
    /// If the model fails, or standard output cannot be written.
    pub fn receive(
        mut events: impl Iterator<Item = baton_engine::Result<Event>>,
        cancel: &CancelToken,
        sink: Sink,
    ) -> anyhow::Result<Answer> {
        let _scope = interrupt::Scope::cancelling(cancel);
        let mut spinner = Some(Spinner::start("reading the prompt"));
        let mut text = String::new();
        let mut out = io::stdout().lock();
        let on_terminal = out.is_terminal();
        loop {
            let Some(event) = events.next() else {
                anyhow::bail!("the engine ended an answer without saying how");
            };
            match event? {
                Event::Text(piece) => {
                    spinner = None;
                    text += &piece;
                    if sink == Sink::Stream {
                        write_piece(&mut out, &piece, on_terminal)?;
                    }
                }
                Event::Done(summary) => {
                    drop(spinner);
                    if sink == Sink::Stream {
                        // The prompt of the shell, or of the chat, begins on a new line; it does
                        // already if there is no answer, as with `-n 0`.
                        if !text.is_empty() && !text.ends_with('\n') {
                            writeln!(out)?;
                        }
                        out.flush()?;
                    }
                    return Ok(Answer { text, summary });
                }
                _ => {}
            }
        }
    }
}

/// Writes at once, so that the reader sees each token as it comes. What a terminal would obey
/// instead of showing is left to programs that read the text.
fn write_piece(out: &mut impl Write, piece: &str, on_terminal: bool) -> io::Result<()> {
    let shown = if on_terminal { format::harmless(piece) } else { piece.into() };
    out.write_all(shown.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_given_orders() {
        let write = |piece, on_terminal| {
            let mut out = Vec::new();
            write_piece(&mut out, piece, on_terminal).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(write("a\x1b[2Jb\tc\n", true), "a\u{FFFD}[2Jb\tc\n");
        assert_eq!(write("a\x1b[2Jb", false), "a\x1b[2Jb");
    }
}
