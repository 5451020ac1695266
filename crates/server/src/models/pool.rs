//! The models in memory: who uses each, and when it may go.
//!
//! A model is given back by a thread of its own, the keeper, since that waits for the model's own
//! threads and for the system. Nothing here waits for anything but the one lock.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use super::{KeepAlive, Loaded, Wish};
use crate::{ApiError, Result};

/// A model that was loaded for somebody is kept this long for them to take it.
const GRACE: Duration = Duration::from_secs(10);

/// The models in memory. Clones are the same.
#[derive(Clone)]
pub(super) struct Pool {
    shared: Arc<Shared>,
}

/// Ends the keeper when the last handle that can load models goes. Leases may outlive it.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// For the keeper: there may be something to give back.
    wake: Condvar,
    /// For those that wait for room or for a model.
    changed: watch::Sender<()>,
}

#[derive(Default)]
pub(super) struct State {
    /// By name.
    resident: BTreeMap<String, Entry>,
    /// Not to be had any more; they go when their last lease ends.
    leaving: Vec<Entry>,
    /// Being given back at this moment.
    going: usize,
    next: u64,
    closed: bool,
}

struct Entry {
    id: u64,
    loaded: Arc<Loaded>,
    leases: usize,
    keep_alive: KeepAlive,
    last_used: Instant,
    /// When it goes if nobody uses it; not known while somebody does.
    expires: Option<Instant>,
}

/// The use of a model: while it lives, the model stays. Its end starts the time after which the
/// model is unloaded.
pub struct Lease {
    /// Taken when it ends.
    loaded: Option<Arc<Loaded>>,
    id: u64,
    pool: Pool,
}

/// A model in memory, as lists show it.
#[derive(Clone, Debug)]
pub struct Running {
    /// The model.
    pub loaded: Arc<Loaded>,
    /// When it will be unloaded if nobody uses it; `None` if never.
    pub expires: Option<SystemTime>,
    /// How many requests hold it.
    pub leases: usize,
}

/// What the models in memory add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Occupied {
    /// Models, those that are on their way out included.
    pub models: usize,
    /// Bytes that they were expected to need.
    pub bytes: u64,
    /// Those on their way out that nobody uses any more.
    pub departing: usize,
}

impl Pool {
    /// An empty pool and the one who empties it.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn new() -> Result<(Pool, Keeper)> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            changed: watch::Sender::new(()),
        });
        let pool = Pool { shared: Arc::clone(&shared) };
        let worker = pool.clone();
        let thread = thread::Builder::new().name("baton-keeper".into());
        let thread = thread.spawn(move || worker.keep()).map_err(ApiError::internal)?;
        Ok((pool, Keeper { shared, thread: Some(thread) }))
    }

    /// Told whenever a model came or went or is not used any more.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }

    /// A lease of the model of that name, if it is in memory and as wished for.
    pub(super) fn take(&self, name: &str, wish: &Wish) -> Option<Lease> {
        let mut state = self.shared.lock();
        let entry = state.resident.get_mut(name)?;
        let most = entry.loaded.facts.context_length;
        if wish.context.is_some_and(|wanted| entry.loaded.context_length() < wanted.min(most)) {
            return None;
        }
        entry.leases += 1;
        entry.last_used = Instant::now();
        entry.expires = None;
        entry.keep_alive = wish.keep_alive.unwrap_or(entry.keep_alive);
        let (loaded, id) = (Some(Arc::clone(&entry.loaded)), entry.id);
        Some(Lease { loaded, id, pool: self.clone() })
    }

    /// Adds a model that was just loaded.
    pub(super) fn insert(&self, loaded: Loaded, keep_alive: KeepAlive) {
        let mut state = self.shared.lock();
        state.next += 1;
        let now = Instant::now();
        let entry = Entry {
            id: state.next,
            leases: 0,
            keep_alive,
            last_used: now,
            expires: expiry(keep_alive, now).map(|at| at.max(now + GRACE)),
            loaded: Arc::new(loaded),
        };
        let name = entry.loaded.name.clone();
        let old = state.resident.insert(name, entry);
        state.leaving.extend(old);
        self.shared.tell();
    }

    /// Makes a model leave as soon as nobody uses it; false if it is not in memory.
    pub(super) fn dismiss(&self, name: &str) -> bool {
        let was_there = self.shared.lock().dismiss(name);
        self.shared.tell();
        was_there
    }

    /// Makes the model leave that was not used for longest, if there is one that nobody uses.
    pub(super) fn dismiss_idle(&self) {
        let mut state = self.shared.lock();
        let idle = state.resident.iter().filter(|(_, entry)| entry.leases == 0);
        let oldest = idle.min_by_key(|(_, entry)| entry.last_used).map(|(name, _)| name.clone());
        if let Some(name) = oldest {
            state.dismiss(&name);
            self.shared.tell();
        }
    }

    /// What there is.
    pub(super) fn occupied(&self) -> Occupied {
        let state = self.shared.lock();
        let mut sum = Occupied { models: state.going, bytes: 0, departing: state.going };
        for entry in state.resident.values().chain(&state.leaving) {
            sum.models += 1;
            sum.bytes = sum.bytes.saturating_add(entry.loaded.memory().total());
        }
        sum.departing += state.leaving.iter().filter(|entry| entry.leases == 0).count();
        sum
    }

    /// The models that can be had at once, in the order of their names.
    pub(super) fn running(&self) -> Vec<Running> {
        let state = self.shared.lock();
        let (now, clock) = (Instant::now(), SystemTime::now());
        let running = |entry: &Entry| {
            let at = match entry.expires {
                Some(at) => Some(at),
                None => expiry(entry.keep_alive, now),
            };
            let expires = at.map(|at| clock + at.saturating_duration_since(now));
            Running { loaded: Arc::clone(&entry.loaded), expires, leases: entry.leases }
        };
        state.resident.values().map(running).collect()
    }

    fn release(&self, id: u64, loaded: Option<Arc<Loaded>>) {
        let mut state = self.shared.lock();
        // Before the count falls: the keeper must hold the last one.
        drop(loaded);
        let now = Instant::now();
        let State { resident, leaving, .. } = &mut *state;
        let entry = resident.values_mut().chain(leaving).find(|entry| entry.id == id);
        let Some(entry) = entry else { return };
        entry.leases -= 1;
        entry.last_used = now;
        if entry.leases > 0 {
            return;
        }
        entry.expires = expiry(entry.keep_alive, now);
        if entry.expires.is_some_and(|at| at <= now) {
            // Nobody is to see it any more.
            let name = entry.loaded.name.clone();
            state.dismiss_entry(&name, id);
        }
        self.shared.tell();
    }

    /// Gives models back until the pool is closed; then all of them that nobody uses.
    fn keep(&self) {
        let mut state = self.shared.lock();
        loop {
            if let Some(entry) = state.due(Instant::now()) {
                state.going += 1;
                drop(state);
                let name = entry.loaded.name.clone();
                drop(entry);
                tracing::debug!(model = name, "unloaded");
                state = self.shared.lock();
                state.going -= 1;
                self.shared.changed.send_replace(());
                continue;
            }
            if state.closed {
                return;
            }
            let next = state.resident.values().filter_map(|entry| entry.expires).min();
            state = match next {
                Some(at) => {
                    let wait = at.saturating_duration_since(Instant::now());
                    let woken = self.shared.wake.wait_timeout(state, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl State {
    fn dismiss(&mut self, name: &str) -> bool {
        let entry = self.resident.remove(name);
        let was_there = entry.is_some();
        self.leaving.extend(entry);
        was_there
    }

    /// Dismisses the model of that name, unless another has taken its place.
    fn dismiss_entry(&mut self, name: &str, id: u64) {
        if self.resident.get(name).is_some_and(|entry| entry.id == id) {
            self.dismiss(name);
        }
    }

    /// Takes out a model whose time has come and that nobody uses.
    fn due(&mut self, now: Instant) -> Option<Entry> {
        if let Some(at) = self.leaving.iter().position(|entry| entry.leases == 0) {
            return Some(self.leaving.swap_remove(at));
        }
        let expired = |entry: &Entry| {
            entry.leases == 0 && (self.closed || entry.expires.is_some_and(|at| at <= now))
        };
        let name = self.resident.iter().find(|(_, entry)| expired(entry))?.0.clone();
        self.resident.remove(&name)
    }
}

impl Shared {
    /// A panic elsewhere leaves no entry half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.wake.notify_one();
        self.changed.send_replace(());
    }
}

fn expiry(keep_alive: KeepAlive, now: Instant) -> Option<Instant> {
    match keep_alive {
        KeepAlive::For(time) => now.checked_add(time),
        KeepAlive::Forever => None,
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has said so.
            let _ = thread.join();
        }
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        self.loaded.as_deref().expect("it is taken only at the end")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.release(self.id, self.loaded.take());
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("model", &self.name).finish_non_exhaustive()
    }
}
