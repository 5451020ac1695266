//! Book-keeping of a paged KV cache: which pages hold which sequence, shared and copied on write.
//!
//! It owns no memory: a unit keeps its tensors as it likes, indexed by [`PageId`].

use std::collections::HashMap;

use crate::{Batch, ExecError, Limits, SeqId};

/// A page of KV storage: [`Pager::page_tokens`] consecutive positions of all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(pub u32);

/// The first `tokens` positions of page `from` must be copied to page `to` before writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Source.
    pub from: PageId,
    /// Destination.
    pub to: PageId,
    /// Positions to copy.
    pub tokens: usize,
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    pages: Vec<PageId>,
    len: usize,
}

/// Pages of all sequences. Pages are shared between sequences by count; one that is shared is never
/// written, its writer gets a copy.
#[derive(Debug)]
pub struct Pager {
    page_tokens: usize,
    context: usize,
    users: Vec<u32>,
    free: Vec<PageId>,
    sequences: HashMap<SeqId, Sequence>,
}

impl Pager {
    /// Pages of `page_tokens` positions, enough for `limits.kv_tokens`.
    ///
    /// # Panics
    /// If `page_tokens` is 0.
    pub fn new(page_tokens: usize, limits: &Limits) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        let pages = limits.kv_tokens.div_ceil(page_tokens);
        Pager {
            page_tokens,
            context: limits.context,
            users: vec![0; pages],
            free: (0..pages as u32).rev().map(PageId).collect(),
            sequences: HashMap::new(),
        }
    }

    /// Positions in one page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.users.len()
    }

    /// Pages that no sequence uses.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Tokens that a sequence holds.
    pub fn len(&self, seq: SeqId) -> usize {
        self.sequences.get(&seq).map_or(0, |s| s.len)
    }

    /// The pages of a sequence, in order of position.
    pub fn table(&self, seq: SeqId) -> &[PageId] {
        self.sequences.get(&seq).map_or(&[], |s| &s.pages)
    }

    /// Page and offset in it of position `at` of a sequence.
    ///
    /// # Panics
    /// If the sequence has no such position.
    pub fn locate(&self, seq: SeqId, at: usize) -> (PageId, usize) {
        (self.sequences[&seq].pages[at / self.page_tokens], at % self.page_tokens)
    }

    /// How many more positions of a sequence fit into the context and its own last page, so that
    /// they need no page and no copy.
    pub fn spare(&self, seq: SeqId) -> usize {
        let len = self.len(seq);
        match self.shared_tail(seq) {
            Some(_) => 0,
            None => (self.table(seq).len() * self.page_tokens).min(self.context) - len,
        }
    }

    /// Appends the spans of a batch: allocates pages and lengthens the sequences. The copies
    /// returned must be made before anything is written.
    ///
    /// # Errors
    /// If a sequence would outgrow the context or pages run out; nothing has changed then.
    pub fn append_batch(&mut self, batch: &Batch) -> Result<Vec<PageCopy>, ExecError> {
        let spans: Vec<(SeqId, usize)> =
            batch.spans.iter().map(|span| (span.seq, span.tokens.len())).collect();
        self.append(&spans)
    }

    /// As [`Pager::append_batch`] with the number of new tokens for each sequence. A sequence may
    /// occur once.
    ///
    /// # Errors
    /// As [`Pager::append_batch`].
    pub fn append(&mut self, spans: &[(SeqId, usize)]) -> Result<Vec<PageCopy>, ExecError> {
        let mut needed = 0;
        for &(seq, new) in spans {
            let len = self.len(seq);
            if new > self.context.saturating_sub(len) {
                return Err(ExecError::ContextFull { seq, len, new, context: self.context });
            }
            let held = self.table(seq).len();
            needed += (len + new).div_ceil(self.page_tokens) - held;
            needed += usize::from(new > 0 && self.shared_tail(seq).is_some());
        }
        if needed > self.free.len() {
            let (free, page_tokens) = (self.free.len(), self.page_tokens);
            return Err(ExecError::OutOfPages { needed: needed - free, free, page_tokens });
        }
        let mut copies = Vec::new();
        for &(seq, new) in spans {
            if new == 0 {
                continue;
            }
            if let Some(from) = self.shared_tail(seq) {
                // Two spans may share one tail: the second writer then owns it alone.
                let to = self.take();
                self.users[from.0 as usize] -= 1;
                let sequence = self.sequences.get_mut(&seq).expect("a tail has a sequence");
                let tokens = sequence.len % self.page_tokens;
                *sequence.pages.last_mut().expect("a tail is a page") = to;
                copies.push(PageCopy { from, to, tokens });
            }
            let mut sequence = self.sequences.remove(&seq).unwrap_or_default();
            sequence.len += new;
            while sequence.pages.len() * self.page_tokens < sequence.len {
                sequence.pages.push(self.take());
            }
            self.sequences.insert(seq, sequence);
        }
        Ok(copies)
    }

    /// Drops positions from `len` on.
    ///
    /// # Errors
    /// If the sequence holds fewer.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        let held = self.len(seq);
        if len > held {
            let text = format!("sequence {seq} holds {held} tokens, not {len}");
            return Err(ExecError::Invalid(text));
        }
        if len == 0 {
            self.free(seq);
        } else if let Some(mut sequence) = self.sequences.remove(&seq) {
            for page in sequence.pages.split_off(len.div_ceil(self.page_tokens)) {
                self.release(page);
            }
            sequence.len = len;
            self.sequences.insert(seq, sequence);
        }
        Ok(())
    }

    /// Makes `to` share the first `len` positions of `from`.
    ///
    /// # Errors
    /// If `from` holds fewer, or is `to`.
    pub fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        let held = self.len(from);
        if len > held || from == to {
            let text = format!("cannot copy {len} tokens of {from}, which holds {held}, to {to}");
            return Err(ExecError::Invalid(text));
        }
        self.free(to);
        if len > 0 {
            let pages = self.table(from)[..len.div_ceil(self.page_tokens)].to_vec();
            for page in &pages {
                self.users[page.0 as usize] += 1;
            }
            self.sequences.insert(to, Sequence { pages, len });
        }
        Ok(())
    }

    /// Frees a sequence.
    pub fn free(&mut self, seq: SeqId) {
        for page in self.sequences.remove(&seq).unwrap_or_default().pages {
            self.release(page);
        }
    }

    /// The part-filled last page of a sequence, if others use it too.
    fn shared_tail(&self, seq: SeqId) -> Option<PageId> {
        let sequence = self.sequences.get(&seq)?;
        let tail = *sequence.pages.last()?;
        let part_filled = sequence.len % self.page_tokens != 0;
        (part_filled && self.users[tail.0 as usize] > 1).then_some(tail)
    }

    fn take(&mut self) -> PageId {
        let page = self.free.pop().expect("free pages were counted");
        self.users[page.0 as usize] = 1;
        page
    }

    fn release(&mut self, page: PageId) {
        let users = &mut self.users[page.0 as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(page);
        }
    }
}

#[cfg(test)]
mod tests;
