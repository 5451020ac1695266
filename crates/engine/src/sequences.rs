//! The executor and what its cache holds: which tokens stand in which sequence, which of them a new
//! prompt can build on, and what goes when room is short.

mod miss;
mod saved;

use std::collections::HashMap;
use std::ops::Range;

use baton_graph::{Batch, ExecError, Executor, Logits, Readiness, SeqId, Span, Waker};

use crate::{Error, Result};
use miss::Evicted;
pub use saved::SavedCache;

/// Most sequences kept for reuse after nobody owns them any more.
const MAX_ORPHANS: usize = 64;

/// A sequence in the executor's cache.
#[derive(Debug, Default)]
struct Entry {
    tokens: Vec<u32>,
    /// A session calls it its own.
    owned: bool,
    /// A generation works on it; it must not be freed.
    busy: bool,
    /// When it was last worked on, by the clock of [`Sequences`].
    used: u64,
}

/// An executor together with the tokens of each sequence in its cache.
///
/// Sequences that no session owns any more stay until their room is needed, least recently used
/// first, so that a prompt that begins like an old one need not be evaluated from the start.
pub(crate) struct Sequences {
    executor: Box<dyn Executor>,
    entries: HashMap<SeqId, Entry>,
    next: u32,
    clock: u64,
    evicted: Evicted,
}

impl Sequences {
    pub(crate) fn new(executor: Box<dyn Executor>) -> Self {
        let (entries, evicted) = Default::default();
        Sequences { executor, entries, next: 0, clock: 0, evicted }
    }

    pub(crate) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }

    /// The tokens that a sequence holds.
    pub(crate) fn tokens(&self, seq: SeqId) -> &[u32] {
        self.entries.get(&seq).map_or(&[], |entry| &entry.tokens)
    }

    /// Makes a sequence ready to be extended to `prompt`: one that holds a beginning of it, and
    /// never all of it, since the last token must be evaluated to get logits. `own` is the sequence
    /// of the session that asks. The result is marked as busy and owned.
    pub(crate) fn acquire(&mut self, own: Option<SeqId>, prompt: &[u32]) -> Result<SeqId> {
        let most = prompt.len().saturating_sub(1);
        let own = own.filter(|seq| self.entries.contains_key(seq));
        let (seq, common) = self.best_match(own, &prompt[..most]);
        if tracing::enabled!(tracing::Level::DEBUG) {
            let cached = seq.map_or(&[][..], |seq| self.tokens(seq));
            let reason = self.evicted.reason(prompt, common, cached, self.entries.is_empty());
            tracing::debug!(prompt = prompt.len(), reused = common, %reason, "prefix");
        }
        let Some(found) = seq else {
            return Ok(self.insert(Vec::new()));
        };
        let entry = &self.entries[&found];
        let dropped = entry.tokens.len() - common;
        // A session goes on in its own sequence, unless most of it would be lost: then that stays
        // for later. Another's is taken over if nothing of it is lost, else its beginning is shared.
        let take_over = match own == Some(found) {
            true => dropped <= common || entry.tokens.is_empty(),
            false => !entry.owned && dropped <= 1,
        };
        let seq = if take_over {
            self.truncate(found, common)?;
            found
        } else {
            let beginning = entry.tokens[..common].to_vec();
            let seq = self.insert(beginning);
            if common > 0
                && let Err(error) = self.executor.copy(found, seq, common)
            {
                self.entries.remove(&seq);
                return Err(error.into());
            }
            seq
        };
        if let Some(own) = own.filter(|&own| own != seq) {
            self.orphan(own);
        }
        self.clock += 1;
        let entry = self.entries.get_mut(&seq).expect("it was just made or found");
        (entry.owned, entry.busy, entry.used) = (true, true, self.clock);
        Ok(seq)
    }

    /// How many tokens of `prompt` need not be evaluated.
    pub(crate) fn cached(&self, prompt: &[u32]) -> usize {
        self.best_match(None, &prompt[..prompt.len().saturating_sub(1)]).1
    }

    /// The sequence that shares the longest beginning with `prompt`, and how long that is. Among
    /// equals the session's own comes first, then the one used last.
    fn best_match(&self, own: Option<SeqId>, prompt: &[u32]) -> (Option<SeqId>, usize) {
        let best = self
            .entries
            .iter()
            .map(|(&seq, entry)| (common(&entry.tokens, prompt), own == Some(seq), entry.used, seq))
            .filter(|&(common, own, ..)| common > 0 || own)
            .max();
        best.map_or((None, 0), |(common, _, _, seq)| (Some(seq), common))
    }

    fn insert(&mut self, tokens: Vec<u32>) -> SeqId {
        while self.entries.contains_key(&SeqId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let seq = SeqId(self.next);
        self.next = self.next.wrapping_add(1);
        self.clock += 1;
        let entry = Entry { tokens, owned: true, busy: true, used: self.clock };
        self.entries.insert(seq, entry);
        seq
    }

    /// Announces that `new` more tokens of a sequence are to come; see [`Executor::prepare`].
    pub(crate) fn prepare(&mut self, seq: SeqId, new: usize) -> Readiness {
        self.executor.prepare(seq, new)
    }

    /// How many tokens of a range another unit handed over; see [`Executor::handed_over`].
    pub(crate) fn handed_over(&self, seq: SeqId, range: Range<usize>) -> usize {
        self.executor.handed_over(seq, range)
    }

    /// Asks to be told of what is done in the background; see [`Executor::on_progress`].
    pub(crate) fn on_progress(&mut self, wake: Waker) {
        self.executor.on_progress(wake);
    }

    /// Appends each span to its sequence; sequences nobody works on make room if needed.
    pub(crate) fn extend(&mut self, batch: Batch) -> Result<Logits> {
        let logits = loop {
            match self.executor.forward(&batch) {
                Err(source @ ExecError::OutOfPages { .. }) => {
                    if !self.evict() {
                        return Err(Error::CacheFull { source });
                    }
                }
                other => break other?,
            }
        };
        for Span { seq, tokens, .. } in batch.spans {
            self.clock += 1;
            let entry = self.entries.entry(seq).or_default();
            entry.tokens.extend(tokens);
            entry.used = self.clock;
        }
        Ok(logits)
    }

    /// Forgets the tokens of a sequence from position `len` on, if there are any.
    pub(crate) fn truncate(&mut self, seq: SeqId, len: usize) -> Result<()> {
        if let Some(entry) = self.entries.get_mut(&seq).filter(|entry| entry.tokens.len() > len) {
            self.executor.truncate(seq, len)?;
            entry.tokens.truncate(len);
        }
        Ok(())
    }

    /// The generation that worked on `seq` is over.
    pub(crate) fn release(&mut self, seq: SeqId) {
        if let Some(entry) = self.entries.get_mut(&seq) {
            entry.busy = false;
        }
    }

    /// The session that owned `seq` is gone; its cache stays for whoever can use it.
    pub(crate) fn orphan(&mut self, seq: SeqId) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        (entry.owned, entry.busy) = (false, false);
        if entry.tokens.is_empty() {
            self.remove(seq);
        }
        let orphans = self.entries.values().filter(|entry| !entry.owned).count();
        if orphans > MAX_ORPHANS {
            self.evict();
        }
    }

    /// Forgets every sequence that nobody works on.
    pub(crate) fn clear(&mut self) {
        while self.evict() {}
        self.evicted = Evicted::default();
    }

    /// Frees the sequence that will be missed least; false if all are being worked on.
    fn evict(&mut self) -> bool {
        let idle = self.entries.iter().filter(|(_, entry)| !entry.busy);
        let Some((_, _, seq)) = idle.map(|(&seq, entry)| (entry.owned, entry.used, seq)).min()
        else {
            return false;
        };
        tracing::debug!(%seq, tokens = self.tokens(seq).len(), "evicted");
        if let Some(entry) = self.remove(seq) {
            self.evicted.note(entry.tokens);
        }
        true
    }

    fn remove(&mut self, seq: SeqId) -> Option<Entry> {
        self.executor.free(seq);
        self.entries.remove(&seq)
    }
}

/// How many tokens two runs have in common at their beginning.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
