//! One answer alone, made step by step as its events are asked for.

use std::iter::FusedIterator;
use std::time::{Duration, Instant};

use baton_graph::{Logits, Readiness, SeqId};

use crate::answer::Answer;
use crate::event::{finish, text};
use crate::{CancelToken, Event, FinishReason, Result, Session, Summary};

/// An answer in the making: an iterator of its [`Event`]s, each of which is computed when it is
/// asked for. Dropping it ends the answer there. After an error there is nothing more.
///
/// What was evaluated stays in the session's cache, however the answer ended.
#[derive(Debug)]
pub struct Generation<'s> {
    session: &'s mut Session,
    seq: SeqId,
    answer: Answer,
    /// Of the last step, until all tokens are chosen that can be by them.
    logits: Option<Logits>,
    /// Since when a part of the prompt is evaluated in the background.
    since: Option<Instant>,
    cancel: CancelToken,
}

/// How often is looked whether what is evaluated in the background is there.
const POLL: Duration = Duration::from_millis(1);

impl<'s> Generation<'s> {
    pub(crate) fn new(
        session: &'s mut Session,
        seq: SeqId,
        answer: Answer,
        cancel: CancelToken,
    ) -> Self {
        Generation { session, seq, answer, logits: None, since: None, cancel }
    }

    /// The token ids of the prompt.
    pub fn prompt(&self) -> &[u32] {
        self.answer.prompt()
    }

    /// Runs to the end: the whole text and how it ended. The text is empty if the engine has no
    /// tokenizer.
    ///
    /// # Errors
    /// The first error.
    pub fn finish(self) -> Result<(String, Summary)> {
        finish(self)
    }

    /// Only the pieces of text, as they come.
    pub fn text(self) -> impl Iterator<Item = Result<String>> {
        text(self)
    }

    /// Chooses a token or evaluates the next ones, which leaves events to tell.
    fn step(&mut self) -> Result<()> {
        let engine = self.session.engine();
        if self.cancel.is_cancelled() {
            self.answer.end(engine, FinishReason::Cancelled);
            return Ok(());
        }
        let Some(logits) = self.logits.take() else {
            return self.evaluate();
        };
        self.answer.choose(engine, &logits, 0)?;
        if self.answer.pending() == 0 && !self.answer.is_over() {
            self.logits = Some(logits);
            return Ok(());
        }
        engine.lock()?.truncate(self.seq, self.answer.evaluated())
    }

    /// Evaluates the next tokens, or has them evaluated in the background, or waits a little for what
    /// is: never for long, so that the answer can be cancelled meanwhile.
    fn evaluate(&mut self) -> Result<()> {
        let engine = self.session.engine();
        self.answer.guess(engine);
        let pending = self.answer.pending();
        let most = engine.limits().batch_tokens;
        let mut sequences = engine.lock()?;
        let readiness = sequences.prepare(self.seq, pending);
        let count = match readiness {
            Readiness::Now => pending.min(most),
            Readiness::Background(part) => part.min(most),
            Readiness::Later => {
                drop(sequences);
                std::thread::sleep(POLL);
                return Ok(());
            }
        };
        // Waiting for others is no work of this answer, unless they work for it.
        let started = Instant::now();
        self.answer.step_begins();
        let logits = self.answer.evaluate(&mut sequences, self.seq, count)?;
        let took = match readiness {
            Readiness::Background(_) => {
                self.since.get_or_insert(started);
                Duration::ZERO
            }
            _ => self.since.take().unwrap_or(started).elapsed(),
        };
        self.answer.advance(count, took);
        if self.answer.pending() == 0 {
            self.answer.note_units(&sequences, self.seq);
            self.logits = Some(logits);
        }
        Ok(())
    }

    /// Leaves in the cache what is part of the answer.
    fn leave(&mut self) {
        let engine = self.session.engine();
        self.answer.abandon(engine);
        engine.release(self.seq, self.answer.evaluated());
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.answer.next_event() {
                return Some(Ok(event));
            }
            if self.answer.is_over() {
                return None;
            }
            let step = self.step();
            if step.is_err() || self.answer.is_over() {
                self.leave();
            }
            if let Err(error) = step {
                return Some(Err(error));
            }
        }
    }
}

impl FusedIterator for Generation<'_> {}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
