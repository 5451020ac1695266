//! The thread in which the prefill unit computes.
//!
//! Orders are carried out one after the other. What one of them cannot do it reports, and the rest
//! goes on: who gave the orders knows how to do without.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use baton_graph::{Batch, ExecError, Executor, KvBlock, Limits, Rows, SeqId, Usage, Waker};

/// How long a thread whose unit was broken off may take to end before it is left to itself.
const LEAVING: Duration = Duration::from_secs(1);

/// Something for the prefill unit to do.
pub(super) enum Order {
    /// Append tokens at a position and hand over their cache.
    Run {
        ticket: Ticket,
        at: usize,
        tokens: Vec<u32>,
    },
    /// Hand over what is there already.
    Fetch {
        ticket: Ticket,
        range: Range<usize>,
    },
    /// Take a block from the decode unit.
    Take {
        seq: SeqId,
        at: usize,
        block: KvBlock,
    },
    Truncate {
        seq: SeqId,
        len: usize,
    },
    Copy {
        from: SeqId,
        to: SeqId,
        len: usize,
    },
    Free {
        seq: SeqId,
    },
}

/// Names an order whose outcome somebody waits for.
#[derive(Clone)]
pub(super) struct Ticket {
    pub(super) id: u64,
    pub(super) seq: SeqId,
    /// Nobody waits any more.
    pub(super) cancelled: Arc<AtomicBool>,
}

/// What came of an order with a ticket.
pub(super) struct Outcome {
    pub(super) id: u64,
    pub(super) seq: SeqId,
    pub(super) block: Result<KvBlock, ExecError>,
    /// Tokens that the prefill unit holds of the sequence now.
    pub(super) held: usize,
    pub(super) usage: Usage,
}

type SharedWaker = Arc<Mutex<Option<Waker>>>;

/// The way to the thread. Dropping it ends the thread after the order that it is at.
pub(super) struct Prefiller {
    orders: Option<Sender<Order>>,
    outcomes: Receiver<Outcome>,
    limits: Limits,
    usage: Usage,
    waker: SharedWaker,
    ending: Arc<AtomicBool>,
    /// Ends what the unit waits for.
    breaker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Prefiller {
    pub(super) fn start(executor: Box<dyn Executor>) -> Result<Self, ExecError> {
        let (orders, inbox) = channel();
        let (outbox, outcomes) = channel();
        let (limits, usage, breaker) = (*executor.limits(), executor.usage(), executor.breaker());
        let waker = SharedWaker::default();
        let ending = Arc::new(AtomicBool::new(false));
        let (wake, end) = (Arc::clone(&waker), Arc::clone(&ending));
        let thread = thread::Builder::new().name("baton-prefill".into());
        let thread = thread
            .spawn(move || work(executor, &inbox, outbox, &wake, &end))
            .map_err(|error| ExecError::Invalid(format!("cannot start a thread: {error}")))?;
        let (orders, thread) = (Some(orders), Some(thread));
        Ok(Prefiller { orders, outcomes, limits, usage, waker, ending, breaker, thread })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Memory that the unit held when it was last heard of.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    pub(super) fn on_progress(&self, wake: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }

    /// Gives an order; false if the thread is gone.
    pub(super) fn send(&self, order: Order) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }

    /// The next outcome, if there is one; an error if the thread is gone.
    pub(super) fn try_outcome(&mut self) -> Result<Option<Outcome>, Gone> {
        match self.outcomes.try_recv() {
            Ok(outcome) => Ok(Some(self.noted(outcome))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    /// Waits for the next outcome; an error if the thread is gone.
    pub(super) fn outcome(&mut self) -> Result<Outcome, Gone> {
        let outcome = self.outcomes.recv().map_err(|_| Gone)?;
        Ok(self.noted(outcome))
    }

    fn noted(&mut self, outcome: Outcome) -> Outcome {
        self.usage = outcome.usage;
        outcome
    }
}

/// The thread panicked.
#[derive(Debug)]
pub(super) struct Gone;

impl Drop for Prefiller {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        self.orders = None;
        let Some(thread) = self.thread.take() else { return };
        if let Some(break_off) = &self.breaker {
            break_off();
            // Whatever it still waits for, such as a name or a connection, is nothing to wait for here.
            let until = Instant::now() + LEAVING;
            loop {
                match self.outcomes.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(_) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => return,
                }
            }
        }
        // If it panicked, it has said so.
        let _ = thread.join();
    }
}

fn work(
    mut executor: Box<dyn Executor>,
    inbox: &Receiver<Order>,
    outbox: Sender<Outcome>,
    waker: &SharedWaker,
    ending: &AtomicBool,
) {
    let end = WakeAtEnd(Some(outbox.clone()), Arc::clone(waker));
    drop(outbox);
    let outbox = || end.0.as_ref();
    let mut refused = Refused::default();
    while let Ok(order) = inbox.recv() {
        if ending.load(Ordering::Relaxed) {
            return;
        }
        let Some((ticket, block)) = carry_out(&mut *executor, &mut refused, order) else {
            continue;
        };
        let (held, usage) = (executor.len(ticket.seq), executor.usage());
        let Ticket { id, seq, .. } = ticket;
        let outcome = Outcome { id, seq, block, held, usage };
        if outbox().is_none_or(|outbox| outbox.send(outcome).is_err()) {
            return;
        }
        call(waker);
    }
}

fn call(waker: &SharedWaker) {
    // Called without the lock, so that it may ask for another to be called.
    let wake = waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(wake) = wake {
        wake();
    }
}

/// Who waits is woken also if the thread ends by a panic, and then finds it gone.
struct WakeAtEnd(Option<Sender<Outcome>>, SharedWaker);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0 = None;
        call(&self.1);
    }
}

/// Why a sequence was not continued by a block, until somebody builds on it.
type Refused = HashMap<SeqId, ExecError>;

/// Does what is ordered; what is to be told of it, if somebody waits.
fn carry_out(
    executor: &mut dyn Executor,
    refused: &mut Refused,
    order: Order,
) -> Option<(Ticket, Result<KvBlock, ExecError>)> {
    let unwanted = |ticket: &Ticket| ticket.cancelled.load(Ordering::Relaxed);
    let gone = || Err(ExecError::Invalid("it is not wanted any more".into()));
    match order {
        Order::Run { ticket, .. } | Order::Fetch { ticket, .. } if unwanted(&ticket) => {
            return Some((ticket, gone()));
        }
        Order::Run { ticket, at, tokens } => {
            let reason = refused.remove(&ticket.seq);
            let block = reason.map_or_else(|| run(executor, ticket.seq, at, tokens), Err);
            return Some((ticket, block));
        }
        Order::Fetch { ticket, range } => {
            let block = executor.export_kv(ticket.seq, range);
            return Some((ticket, block));
        }
        Order::Take { seq, at, block } => {
            // If it fails, so does what builds on it, and is told then.
            if let Err(error) = executor.import_kv(seq, at, &block) {
                tracing::debug!(%seq, %error, "the prefill unit did not take the cache back");
                refused.insert(seq, error);
            }
        }
        Order::Truncate { seq, len } => {
            let _ = executor.truncate(seq, len.min(executor.len(seq)));
        }
        Order::Copy { from, to, len } => {
            let len = len.min(executor.len(from));
            refused.remove(&to);
            executor.free(to);
            let _ = executor.copy(from, to, len);
        }
        Order::Free { seq } => {
            refused.remove(&seq);
            executor.free(seq);
        }
    }
    None
}

fn run(
    executor: &mut dyn Executor,
    seq: SeqId,
    at: usize,
    tokens: Vec<u32>,
) -> Result<KvBlock, ExecError> {
    let held = executor.len(seq);
    if held != at {
        let text = format!("tokens for position {at} of a sequence of {held}");
        return Err(ExecError::Invalid(text));
    }
    let end = at + tokens.len();
    executor.forward(&Batch::one(seq, tokens, Rows::None))?;
    executor.export_kv(seq, at..end)
}
