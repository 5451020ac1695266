//! Work on a template in a thread of its own.
//!
//! A template comes with a model from anywhere, and `minijinja` has holes that its fuel does not
//! cover: chains of `a.b.c…` and values nested in each other take a stack frame for each link, a
//! few odd arguments make it panic, and comparing values that share their parts can take forever.
//! In another thread none of this reaches the caller.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};

/// The name of the threads that templates run in. A panic in one is the template's fault and
/// becomes an error; a panic hook can tell it by this name.
pub const TEMPLATE_THREAD: &str = "chat-template";

/// Runs `work` with `stack` bytes of stack, and gives up when `limit` has passed; what is not
/// touched of the stack costs nothing.
///
/// # Errors
///
/// Those of `work`, and [`Error::TemplateLimit`] if it panics or takes too long. There is no way
/// to end a thread from outside: one that takes too long goes on unseen.
pub(super) fn run<T: Send + 'static>(
    stack: usize,
    limit: Duration,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let failed = |reason: String| Err(Error::TemplateLimit { reason });
    let (sender, receiver) = mpsc::channel();
    let builder = thread::Builder::new().name(TEMPLATE_THREAD.to_owned()).stack_size(stack);
    // Nobody listens any more if it took too long.
    let spawned = builder.spawn(move || _ = sender.send(work()));
    if let Err(error) = spawned {
        return failed(format!("there is no memory for its thread: {error}"));
    }
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            failed(format!("it took more than {} seconds", limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => failed("it makes the template engine panic".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_time_nor_panics_reach_the_caller() {
        let second = Duration::from_secs(1);
        assert_eq!(run(1 << 20, second, || Ok(7)).unwrap(), 7);
        let slow = run(1 << 20, second, move || {
            thread::sleep(second * 60);
            Ok(())
        });
        assert!(slow.unwrap_err().to_string().contains("more than 1 seconds"));
        let panics = run(1 << 20, second * 60, || -> Result<()> { panic!("on purpose") });
        assert!(panics.unwrap_err().to_string().contains("panic"));
    }
}
