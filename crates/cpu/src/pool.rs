//! Persistent worker threads that split one piece of work at a time.
//!
//! A run hands out task numbers from one atomic word, so a thread that the operating system keeps
//! off its core delays only the task it already holds. Waiting spins briefly, since the next piece
//! of work usually follows within microseconds, and then parks: an idle pool costs nothing, and
//! no thread ever burns a core that another process needs. Nothing is allocated per run.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};

use crate::isa::{Isa, UnsupportedIsa};

/// Rounds of waiting before a thread parks: some tens of microseconds.
const SPINS: u32 = 2_000;

/// Worker threads and the instruction set that they may use.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a run: runs of several threads come one after the other.
    turn: Mutex<()>,
    isa: Isa,
}

type Call = dyn Fn(usize, usize) + Sync;

struct Shared {
    /// Run number in the upper half, tasks not yet claimed in the lower.
    tickets: AtomicU64,
    /// The work of the current run; written only while no task is claimed or left to claim.
    job: UnsafeCell<Option<Job>>,
    finished: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    parked: Vec<AtomicBool>,
    caller_waits: AtomicBool,
    caller: Mutex<Option<Thread>>,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    call: *const Call,
    tasks: usize,
}

// SAFETY: `job` is the only part that is not `Sync` by itself. It is written by the thread that
// holds `Pool::turn`, while all tasks of the previous run are finished, and read only by a thread
// that has claimed a task of the current run and has not yet counted it as finished. The closure
// that it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is not used outside the run in which it was stored.
unsafe impl Send for Shared {}

thread_local! {
    /// The pool whose task this thread is in, by the address of its shared part, and its number
    /// there.
    static TASK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// Marks this thread as inside a task until dropped, also by a panic.
struct InTask {
    before: Option<(usize, usize)>,
}

impl InTask {
    fn enter(pool: usize, thread: usize) -> InTask {
        InTask { before: TASK.replace(Some((pool, thread))) }
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        TASK.set(self.before);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No invariant spans a panic here, so a poisoned lock is as good as another.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool in which `threads` threads work: the calling one and `threads - 1` new ones. Zero
    /// counts as one. If the system refuses a thread, the pool works with those it got.
    ///
    /// # Errors
    /// If this machine lacks `isa`.
    pub fn new(threads: usize, isa: Isa) -> Result<Pool, UnsupportedIsa> {
        let isa = isa.checked()?;
        let extra = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            tickets: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            finished: AtomicUsize::new(0),
            panic: Mutex::new(None),
            parked: (0..extra).map(|_| AtomicBool::new(false)).collect(),
            caller_waits: AtomicBool::new(false),
            caller: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            let name = format!("baton-cpu-{}", index + 1);
            thread::Builder::new().name(name).spawn(move || shared.work(index))
        };
        let workers = (0..extra).map_while(|index| spawn(index).ok()).collect();
        Ok(Pool { shared, workers, turn: Mutex::new(()), isa })
    }

    /// The instruction set that work on this pool may use. The machine has it.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that take part in a run, the calling one included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(task, thread)` once for each task in `0..tasks`, on all threads of the pool, and
    /// returns when the last call has. `thread` is below [`Pool::threads`] and no two calls run
    /// at once with the same one. A run started inside a task is done by that thread alone.
    ///
    /// # Panics
    /// If a call panics: with its payload, after all other tasks are done.
    pub fn run(&self, tasks: usize, f: impl Fn(usize, usize) + Sync) {
        let inside = TASK.get().filter(|&(pool, _)| pool == self.shared.address());
        if let Some((_, thread)) = inside {
            (0..tasks).for_each(|task| f(task, thread));
        } else if tasks == 1 || self.workers.is_empty() {
            let _turn = lock(&self.turn);
            let _inside = InTask::enter(self.shared.address(), 0);
            (0..tasks).for_each(|task| f(task, 0));
        } else if tasks > 0 {
            self.run_shared(tasks, &f);
        }
    }

    fn run_shared(&self, tasks: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        let turn = lock(&self.turn);
        let shared = &*self.shared;
        let tasks_word = u32::try_from(tasks).expect("fewer than 2^32 tasks");
        *lock(&shared.caller) = Some(thread::current());
        // SAFETY: only the lifetime changes. The pointer is used by claimed tasks alone, and this
        // function does not return before all tasks are finished.
        let call = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const Call>(f)
        };
        // SAFETY: the turn is ours and no task of the previous run is claimed or left.
        unsafe { *shared.job.get() = Some(Job { call, tasks }) };
        shared.finished.store(0, Ordering::Relaxed);
        let run = (shared.tickets.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        shared.tickets.store(run << 32 | u64::from(tasks_word), Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        while shared.do_one(0) {}
        shared.wait_for_the_rest(tasks);
        let panic = lock(&shared.panic).take();
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Shared {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Claims one task and does it; false if none is left.
    fn do_one(&self, thread: usize) -> bool {
        let mut tickets = self.tickets.load(Ordering::Acquire);
        loop {
            if tickets & 0xffff_ffff == 0 {
                return false;
            }
            // The run number in the word makes this fail if the run has changed since the load.
            let claim = self.tickets.compare_exchange_weak(
                tickets,
                tickets - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match claim {
                Ok(_) => break,
                Err(now) => tickets = now,
            }
        }
        let left = (tickets & 0xffff_ffff) as usize;
        // SAFETY: a task of the current run is claimed and not yet counted as finished.
        let job = unsafe { (*self.job.get()).expect("a claimed task has a job") };
        // SAFETY: as above; the closure lives until all tasks are finished.
        let call = unsafe { &*job.call };
        let inside = InTask::enter(self.address(), thread);
        let result = catch_unwind(AssertUnwindSafe(|| call(job.tasks - left, thread)));
        drop(inside);
        if let Err(payload) = result {
            lock(&self.panic).get_or_insert(payload);
        }
        if self.finished.fetch_add(1, Ordering::SeqCst) + 1 == job.tasks
            && self.caller_waits.load(Ordering::SeqCst)
            && let Some(caller) = &*lock(&self.caller)
        {
            caller.unpark();
        }
        true
    }

    fn wait_for_the_rest(&self, tasks: usize) {
        let done = || self.finished.load(Ordering::SeqCst) == tasks;
        if spin_until(done) {
            return;
        }
        self.caller_waits.store(true, Ordering::SeqCst);
        while !done() {
            thread::park();
        }
        self.caller_waits.store(false, Ordering::SeqCst);
    }

    fn work(&self, index: usize) {
        loop {
            while self.do_one(index + 1) {}
            let wanted = || {
                self.tickets.load(Ordering::SeqCst) & 0xffff_ffff != 0
                    || self.stop.load(Ordering::SeqCst)
            };
            if !spin_until(wanted) {
                self.parked[index].store(true, Ordering::SeqCst);
                while !wanted() {
                    thread::park();
                }
                self.parked[index].store(false, Ordering::SeqCst);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

/// Waits a short while for `ready`; false if it did not come true.
fn spin_until(ready: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    ready()
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's own panic was already handed to the caller of its run.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).field("isa", &self.isa).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(threads, Isa::Portable).unwrap()
    }

    #[test]
    fn each_task_runs_once() {
        for threads in [0, 1, 2, 5] {
            let pool = pool(threads);
            for tasks in [0, 1, 2, 3, 17, 1000] {
                let seen: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                pool.run(tasks, |task, thread| {
                    assert!(thread < pool.threads());
                    seen[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_short_runs_do_not_mix() {
        let pool = pool(4);
        for round in 0..20_000usize {
            let sum = AtomicUsize::new(0);
            pool.run(3, |task, _| {
                sum.fetch_add(round + task, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 3 * round + 3);
        }
    }

    #[test]
    fn a_parked_pool_wakes_up() {
        let pool = pool(3);
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(5));
            let busy = AtomicUsize::new(0);
            let start = Instant::now();
            // Two tasks that wait for each other: only two awake threads can finish them.
            pool.run(2, |_, _| {
                busy.fetch_add(1, Ordering::SeqCst);
                while busy.load(Ordering::SeqCst) < 2 && start.elapsed() < Duration::from_secs(20) {
                    thread::yield_now();
                }
            });
            assert_eq!(busy.into_inner(), 2);
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 3] {
            let pool = pool(threads);
            let done = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, |task, _| {
                    assert!(task != 7, "task seven fails");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let payload = result.unwrap_err();
            assert!(payload.downcast_ref::<&str>().is_some_and(|s| s.contains("seven")));
            let again = AtomicUsize::new(0);
            pool.run(50, |_, _| {
                again.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(again.into_inner(), 50);
        }
    }

    #[test]
    fn a_run_inside_a_task_is_done_in_place() {
        let pool = pool(3);
        for tasks in [1, 4] {
            let count = AtomicUsize::new(0);
            pool.run(tasks, |_, outer| {
                pool.run(5, |_, inner| {
                    assert_eq!(outer, inner);
                    count.fetch_add(1, Ordering::Relaxed);
                });
            });
            assert_eq!(count.into_inner(), 5 * tasks);
        }
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = pool(2);
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(5, |_, _| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 4 * 200 * 5);
    }
}
