//! What a download tells its caller while it runs.

use std::time::Duration;

use crate::Error;

/// One thing that happened during [`Store::get`](crate::Store::get). All sizes are in bytes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The next source of the model is being asked.
    TryingSource {
        /// The source, as the catalog spells it.
        source: &'a str,
    },
    /// A source did not deliver, and the next one follows. Why the last one did not is returned.
    SourceFailed {
        /// The source, as the catalog spells it.
        source: &'a str,
        /// Why it did not.
        error: &'a Error,
    },
    /// Another process works on the same file or model; this one waits for it.
    WaitingForLock {
        /// What is being waited for.
        what: &'a str,
    },
    /// A file begins, or goes on where an earlier attempt stopped.
    Started {
        /// File name.
        file: &'a str,
        /// Its whole size, where known.
        total: Option<u64>,
        /// What is already here; above zero after a resume.
        resumed_at: u64,
    },
    /// Some bytes more have come. `done` counts from the start of the file.
    Bytes {
        /// File name.
        file: &'a str,
        /// Bytes that are here.
        done: u64,
        /// The whole size, where known.
        total: Option<u64>,
    },
    /// Bytes that are already here are being hashed.
    Verifying {
        /// File name.
        file: &'a str,
        /// Bytes hashed.
        done: u64,
        /// Bytes to hash.
        total: u64,
    },
    /// The connection failed in a way that may pass; it is tried again after `delay`.
    Retrying {
        /// File name or address.
        file: &'a str,
        /// What went wrong.
        error: &'a Error,
        /// Time until the next attempt.
        delay: Duration,
    },
    /// A file is complete, verified, and in the store.
    Done {
        /// File name.
        file: &'a str,
        /// Its size.
        size: u64,
        /// Whether there was a digest to compare it with.
        verified: bool,
    },
}

/// Receives the events of a download. Any `FnMut(Event)` is one.
pub trait Progress {
    /// Called for each event, often: several times a second during a transfer.
    fn event(&mut self, event: Event<'_>);

    /// Asked between reads; true ends the download with [`Error::Cancelled`]. What has come so far
    /// stays and is resumed next time.
    fn cancelled(&self) -> bool {
        false
    }
}

impl<F: FnMut(Event<'_>)> Progress for F {
    fn event(&mut self, event: Event<'_>) {
        self(event);
    }
}

/// A [`Progress`] that listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn event(&mut self, _: Event<'_>) {}
}
