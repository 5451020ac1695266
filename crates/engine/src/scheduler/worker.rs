//! The thread that makes the answers: what each step evaluates, who is told what.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_graph::{Batch, Logits, Readiness, SeqId};

use super::pace::Pace;
use super::plan::{Candidate, Part, Plan};
use super::{Job, Queue, Slot};
use crate::{Engine, Error, FinishReason, Result};

pub(super) struct Worker {
    pub(super) engine: Engine,
    pub(super) queue: Arc<Queue>,
    /// In the order in which they were let in.
    pub(super) running: Vec<Running>,
    pace: Pace,
    /// Whose turn it is in the background: the oldest prompt's, or else the shortest one's.
    oldest_first: bool,
    /// The cache ran out of room; nobody is let in before an answer has ended.
    pub(super) full: bool,
}

pub(super) struct Running {
    pub(super) job: Job,
    pub(super) seq: SeqId,
    /// Since when a part of its prompt is computed in the background.
    pub(super) since: Option<Instant>,
}

impl Worker {
    pub(super) fn new(engine: Engine, queue: Arc<Queue>) -> Self {
        let waiting = Arc::downgrade(&queue);
        let wake = move || {
            if let Some(queue) = waiting.upgrade() {
                queue.wake.raise();
            }
        };
        // A broken engine tells so when it is used.
        if let Ok(mut sequences) = engine.lock() {
            sequences.on_progress(Arc::new(wake));
        }
        let (running, pace) = Default::default();
        Worker { engine, queue, running, pace, oldest_first: true, full: false }
    }

    /// Works until the scheduler is dropped.
    pub(super) fn run(mut self) {
        while self.wait() {
            self.drop_cancelled();
            self.admit();
            let idle = !self.running.is_empty() && !self.step();
            self.report();
            if idle {
                self.rest();
            }
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
        loop {
            let inbox = self.queue.inbox();
            if inbox.closed || !inbox.waiting.is_empty() || !self.running.is_empty() {
                return !inbox.closed;
            }
            drop(inbox);
            self.queue.wake.wait();
        }
    }

    /// Sleeps until something in the background is done, or somebody comes.
    fn rest(&self) {
        let started = Instant::now();
        self.queue.wake.wait();
        self.queue.load().totals.prefill += started.elapsed();
    }

    /// Evaluates one batch and tells what came of it; false if all wait for what is computed in the
    /// background.
    fn step(&mut self) -> bool {
        let plan = self.plan();
        let parts = &plan.parts;
        if parts.is_empty() {
            return false;
        }
        if let [running] = &mut self.running[..] {
            running.job.answer.guess(&self.engine);
        }
        parts.iter().for_each(|part| self.running[part.at].job.answer.step_begins());
        let started = Instant::now();
        let logits = match self.evaluate(parts) {
            Ok(logits) => logits,
            Err(error) => {
                self.after(error, parts);
                return true;
            }
        };
        let took = started.elapsed();
        // A step with guesses is not what others would wait for.
        if logits.rows.len() <= parts.len() && plan.decoding + plan.prefilled > 0 {
            self.pace.note(plan.decoding, plan.prefilled, took);
        }
        self.count(&plan, took);
        self.oldest_first ^= plan.relayed > 0;
        let mut over = Vec::new();
        for (span, part) in parts.iter().enumerate() {
            if !self.deliver(part, (&logits, span), started) {
                over.push((part.at, None));
            }
        }
        self.remove(over);
        true
    }

    fn plan(&self) -> Plan {
        let candidates: Result<Vec<Candidate>> = self.engine.lock().map(|mut sequences| {
            let each = self.running.iter().map(|Running { job, seq, .. }| {
                let pending = job.answer.pending();
                Candidate { pending, readiness: sequences.prepare(*seq, pending) }
            });
            each.collect()
        });
        // A broken engine tells so when the batch is evaluated.
        let candidates = candidates.unwrap_or_else(|_| {
            let pending = self.running.iter().map(|running| running.job.answer.pending());
            let now = |pending| Candidate { pending, readiness: Readiness::Now };
            pending.map(now).collect()
        });
        let most = self.engine.limits().batch_tokens;
        Plan::new(&candidates, &self.pace, most, self.oldest_first)
    }

    fn evaluate(&mut self, parts: &[Part]) -> Result<Logits> {
        let mut sequences = self.engine.lock()?;
        if let &[Part { at, tokens, .. }] = parts {
            let Running { job, seq, .. } = &mut self.running[at];
            return job.answer.evaluate(&mut sequences, *seq, tokens);
        }
        let span = |&Part { at, tokens, .. }: &Part| {
            let Running { job, seq, .. } = &self.running[at];
            job.answer.span(*seq, tokens)
        };
        sequences.extend(Batch { spans: parts.iter().map(span).collect() })
    }

    /// Hands an answer the logits of its span, in a step that `started` then, and tells its events;
    /// false if it is over.
    fn deliver(&mut self, part: &Part, (logits, span): (&Logits, usize), started: Instant) -> bool {
        let Running { job, seq, since } = &mut self.running[part.at];
        let before = job.answer.generated();
        let took = match part.background {
            // The time until it is there counts when it is.
            true => {
                since.get_or_insert(started);
                Duration::ZERO
            }
            false => since.take().unwrap_or(started).elapsed(),
        };
        job.answer.advance(part.tokens, took);
        if before == 0
            && job.answer.pending() == 0
            && let Ok(sequences) = self.engine.lock()
        {
            job.answer.note_units(&sequences, *seq);
        }
        let mut chosen = Ok(());
        while chosen.is_ok() && job.answer.pending() == 0 && !job.answer.is_over() {
            chosen = job.answer.choose(&self.engine, logits, span);
        }
        // Guesses that did not come true go.
        let left = self.engine.lock();
        let left = left.and_then(|mut all| all.truncate(*seq, job.answer.evaluated()));
        let chosen = chosen.and(left);
        let written = job.answer.generated() - before;
        // One token behind others that were written is no part of a prompt.
        let of_prompt = if before == 0 || part.tokens > 1 { part.tokens } else { 0 };
        {
            let mut load = self.queue.load();
            load.totals.generated_tokens += written as u64;
            load.totals.prefilled_tokens += of_prompt as u64;
        }
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
            let started = Instant::now();
            match self.evaluate(std::slice::from_ref(part)) {
                Ok(logits) => {
                    if !self.deliver(part, (&logits, 0), started) {
                        over.push((part.at, None));
                    }
                }
                Err(error) => over.push((part.at, Some(error))),
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

    pub(super) fn release(&self, seq: SeqId) {
        if let Ok(mut sequences) = self.engine.lock() {
            sequences.orphan(seq);
        }
    }

    fn count(&self, plan: &Plan, took: Duration) {
        let totals = &mut self.queue.load().totals;
        totals.steps += 1;
        totals.busy_slots += self.running.len() as u64;
        if plan.prefilled > 0 {
            totals.prefill += took;
        }
        if plan.decoding > 0 {
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
pub(super) fn cancel(mut job: Job, engine: &Engine) {
    job.answer.end(engine, FinishReason::Cancelled);
    job.tell();
}

/// Ends a job with an error.
pub(super) fn fail(mut job: Job, engine: &Engine, error: Error) {
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
