//! Wakes the scheduler's thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Raised by anybody, whatever locks they hold, since it has its own and keeps it for no work.
#[derive(Debug, Default)]
pub(super) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(super) fn raise(&self) {
        *self.lock() = true;
        self.changed.notify_one();
    }

    /// Sleeps until it was raised, since the last time that this returned.
    pub(super) fn wait(&self) {
        let mut raised = self.lock();
        while !*raised {
            raised = self.changed.wait(raised).unwrap_or_else(PoisonError::into_inner);
        }
        *raised = false;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_raised_before_is_not_missed() {
        let signal = Signal::default();
        signal.raise();
        signal.raise();
        signal.wait();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| signal.wait());
            signal.raise();
            waiter.join().unwrap();
        });
        assert!(!*signal.lock());
    }
}
