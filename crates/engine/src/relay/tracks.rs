//! Which tokens of a sequence are where.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::prefiller::Ticket;

/// What is known of one sequence. It has [`Track::len`] tokens; the decode unit holds the first
/// `held` of them, the prefill unit the first `ahead`, once all that was ordered is done.
#[derive(Default)]
pub(super) struct Track {
    pub(super) held: usize,
    /// The tokens that the decode unit lacks.
    pub(super) behind: Vec<u32>,
    pub(super) ahead: usize,
    /// Blocks on their way from the prefill unit, in the order in which they come.
    pub(super) pending: VecDeque<Pending>,
    /// The last block was not given or not taken; whoever needs it finds out why.
    pub(super) refused: bool,
    /// What the caller said of the tokens to come.
    pub(super) announced: Option<Announced>,
    /// When it was last worked on.
    pub(super) used: u64,
}

/// A block that the prefill unit was told to hand over.
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) at: usize,
    pub(super) end: usize,
}

/// Tokens to come.
#[derive(Clone, Copy)]
pub(super) struct Announced {
    /// How many the sequence will have.
    pub(super) end: usize,
    /// All but the last go to the prefill unit.
    pub(super) relayed: bool,
}

impl Track {
    pub(super) fn len(&self) -> usize {
        self.held + self.behind.len()
    }

    /// The block that comes next, if it is the one with this number; others were taken back.
    pub(super) fn next_block(&mut self, id: u64) -> Option<Pending> {
        let next = self.pending.front()?;
        if next.ticket.id == id { self.pending.pop_front() } else { None }
    }

    /// The decode unit has `n` tokens more.
    pub(super) fn caught_up(&mut self, n: usize) {
        self.refused = false;
        self.held += n;
        self.behind.drain(..n.min(self.behind.len()));
    }

    /// Nobody waits any more for blocks that reach beyond `len`. One that begins before is computed
    /// all the same: what builds on it does not know that it is cut.
    pub(super) fn forget_pending_beyond(&mut self, len: usize) {
        self.pending.retain(|pending| {
            if pending.at >= len {
                pending.ticket.cancelled.store(true, Ordering::Relaxed);
            }
            pending.end <= len
        });
    }
}
