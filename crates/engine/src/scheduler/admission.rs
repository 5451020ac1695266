//! Who is let in, and who is shown out.

use std::collections::VecDeque;

use super::Job;
use super::worker::{Running, Worker, cancel, fail};
use crate::answer::Answer;
use crate::sequences::common;

/// A beginning that is shared with a running prompt is waited for if it saves this many tokens.
const WORTH_WAITING: usize = 16;

impl Worker {
    /// Ends the answers that are not wanted any more.
    pub(super) fn drop_cancelled(&mut self) {
        let mut gone: VecDeque<Job> = {
            let waiting = &mut self.queue.inbox().waiting;
            let all = std::mem::take(waiting).into_iter();
            let (gone, stay) = all.partition(|job| job.cancel.is_cancelled());
            *waiting = stay;
            gone
        };
        for at in (0..self.running.len()).rev() {
            if self.running[at].job.cancel.is_cancelled() {
                let Running { job, seq, .. } = self.running.remove(at);
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
    pub(super) fn admit(&mut self) {
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
                self.running.push(Running { job, seq, since: None });
            }
            Err(error) => fail(job, &self.engine, error),
        }
    }
}
