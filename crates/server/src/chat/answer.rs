//! One answer on its way from the scheduler to a client.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use baton_engine::{
    CancelToken, Event, FinishReason, GenerateOptions, Metrics, Prompt, Summary, Token,
};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::splitter::Splitter;
use crate::models::Lease;
use crate::{ApiError, Kind, Result};

/// An answer that is being made. Dropping it ends the work for it before the next step. The model
/// stays in memory as long as it lives.
pub struct Answer {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    events: UnboundedReceiver<baton_engine::Result<Event>>,
    parts: VecDeque<Part>,
    splitter: Splitter,
    /// Tokens whose text has not come yet.
    pending: Vec<TokenInfo>,
    pending_count: usize,
    reasoning_tokens: usize,
    calls: usize,
    one_call: bool,
    /// Nothing of what comes now is wanted.
    closed: bool,
    wants_logprobs: bool,
    cancel: CancelToken,
    started: Instant,
    over: bool,
    lease: Lease,
}

/// What an answer consists of, in the order in which it comes.
#[derive(Clone, Debug, PartialEq)]
// There is one end of an answer.
#[allow(clippy::large_enum_variant)]
pub enum Part {
    /// So much of the prompt was evaluated.
    Progress {
        /// Tokens that are in the cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what it says.
    Text(String),
    /// A call begins.
    ToolCallStart {
        /// Its number, from 0.
        index: usize,
        /// A name for it, which no other call has.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments, which are one JSON object in the end.
    ToolCallArguments {
        /// The number of the call.
        index: usize,
        /// The next characters.
        json: String,
    },
    /// A call is complete.
    ToolCallEnd {
        /// The number of the call.
        index: usize,
    },
    /// The tokens of the text that comes next, if log-probabilities were asked for.
    Logprobs(Vec<TokenInfo>),
    /// The answer is complete; nothing follows.
    Done(Finish),
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// Its id.
    pub id: u32,
    /// Its bytes, which need not be whole characters.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; of no use in `top` of another.
    pub logprob: f32,
    /// The most likely tokens in its place, best first.
    pub top: Vec<TokenInfo>,
}

/// How an answer ended and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why it ended.
    pub reason: Reason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// Tokens.
    pub usage: Usage,
    /// The seed that it can be had with again.
    pub seed: u64,
    /// Counts and times of the engine.
    pub metrics: Metrics,
    /// From the request to the end.
    pub total: Duration,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model was done, or a stop string came.
    Stop,
    /// The wanted number of tokens, or the context, is full.
    Length,
    /// It waits for the results of its calls.
    ToolCalls,
    /// It was given up.
    Cancelled,
}

/// Tokens of a request and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: usize,
    /// Of these, in the cache already.
    pub cached: usize,
    /// Of the answer.
    pub generated: usize,
    /// Of these, thoughts.
    pub reasoning: usize,
}

impl TokenInfo {
    /// Its text; what is no whole character becomes U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Answer {
    /// Asks the scheduler for it.
    pub(super) fn start(
        lease: Lease,
        prompt: Prompt,
        options: GenerateOptions,
        splitter: Splitter,
        started: Instant,
    ) -> Result<Answer> {
        let (sender, events) = mpsc::unbounded_channel();
        let cancel = options.cancel.clone();
        let wants_logprobs = options.sampling.logprobs.is_some();
        let sink = move |event| match sender.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let prompt_tokens = lease.scheduler()?.submit(prompt, &options, sink)?;
        Ok(Answer {
            prompt_tokens,
            events,
            parts: VecDeque::new(),
            splitter,
            pending: Vec::new(),
            pending_count: 0,
            reasoning_tokens: 0,
            calls: 0,
            one_call: false,
            closed: false,
            wants_logprobs,
            cancel,
            started,
            over: false,
            lease,
        })
    }

    /// Ends it behind its first call.
    pub(super) fn with_one_call(mut self) -> Answer {
        self.one_call = true;
        self
    }

    /// The model that answers.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What comes next; none behind the end or an error.
    pub async fn next(&mut self) -> Option<Result<Part>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// What comes next, if it is there.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Part>>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Poll::Ready(Some(Ok(part)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let event = ready!(self.events.poll_recv(context));
            if let Err(error) = self.take(event) {
                self.over = true;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }

    fn take(&mut self, event: Option<baton_engine::Result<Event>>) -> Result<()> {
        let unloaded = || ApiError::new(Kind::Unavailable, "the model was taken out of memory");
        match event.ok_or_else(unloaded)?? {
            Event::Prefill { done, total } => self.parts.push_back(Part::Progress { done, total }),
            Event::Token(token) => self.note(&token),
            Event::Text(text) => {
                let parts = self.splitter.push(text);
                self.queue(parts);
            }
            Event::Done(summary) => self.finish(summary),
            _ => {}
        }
        Ok(())
    }

    fn note(&mut self, token: &Token) {
        self.pending_count += 1;
        if self.wants_logprobs
            && let Ok(tokenizer) = self.lease.tokenizer()
        {
            let info = |id: u32, logprob: f32| TokenInfo {
                id,
                bytes: tokenizer.token_bytes(id).to_vec(),
                logprob,
                top: Vec::new(),
            };
            let top = token.top.iter().map(|other| info(other.id, other.logprob)).collect();
            let logprob = token.logprob.unwrap_or(f32::NEG_INFINITY);
            self.pending.push(TokenInfo { top, ..info(token.id, logprob) });
        }
    }

    /// Queues parts, and before the first text among them the tokens that it is made of.
    fn queue(&mut self, parts: Vec<Part>) {
        if parts.is_empty() {
            return;
        }
        let has_text = parts.iter().any(|part| matches!(part, Part::Text(_)));
        if parts.iter().any(|part| matches!(part, Part::Reasoning(_))) && !has_text {
            self.reasoning_tokens += self.pending_count;
        }
        self.pending_count = 0;
        let mut tokens = std::mem::take(&mut self.pending);
        for part in parts {
            if self.closed {
                return;
            }
            match &part {
                Part::Text(_) if !tokens.is_empty() => {
                    self.parts.push_back(Part::Logprobs(std::mem::take(&mut tokens)));
                }
                Part::ToolCallStart { .. } => self.calls += 1,
                Part::ToolCallEnd { .. } if self.one_call => {
                    self.closed = true;
                    self.cancel.cancel();
                }
                _ => {}
            }
            self.parts.push_back(part);
        }
    }

    fn finish(&mut self, summary: Summary) {
        let parts = self.splitter.finish();
        self.queue(parts);
        self.over = true;
        let stop = match &summary.reason {
            FinishReason::Stop(text) => Some(text.clone()),
            _ => None,
        };
        let reason = match summary.reason {
            _ if self.calls > 0 && summary.reason != FinishReason::Length => Reason::ToolCalls,
            FinishReason::Length => Reason::Length,
            FinishReason::Cancelled => Reason::Cancelled,
            _ => Reason::Stop,
        };
        let metrics = summary.metrics;
        let usage = Usage {
            prompt: metrics.prompt_tokens,
            cached: metrics.reused_tokens,
            generated: metrics.generated_tokens,
            reasoning: self.reasoning_tokens,
        };
        let (seed, total) = (summary.seed, self.started.elapsed());
        self.parts.push_back(Part::Done(Finish { reason, stop, usage, seed, metrics, total }));
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
