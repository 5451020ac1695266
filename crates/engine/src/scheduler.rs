//! Many answers at once: continuous batching over one engine.
//!
//! Requests join and leave between any two steps. A step evaluates one batch: the next token of each
//! answer that is being written, and as much of the waiting prompts as does not hold these up (see
//! [`pace`]). A request waits in a queue of bounded length until there is room for it in the cache;
//! if room runs out later, the one that came last goes back to the queue, and loses nothing but the
//! time to evaluate its tokens again.
//!
//! Where the executor computes prompts in the background, as a [`Relay`](crate::Relay) does, steps go
//! on meanwhile without these, and an answer joins them when its prompt is there.

mod admission;
mod pace;
mod plan;
mod signal;
mod worker;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::answer::Answer;
use crate::{CancelToken, Engine, Error, Event, GenerateOptions, Prompt, Result};
use signal::Signal;
use worker::Worker;

/// How many requests a [`Scheduler`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Most answers that are made at the same time.
    pub max_running: usize,
    /// Most requests that wait for their turn; more are refused with [`Error::Busy`].
    pub max_waiting: usize,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions { max_running: 16, max_waiting: 512 }
    }
}

/// Makes many answers at once, in a thread of its own. Dropping it cancels what is left.
#[derive(Debug)]
pub struct Scheduler {
    engine: Engine,
    queue: Arc<Queue>,
    worker: Option<JoinHandle<()>>,
}

/// How busy a [`Scheduler`] is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// The answers being made, in the order in which they came.
    pub slots: Vec<Slot>,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// What was done since the start.
    pub totals: Totals,
}

/// One answer being made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Number of the request, counted from 1.
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens in the cache.
    pub cached_tokens: usize,
    /// Tokens written so far.
    pub generated_tokens: usize,
}

/// Work done since the start. Times are of steps in which that kind of work was done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Requests that ended, however they did.
    pub requests: u64,
    /// Tokens of prompts that were evaluated.
    pub prefilled_tokens: u64,
    /// Tokens of prompts that were in the cache already.
    pub reused_tokens: u64,
    /// Tokens written.
    pub generated_tokens: u64,
    /// Steps that evaluated a part of a prompt took this long, and waiting for prompts that were
    /// computed in the background while nothing else was to be done.
    pub prefill: Duration,
    /// Steps that wrote a token took this long.
    pub decode: Duration,
    /// Steps.
    pub steps: u64,
    /// Answers in each step, added up.
    pub busy_slots: u64,
    /// Most tokens that an answer ever held.
    pub most_tokens: usize,
}

/// What the threads that ask and the one that answers share.
#[derive(Debug)]
struct Queue {
    options: SchedulerOptions,
    inbox: Mutex<Inbox>,
    wake: Signal,
    load: Mutex<Load>,
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: VecDeque<Job>,
    next: u64,
    /// Nothing is taken any more.
    closed: bool,
}

/// Receives what happens; breaks if nobody wants to know any more.
type Sink = Box<dyn FnMut(Result<Event>) -> ControlFlow<()> + Send>;

/// A request on its way.
struct Job {
    id: u64,
    answer: Answer,
    cancel: CancelToken,
    sink: Sink,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Starts the thread that works for `engine`. Sessions may use the engine beside it.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn new(engine: Engine, options: SchedulerOptions) -> Result<Self> {
        let queue = Arc::new(Queue {
            options,
            inbox: Mutex::default(),
            wake: Signal::default(),
            load: Mutex::default(),
        });
        let worker = Worker::new(engine.clone(), Arc::clone(&queue));
        let thread = thread::Builder::new().name("baton-scheduler".into());
        let worker = thread.spawn(|| worker.run()).map_err(|source| Error::Thread { source })?;
        Ok(Scheduler { engine, queue, worker: Some(worker) })
    }

    /// The engine that it works for.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Asks for an answer to `prompt`; gives the number of tokens of the prompt. The text is
    /// tokenized at once, in this thread. `sink` is called from the scheduler's thread for each
    /// event, as [`Session::generate`](crate::Session::generate) gives them, and must not block; the
    /// last is [`Event::Done`] or an error. If it breaks, the answer is cancelled before the next
    /// step, as it is by the token in `options`.
    ///
    /// # Errors
    /// Those of [`Session::generate`](crate::Session::generate); [`Error::Busy`] if too many
    /// requests wait; [`Error::Poisoned`] if the scheduler's thread died.
    pub fn submit(
        &self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
        sink: impl FnMut(Result<Event>) -> ControlFlow<()> + Send + 'static,
    ) -> Result<usize> {
        // Refused before any work is done for it.
        self.check_room(&self.queue.inbox())?;
        let answer = Answer::new(&self.engine, prompt.into(), options)?;
        let tokens = answer.prompt().len();
        let (cancel, sink) = (options.cancel.clone(), Box::new(sink));
        let mut inbox = self.queue.inbox();
        self.check_room(&inbox)?;
        inbox.next += 1;
        let id = inbox.next;
        inbox.waiting.push_back(Job { id, answer, cancel, sink });
        drop(inbox);
        self.queue.wake.raise();
        Ok(tokens)
    }

    fn check_room(&self, inbox: &Inbox) -> Result<()> {
        if inbox.closed {
            return Err(Error::Poisoned);
        }
        match inbox.waiting.len() {
            waiting if waiting >= self.queue.options.max_waiting => Err(Error::Busy { waiting }),
            _ => Ok(()),
        }
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let waiting = self.queue.inbox().waiting.len();
        Load { waiting, ..self.queue.load().clone() }
    }

    /// Whether it does nothing and nothing waits.
    pub fn is_idle(&self) -> bool {
        let load = self.load();
        load.waiting == 0 && load.slots.is_empty()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.queue.inbox().closed = true;
        self.queue.wake.raise();
        if let Some(worker) = self.worker.take() {
            // If it panicked, it has said so.
            let _ = worker.join();
        }
    }
}

impl Queue {
    /// A panic elsewhere leaves no list half changed.
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    /// Tells all that there is to tell; false if nobody listens any more.
    fn tell(&mut self) -> bool {
        while let Some(event) = self.answer.next_event() {
            if (self.sink)(Ok(event)).is_break() {
                return false;
            }
        }
        true
    }
}
