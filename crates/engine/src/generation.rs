//! One answer, made step by step as its events are asked for.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::time::{Duration, Instant};

use baton_graph::{Logits, Rows, SeqId};
use baton_text::{Detokenizer, StopStrings};

use crate::memory::peak_memory;
use crate::{CancelToken, Error, Metrics, Result, Sampler, Session, Token};

/// What happens while an answer is made, in order.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A chunk of the prompt was evaluated.
    Prefill {
        /// Tokens of the prompt that are in the cache now, reused ones included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen. Its text may come later, or never if it is part of a stop string.
    Token(Token),
    /// More of the answer's text: whole characters, no part of a stop string, no control token.
    Text(String),
    /// The answer is complete; nothing follows.
    Done(Summary),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a token that ends its turn.
    EndOfGeneration,
    /// This stop string came up. It is not part of the text.
    Stop(String),
    /// The wanted number of tokens, or the context, is full.
    Length,
    /// The [`CancelToken`] was used.
    Cancelled,
}

impl FinishReason {
    /// Whether the model or a stop string ended the answer, not a limit or the user.
    pub fn is_complete(&self) -> bool {
        matches!(self, FinishReason::EndOfGeneration | FinishReason::Stop(_))
    }

    /// `stop`, `length` or `cancelled`; the first two as OpenAI's interface names them.
    pub fn name(&self) -> &'static str {
        match self {
            FinishReason::EndOfGeneration | FinishReason::Stop(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// How an answer ended and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// The seed that was sampled with: give it to get the same answer again.
    pub seed: u64,
    /// Counts and times.
    pub metrics: Metrics,
}

/// An answer in the making: an iterator of its [`Event`]s, each of which is computed when it is
/// asked for. Dropping it ends the answer there. After an error there is nothing more.
///
/// What was evaluated stays in the session's cache, however the answer ended.
#[derive(Debug)]
pub struct Generation<'s> {
    session: &'s mut Session,
    seq: SeqId,
    prompt: Vec<u32>,
    /// Tokens of the prompt in the cache.
    evaluated: usize,
    stage: Stage,
    sampler: Sampler,
    text: Option<TextStream>,
    cancel: CancelToken,
    ignore_end: bool,
    /// Most tokens to generate.
    limit: usize,
    queue: VecDeque<Event>,
    started: Instant,
    first_token: Option<Instant>,
    metrics: Metrics,
    seed: u64,
}

#[derive(Debug)]
enum Stage {
    Prefill,
    /// The last token's logits are there: choose the next.
    Choose(Logits),
    /// Evaluate this token.
    Evaluate(u32),
    Over,
}

/// Tokens to text, without what comes from a stop string on.
#[derive(Debug)]
pub(crate) struct TextStream {
    pub(crate) detokenizer: Detokenizer,
    pub(crate) stops: StopStrings,
    pub(crate) stop_list: Vec<String>,
}

/// All that a generation is started with, checked.
pub(crate) struct Plan {
    pub(crate) seq: SeqId,
    pub(crate) prompt: Vec<u32>,
    pub(crate) reused: usize,
    pub(crate) sampler: Sampler,
    pub(crate) seed: u64,
    pub(crate) text: Option<TextStream>,
    pub(crate) cancel: CancelToken,
    pub(crate) ignore_end: bool,
    pub(crate) limit: usize,
    pub(crate) started: Instant,
}

impl<'s> Generation<'s> {
    pub(crate) fn new(session: &'s mut Session, plan: Plan) -> Self {
        let metrics = Metrics {
            prompt_tokens: plan.prompt.len(),
            reused_tokens: plan.reused,
            load: session.engine().traits().load_time,
            ..Metrics::default()
        };
        Generation {
            session,
            seq: plan.seq,
            prompt: plan.prompt,
            evaluated: plan.reused,
            stage: Stage::Prefill,
            sampler: plan.sampler,
            text: plan.text,
            cancel: plan.cancel,
            ignore_end: plan.ignore_end,
            limit: plan.limit,
            queue: VecDeque::new(),
            started: plan.started,
            first_token: None,
            metrics,
            seed: plan.seed,
        }
    }

    /// The token ids of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
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

    /// Does the next piece of work, which leaves events in the queue or changes the stage.
    fn step(&mut self) -> Result<()> {
        if self.cancel.is_cancelled() {
            self.end(FinishReason::Cancelled);
            return Ok(());
        }
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Prefill => self.prefill_chunk(),
            Stage::Choose(logits) => self.choose(&logits),
            Stage::Evaluate(token) => {
                let logits = self.extend(&[token], Rows::Last)?;
                self.stage = Stage::Choose(logits);
                Ok(())
            }
            Stage::Over => Ok(()),
        }
    }

    fn extend(&self, tokens: &[u32], rows: Rows) -> Result<Logits> {
        self.session.engine().lock()?.extend(self.seq, tokens, rows)
    }

    fn prefill_chunk(&mut self) -> Result<()> {
        let started = Instant::now();
        let total = self.prompt.len();
        let chunk = self.session.engine().limits().batch_tokens.min(total - self.evaluated);
        let end = self.evaluated + chunk;
        let rows = if end == total { Rows::Last } else { Rows::None };
        let logits = self.extend(&self.prompt[self.evaluated..end], rows)?;
        self.evaluated = end;
        self.metrics.prefilled_tokens += chunk;
        self.metrics.prefill += started.elapsed();
        self.queue.push_back(Event::Prefill { done: end, total });
        if end < total {
            self.stage = Stage::Prefill;
        } else if self.limit == 0 {
            self.end(FinishReason::Length);
        } else {
            self.stage = Stage::Choose(logits);
        }
        Ok(())
    }

    fn choose(&mut self, logits: &Logits) -> Result<()> {
        let row = logits.last_of(0).ok_or_else(|| Error::BadLogits {
            problem: "the compute unit returned none for the last token".into(),
        })?;
        let token = self.sampler.sample(row, None)?;
        let id = token.id;
        if self.session.engine().traits().end_tokens.contains(&id) && !self.ignore_end {
            self.end(FinishReason::EndOfGeneration);
            return Ok(());
        }
        self.sampler.accept(id);
        let now = Instant::now();
        let first = *self.first_token.get_or_insert(now);
        self.metrics.decode = now - first;
        self.metrics.generated_tokens += 1;
        self.queue.push_back(Event::Token(token));
        if let Some(stop) = self.show(id) {
            self.end(FinishReason::Stop(stop));
        } else if self.metrics.generated_tokens == self.limit {
            self.end(FinishReason::Length);
        } else {
            self.stage = Stage::Evaluate(id);
        }
        Ok(())
    }

    /// Queues the text that a token completes; the stop string, if it completes one.
    fn show(&mut self, id: u32) -> Option<String> {
        let text = self.text.as_mut()?;
        let emit = text.stops.push(&text.detokenizer.push(id));
        let stop = emit.stopped.map(|at| text.stop_list[at].clone());
        self.queue_text(emit.text);
        stop
    }

    fn queue_text(&mut self, text: String) {
        if !text.is_empty() {
            self.queue.push_back(Event::Text(text));
        }
    }

    fn end(&mut self, reason: FinishReason) {
        self.stage = Stage::Over;
        if let Some(text) = &mut self.text
            && !matches!(reason, FinishReason::Stop(_))
        {
            // A character that was cut off may still complete a stop string.
            let emit = text.stops.push(&text.detokenizer.finish());
            let rest = emit.text + &text.stops.finish();
            self.queue_text(rest);
        }
        self.session.engine().release(self.seq);
        let since_start = |at: Instant| -> Duration { at - self.started };
        self.metrics.first_token = self.first_token.map(since_start);
        self.metrics.peak_memory = peak_memory();
        let (seed, metrics) = (self.seed, self.metrics);
        self.queue.push_back(Event::Done(Summary { reason, seed, metrics }));
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(Ok(event));
            }
            if matches!(self.stage, Stage::Over) {
                return None;
            }
            if let Err(error) = self.step() {
                self.stage = Stage::Over;
                self.session.engine().release(self.seq);
                return Some(Err(error));
            }
        }
    }
}

/// The whole text of a complete stream of events, and its end.
pub(crate) fn finish(events: impl Iterator<Item = Result<Event>>) -> Result<(String, Summary)> {
    let mut text = String::new();
    let mut summary = None;
    for event in events {
        match event? {
            Event::Text(piece) => text += &piece,
            Event::Done(done) => summary = Some(done),
            _ => {}
        }
    }
    Ok((text, summary.expect("events without an error end with a summary")))
}

/// The text among events.
pub(crate) fn text(
    events: impl Iterator<Item = Result<Event>>,
) -> impl Iterator<Item = Result<String>> {
    events.filter_map(|event| match event {
        Ok(Event::Text(piece)) => Some(Ok(piece)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

impl FusedIterator for Generation<'_> {}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.session.engine().release(self.seq);
    }
}
