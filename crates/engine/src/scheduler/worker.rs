//! The thread that makes the answers: who is let in, what each step evaluates, who is told what.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use baton_graph::{Batch, Logits, SeqId};

use super::pace::Pace;
use super::{Job, Queue, Slot};
use crate::answer::Answer;
use crate::sequences::common;
use crate::{Engine, Error, FinishReason, Result};

/// A beginning that is shared with a running prompt is waited for if it saves this many tokens.
const WORTH_WAITING: usize = 16;

pub(super) struct Worker {
    engine: Engine,
    queue: Arc<Queue>,
    /// In the order in which they were let in.
    running: Vec<Running>,
    pace: Pace,
    /// The cache ran out of room; nobody is let in before an answer has ended.
    full: bool,
}

struct Running {
    job: Job,
    seq: SeqId,
}

/// What one answer adds to a batch: its place among the running, and how many tokens.
struct Part {
    at: usize,
    tokens: usize,
}

impl Worker {
    pub(super) fn new(engine: Engine, queue: Arc<Queue>) -> Self {
        Worker { engine, queue, running: Vec::new(), pace: Pace::default(), full: false }
    }

    /// Works until the scheduler is dropped.
    pub(super) fn run(mut self) {
        while self.wait() {
            self.drop_cancelled();
            self.admit();
            if !self.running.is_empty() {
                self.step();
            }
            self.report();
        }
        for running in std::mem::take(&mut self.running) {
            self.release(running.seq);
            cancel(running.job, &self.engine);
        }
        let waiting = std::mem::take(&mut self.queue.inbox().waiting);
        waiting.into_iter().for_each(|job| cancel(job, &self.engine));
    }

    /// Sleeps while there is nothing to do; false if there never will be.
    fn wait(&self) -> bool {
        let mut inbox = self.queue.inbox();
        while self.running.is_empty() && inbox.waiting.is_empty() && !inbox.closed {
            inbox = self.queue.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        !inbox.closed
    }

    /// Ends the answers that are not wanted any more.
    fn drop_cancelled(&mut self) {
        let mut gone: VecDeque<Job> = {
            let waiting = &mut self.queue.inbox().waiting;
            let all = std::mem::take(waiting).into_iter();
            let (gone, stay) = all.partition(|job| job.cancel.is_cancelled());
            *waiting = stay;
            gone
        };
        for at in (0..self.running.len()).rev() {
            if self.running[at].job.cancel.is_cancelled() {
                let Running { job, seq } = self.running.remove(at);
                self.full = false;
                self.release(seq);
                gone.push_back(job);
            }
        }
        if !gone.is_empty() {
            self.queue.load().totals.requests += gone.len() as u64;
        }
        gone.into_iter().for_each(|job| cancel(job, &self.engine));
    }

    /// Lets in those who wait, in the order in which they came, as long as there is room.
    fn admit(&mut self) {
        let limits = *self.engine.limits();
        let most = self.queue.options.max_running.clamp(1, limits.batch_tokens);
        self.full &= !self.running.is_empty();
        let mut skipped = 0;
        while self.running.len() < most && !self.full {
            let job = {
                let mut inbox = self.queue.inbox();
                let Some(job) = inbox.waiting.get(skipped) else { return };
                let tokens = job.answer.tokens();
                // A broken engine tells so when the job is started.
                let cached = self.engine.lock().map_or(0, |sequences| sequences.cached(tokens));
                if !self.has_room_for(tokens, cached) {
                    return;
                }
                if self.is_prepared_by_another(tokens, cached) {
                    skipped += 1;
                    if skipped > most {
                        return;
                    }
                    continue;
                }
                inbox.waiting.remove(skipped)
            };
            let Some(job) = job else { return };
            self.start(job);
        }
    }

    /// Whether the cache can hold `tokens`, of which `cached` are there, beside those of the running.
    /// A beginning that was in the cache already counts once.
    fn has_room_for(&self, tokens: &[u32], cached: usize) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let answers = || self.running.iter().map(|running| &running.job.answer);
        let own: usize = answers().map(|answer| answer.tokens().len() - answer.shared()).sum();
        let shared = answers().map(Answer::shared).max().unwrap_or(0).max(cached);
        own + shared + (tokens.len() - cached) < self.engine.limits().kv_tokens
    }

    /// Whether a running prompt will soon have put more of `tokens` into the cache than the `cached`
    /// ones that are there: that would be evaluated twice if both ran now.
    fn is_prepared_by_another(&self, tokens: &[u32], cached: usize) -> bool {
        let mut gain = 0;
        for Running { job: other, .. } in &self.running {
            let other = &other.answer;
            let common = common(tokens, other.tokens());
            if common > other.evaluated() {
                gain = gain.max(common);
            }
        }
        cached + WORTH_WAITING <= gain
    }

    fn start(&mut self, mut job: Job) {
        let acquired = self.engine.lock().and_then(|mut sequences| {
            let seq = sequences.acquire(None, job.answer.tokens())?;
            Ok((seq, sequences.tokens(seq).len()))
        });
        match acquired {
            Ok((seq, cached)) => {
                job.answer.begin_at(cached);
                self.running.push(Running { job, seq });
            }
            Err(error) => fail(job, &self.engine, error),
        }
    }

    /// Evaluates one batch and tells what came of it.
    fn step(&mut self) {
        let (decoding, prefilled, parts) = self.plan();
        if let [running] = &mut self.running[..] {
            running.job.answer.guess(&self.engine);
        }
        let started = Instant::now();
        let logits = match self.evaluate(&parts) {
            Ok(logits) => logits,
            Err(error) => return self.after(error, &parts),
        };
        let took = started.elapsed();
        // A step with guesses is not what others would wait for.
        if logits.rows.len() <= parts.len() {
            self.pace.note(decoding, prefilled, took);
        }
        self.count(decoding, prefilled, took);
        let mut over = Vec::new();
        for (span, &Part { at, tokens }) in parts.iter().enumerate() {
            if !self.deliver(at, tokens, (&logits, span), took) {
                over.push((at, None));
            }
        }
        self.remove(over);
    }

    /// What the next batch holds: all that decode, and as much of the prompts as the pace allows.
    /// The oldest prompt gets at least half of that, then the shortest come first, so that a short
    /// question does not wait for a long document, and the document does not wait for ever.
    fn plan(&self) -> (usize, usize, Vec<Part>) {
        let limits = self.engine.limits();
        let pending = |at: usize| self.running[at].job.answer.pending();
        let (decode, mut prefill): (Vec<usize>, Vec<usize>) =
            (0..self.running.len()).partition(|&at| pending(at) == 1);
        let mut parts: Vec<Part> = decode.iter().map(|&at| Part { at, tokens: 1 }).collect();
        let room = limits.batch_tokens - parts.len();
        let budget = self.pace.budget(decode.len(), room);
        let mut left = budget;
        let oldest = prefill.first().copied();
        prefill.sort_by_key(|&at| pending(at));
        for at in prefill {
            // What is kept back for the oldest, as long as it was not its turn yet.
            let kept = match oldest.filter(|&oldest| pending(oldest) > pending(at)) {
                Some(oldest) => (budget / 2).min(pending(oldest)),
                None => 0,
            };
            let tokens = pending(at).min(left.saturating_sub(kept));
            if tokens > 0 {
                left -= tokens;
                parts.push(Part { at, tokens });
            }
        }
        (decode.len(), budget - left, parts)
    }

    fn evaluate(&mut self, parts: &[Part]) -> Result<Logits> {
        let mut sequences = self.engine.lock()?;
        if let &[Part { at, tokens }] = parts {
            let Running { job, seq } = &mut self.running[at];
            return job.answer.evaluate(&mut sequences, *seq, tokens);
        }
        let span = |&Part { at, tokens }: &Part| {
            let Running { job, seq } = &self.running[at];
            job.answer.span(*seq, tokens)
        };
        sequences.extend(Batch { spans: parts.iter().map(span).collect() })
    }

    /// Hands an answer the logits of its span and tells its events; false if it is over.
    fn deliver(
        &mut self,
        at: usize,
        tokens: usize,
        (logits, span): (&Logits, usize),
        took: Duration,
    ) -> bool {
        let Running { job, seq } = &mut self.running[at];
        let before = job.answer.generated();
        job.answer.advance(tokens, took);
        let mut chosen = Ok(());
        while chosen.is_ok() && job.answer.pending() == 0 && !job.answer.is_over() {
            chosen = job.answer.choose(&self.engine, logits, span);
        }
        // Guesses that did not come true go.
        let left = self.engine.lock();
        let left = left.and_then(|mut all| all.truncate(*seq, job.answer.evaluated()));
        let chosen = chosen.and(left);
        let written = job.answer.generated() - before;
        self.queue.load().totals.generated_tokens += written as u64;
        let listens = job.tell();
        if let Err(error) = chosen {
            job.answer.abandon(&self.engine);
            // Whether anybody hears it changes nothing any more.
            let _ = (job.sink)(Err(error));
        } else if !listens {
            job.answer.abandon(&self.engine);
        }
        !job.answer.is_over()
    }

    /// Deals with a batch that was not evaluated.
    fn after(&mut self, error: Error, parts: &[Part]) {
        match error {
            Error::CacheFull { .. } if self.running.len() > 1 => self.send_back_the_last(),
            // Whose fault it is shows when each is tried alone.
            _ if parts.len() > 1 && !matches!(error, Error::Poisoned) => {
                self.step_one_by_one(parts)
            }
            error => {
                let broken = matches!(error, Error::Poisoned);
                self.remove(vec![(parts[0].at, Some(error))]);
                if broken {
                    for running in std::mem::take(&mut self.running) {
                        fail(running.job, &self.engine, Error::Poisoned);
                    }
                }
            }
        }
    }

    /// Frees the cache of the youngest, which waits for its turn again.
    fn send_back_the_last(&mut self) {
        let Some(mut running) = self.running.pop() else { return };
        tracing::debug!(id = running.job.id, "the cache is full; a request waits for room again");
        running.job.answer.begin_at(0);
        self.release(running.seq);
        self.full = true;
        self.queue.inbox().waiting.push_front(running.job);
    }

    fn step_one_by_one(&mut self, parts: &[Part]) {
        let mut over = Vec::new();
        for part in parts {
            let &Part { at, tokens } = part;
            let started = Instant::now();
            match self.evaluate(std::slice::from_ref(part)) {
                Ok(logits) => {
                    if !self.deliver(at, tokens, (&logits, 0), started.elapsed()) {
                        over.push((at, None));
                    }
                }
                Err(error) => over.push((at, Some(error))),
            }
        }
        self.remove(over);
    }

    /// Takes those out whose answers are over, by their places, or could not be evaluated.
    fn remove(&mut self, mut over: Vec<(usize, Option<Error>)>) {
        over.sort_unstable_by_key(|&(at, _)| Reverse(at));
        for (at, error) in over {
            let running = self.running.remove(at);
            match error {
                Some(error) => {
                    self.release(running.seq);
                    fail(running.job, &self.engine, error);
                }
                None => self.leave(running),
            }
        }
    }

    /// An answer is over; its cache stays for whoever can use it.
    fn leave(&mut self, running: Running) {
        self.full = false;
        self.release(running.seq);
        let mut load = self.queue.load();
        load.totals.requests += 1;
        load.totals.reused_tokens += running.job.answer.reused() as u64;
    }

    fn release(&self, seq: SeqId) {
        if let Ok(mut sequences) = self.engine.lock() {
            sequences.orphan(seq);
        }
    }

    fn count(&self, decoding: usize, prefilled: usize, took: Duration) {
        let totals = &mut self.queue.load().totals;
        totals.steps += 1;
        totals.busy_slots += self.running.len() as u64;
        totals.prefilled_tokens += prefilled as u64;
        if prefilled > 0 {
            totals.prefill += took;
        }
        if decoding > 0 {
            totals.decode += took;
        }
    }

    fn report(&self) {
        let mut load = self.queue.load();
        load.slots.clear();
        for Running { job, .. } in &self.running {
            let answer = &job.answer;
            load.totals.most_tokens = load.totals.most_tokens.max(answer.tokens().len());
            load.slots.push(Slot {
                id: job.id,
                prompt_tokens: answer.prompt().len(),
                cached_tokens: answer.evaluated(),
                generated_tokens: answer.generated(),
            });
        }
    }
}

/// Ends a job that is not wanted any more.
fn cancel(mut job: Job, engine: &Engine) {
    job.answer.end(engine, FinishReason::Cancelled);
    job.tell();
}

/// Ends a job with an error.
fn fail(mut job: Job, engine: &Engine, error: Error) {
    job.answer.abandon(engine);
    // Whether anybody hears it changes nothing any more.
    let _ = (job.sink)(Err(error));
}

impl Drop for Worker {
    /// Nobody waits in vain if the thread panics.
    fn drop(&mut self) {
        let mut inbox = self.queue.inbox();
        inbox.closed = true;
        let waiting = std::mem::take(&mut inbox.waiting);
        drop(inbox);
        for mut job in waiting {
            let _ = (job.sink)(Err(Error::Poisoned));
        }
    }
}
