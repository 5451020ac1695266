//! A batch as the steps read it.

use baton_graph::{Batch, LogitRow, PageId, Pager};

use crate::kv::PAGE;
use crate::plan::Height;

/// One sequence's part of a batch.
#[derive(Debug)]
pub(super) struct Span {
    /// Its first row among all new tokens.
    pub(super) row: usize,
    /// Its new tokens.
    pub(super) tokens: usize,
    /// Position of the first of them.
    pub(super) position: usize,
    /// Where its pages start in [`Spans::pages`].
    first_page: usize,
    pages: usize,
}

/// Buffers that are filled anew for each batch.
#[derive(Debug, Default)]
pub(super) struct Spans {
    pub(super) list: Vec<Span>,
    /// Of all spans.
    pub(super) tokens: Vec<u32>,
    /// Position in its sequence of each token.
    pub(super) positions: Vec<usize>,
    /// Pages of all spans' sequences.
    pub(super) pages: Vec<PageId>,
    /// Rows among all tokens whose logits are wanted, and where they come from.
    pub(super) wanted: Vec<usize>,
    pub(super) origins: Vec<LogitRow>,
}

impl Spans {
    /// Takes over a batch whose tokens the pager has already appended.
    pub(super) fn set(&mut self, batch: &Batch, pager: &Pager) {
        self.list.clear();
        self.tokens.clear();
        self.positions.clear();
        self.pages.clear();
        for span in &batch.spans {
            let tokens = span.tokens.len();
            let end = pager.len(span.seq);
            let position = end - tokens;
            let (row, first_page) = (self.tokens.len(), self.pages.len());
            self.pages.extend_from_slice(pager.table(span.seq));
            let pages = self.pages.len() - first_page;
            self.list.push(Span { row, tokens, position, first_page, pages });
            self.tokens.extend_from_slice(&span.tokens);
            self.positions.extend(position..end);
        }
        (self.wanted, self.origins) = batch.wanted_rows().into_iter().unzip();
    }

    pub(super) fn rows(&self, height: Height) -> usize {
        match height {
            Height::Tokens => self.tokens.len(),
            Height::Wanted => self.wanted.len(),
        }
    }

    /// Pages of a span's sequence.
    pub(super) fn table(&self, span: &Span) -> &[PageId] {
        &self.pages[span.first_page..span.first_page + span.pages]
    }
}

impl Span {
    /// Position behind its last token.
    pub(super) fn end(&self) -> usize {
        self.position + self.tokens
    }

    /// Pages that its new tokens lie in, by their index in the table.
    pub(super) fn new_pages(&self) -> std::ops::Range<usize> {
        self.position / PAGE..self.end().div_ceil(PAGE)
    }
}
