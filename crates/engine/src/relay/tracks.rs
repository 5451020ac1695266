//! Which tokens of a sequence are where.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::prefiller::Ticket;

/// What is known of one sequence. It has [`Track::len`] tokens; the decode unit holds the first
/// `held` of them, the prefill unit the first `ahead`, once all that was ordered is done.
#[derive(Default)]
pub(super) struct Track {
    pub(super) held: usize,
    /// Those of `held` that the prefill unit computed, rising.
    handed: Vec<Range<usize>>,
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

    /// The decode unit has taken over `n` tokens.
    pub(super) fn took_over(&mut self, n: usize) {
        self.handed.push(self.held..self.held + n);
        self.caught_up(n);
    }

    /// How many tokens of a range were taken over.
    pub(super) fn handed_over(&self, range: &Range<usize>) -> usize {
        let within = |part: &Range<usize>| {
            part.end.min(range.end).saturating_sub(part.start.max(range.start))
        };
        self.handed.iter().map(within).sum()
    }

    /// The decode unit holds no more than the first `len` tokens.
    pub(super) fn cut(&mut self, len: usize) {
        self.held = self.held.min(len);
        self.handed = self.handed_before(len);
    }

    /// What of the first `len` tokens was taken over.
    pub(super) fn handed_before(&self, len: usize) -> Vec<Range<usize>> {
        let begun = self.handed.iter().filter(|part| part.start < len);
        begun.map(|part| part.start..part.end.min(len)).collect()
    }

    /// Makes a copy of what was held, and taken over, elsewhere its own.
    pub(super) fn set_held(&mut self, held: usize, handed: Vec<Range<usize>>) {
        (self.held, self.handed) = (held, handed);
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
