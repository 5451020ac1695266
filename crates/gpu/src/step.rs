//! What changes from pass to pass, as `shaders/step.wgsl` reads it.

use baton_graph::{Batch, LogitRow, PageId, Pager, Rows};

use crate::FEW;
use crate::plan::Height;

/// Tokens of a page of the KV cache.
pub(crate) const PAGE: usize = 64;
/// Words before the tables.
pub(crate) const HEADER: usize = 12;
/// From this many new tokens on a sequence's queries are taken in tiles.
const TILED: usize = 8;
/// Parts that a past is cut into at most.
pub(crate) const MOST_PARTS: usize = 64;
/// Pages of a part at least: it goes through them faster than several parts could be joined.
const PART_PAGES: usize = 4;

/// Rows that the device's buffers have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// New tokens.
    pub(crate) rows: usize,
    /// Rows of logits.
    pub(crate) wanted: usize,
    /// Entries in the list of pages of all spans.
    pub(crate) pages: usize,
    /// Queries of a tile.
    pub(crate) tile: usize,
}

impl Room {
    /// Rows of values of a height.
    pub(crate) fn rows(&self, height: Height) -> usize {
        match height {
            Height::Tokens => self.rows,
            Height::Wanted => self.wanted,
        }
    }

    /// Words that the tables need at most.
    pub(crate) fn words(&self) -> usize {
        // Per token: four of its own, four of a span, and a lone row or less than a tile of two.
        HEADER + 9 * self.rows + 2 * self.wanted + self.pages
    }

    /// Pairs of a lone row and a part of its past.
    pub(crate) fn parts(&self) -> usize {
        self.rows.max(16 * MOST_PARTS)
    }
}

/// Tokens `start..start + tokens` of span `span` of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) span: usize,
    pub(crate) start: usize,
    pub(crate) tokens: usize,
}

/// Number of rows of logits among tokens `start..start + tokens` of a span of `all`.
fn wanted(rows: Rows, all: usize, start: usize, tokens: usize) -> usize {
    match rows {
        Rows::None => 0,
        Rows::Last | Rows::Best(_) => usize::from(start + tokens == all),
        Rows::All => tokens,
    }
}

/// Cuts a batch into passes that there is room for. Spans are cut only if `may_cut`; then every pass
/// fits, else a span that does not fit has a pass of its own.
pub(crate) fn passes(batch: &Batch, pager: &Pager, room: &Room, may_cut: bool) -> Vec<Vec<Piece>> {
    let mut passes = Vec::new();
    let mut pass = Vec::new();
    let mut left = *room;
    for (span, data) in batch.spans.iter().enumerate() {
        let all = data.tokens.len();
        let first = pager.len(data.seq) - all;
        let mut start = 0;
        while start < all {
            let mut tokens = (all - start).min(left.rows);
            if may_cut && data.rows == Rows::All {
                tokens = tokens.min(left.wanted);
            }
            let pages = (first + start + tokens).div_ceil(PAGE);
            let fits = tokens > 0
                && (may_cut || tokens == all)
                && pages <= left.pages
                && wanted(data.rows, all, start, tokens) <= left.wanted;
            if !fits && !pass.is_empty() {
                passes.push(std::mem::take(&mut pass));
                left = *room;
                continue;
            }
            if !fits && !may_cut {
                tokens = all;
            }
            pass.push(Piece { span, start, tokens });
            left.rows = left.rows.saturating_sub(tokens);
            left.pages = left.pages.saturating_sub(pages);
            left.wanted = left.wanted.saturating_sub(wanted(data.rows, all, start, tokens));
            start += tokens;
        }
    }
    if !pass.is_empty() {
        passes.push(pass);
    }
    passes
}

/// How much a pass has of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) tokens: u32,
    pub(crate) wanted: u32,
    /// Tokens whose past is split.
    pub(crate) lone: u32,
    /// Parts of their past.
    pub(crate) parts: u32,
    pub(crate) tiles: u32,
    /// Whether each span has one token.
    pub(crate) single: bool,
    /// Whether the best tokens of rows are found.
    pub(crate) best: bool,
    /// Whether that is the best one alone.
    pub(crate) one: bool,
    /// Which of the passes it is that are submitted together.
    pub(crate) turn: u32,
}

impl Sizes {
    pub(crate) fn rows(&self, height: Height) -> u32 {
        match height {
            Height::Tokens => self.tokens,
            Height::Wanted => self.wanted,
        }
    }

    /// Whether products of such rows may find their input stored as integers: there are few rows,
    /// and no tiles, whose kernel does not store them.
    pub(crate) fn integers(&self, height: Height) -> bool {
        self.tiles == 0 && self.rows(height) as usize <= FEW
    }
}

/// The tables of one pass, filled anew each time.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) sizes: Sizes,
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// Where the rows of logits come from.
    pub(crate) origins: Vec<LogitRow>,
    /// The words for the device.
    pub(crate) words: Vec<u32>,
    wanted: Vec<u32>,
    wanted_spans: Vec<u32>,
    /// Of each token position, place, end of its span, and pages.
    places: Vec<u32>,
    spans: Vec<u32>,
    pages: Vec<u32>,
    lone: Vec<u32>,
    tiles: Vec<u32>,
}

impl Tables {
    /// Takes over pieces of a batch whose tokens the pager has already appended; of its rows so many
    /// best tokens are wanted, if not all logits.
    pub(crate) fn set(
        &mut self,
        batch: &Batch,
        pieces: &[Piece],
        pager: &Pager,
        room: &Room,
        best: Option<usize>,
    ) {
        for table in [
            &mut self.tokens,
            &mut self.positions,
            &mut self.wanted,
            &mut self.wanted_spans,
            &mut self.places,
            &mut self.spans,
            &mut self.pages,
            &mut self.lone,
            &mut self.tiles,
        ] {
            table.clear();
        }
        self.origins.clear();
        let mut longest = 0;
        for (index, piece) in pieces.iter().enumerate() {
            longest = longest.max(self.piece(batch, index as u32, piece, pager, room.tile));
        }
        self.join(longest, room, best);
    }

    /// Adds a piece of a sequence; gives the number of pages that its lone tokens look at.
    fn piece(
        &mut self,
        batch: &Batch,
        index: u32,
        piece: &Piece,
        pager: &Pager,
        tile: usize,
    ) -> usize {
        let Piece { span, start, tokens } = *piece;
        let data = &batch.spans[span];
        let position = pager.len(data.seq) - data.tokens.len() + start;
        let end = position + tokens;
        let row = self.tokens.len();
        let all = data.tokens.len();
        let pages = self.pages.len() as u32;
        self.spans.extend([row as u32, tokens as u32, position as u32, pages]);
        let table = &pager.table(data.seq)[..end.div_ceil(PAGE)];
        self.pages.extend(table.iter().map(|page| page.0));
        self.tokens.extend_from_slice(&data.tokens[start..start + tokens]);
        self.positions.extend((position..end).map(|at| at as u32));
        let place = |at: usize| {
            let PageId(page) = table[at / PAGE];
            page * PAGE as u32 + (at % PAGE) as u32
        };
        let places = (position..end).flat_map(|at| [at as u32, place(at), end as u32, pages]);
        self.places.extend(places);
        let wanted = wanted(data.rows, all, start, tokens);
        for token in start + tokens - wanted..start + tokens {
            self.wanted.push((row + token - start) as u32);
            self.wanted_spans.push(index);
            self.origins.push(LogitRow { span, token });
        }
        if tokens < TILED {
            self.lone.extend((row..row + tokens).map(|row| row as u32));
            return table.len();
        }
        self.tiles.extend((0..tokens).step_by(tile).flat_map(|first| [index, first as u32]));
        0
    }

    /// Puts the tables one after another, with the words that say where they are.
    fn join(&mut self, longest: usize, room: &Room, best: Option<usize>) {
        let lone = self.lone.len();
        let most = (room.parts() / lone.max(1)).clamp(1, MOST_PARTS);
        let part_pages = longest.div_ceil(most).max(PART_PAGES);
        self.sizes = Sizes {
            tokens: self.tokens.len() as u32,
            wanted: self.wanted.len() as u32,
            lone: lone as u32,
            parts: longest.div_ceil(part_pages) as u32,
            tiles: (self.tiles.len() / 2) as u32,
            single: self.spans.len() == 4 * self.tokens.len(),
            best: best.is_some(),
            one: best == Some(1),
            turn: 0,
        };
        // Where lists of pages begin.
        let pages = HEADER
            + self.places.len()
            + self.wanted.len()
            + self.wanted_spans.len()
            + self.spans.len();
        let entries = self.places.chunks_exact_mut(4).chain(self.spans.chunks_exact_mut(4));
        entries.for_each(|entry| entry[3] += pages as u32);
        let tables =
            [&self.wanted, &self.wanted_spans, &self.spans, &self.pages, &self.lone, &self.tiles];
        self.words.clear();
        self.words.extend([self.sizes.tokens, self.sizes.wanted]);
        let mut at = HEADER + self.places.len();
        for table in tables {
            self.words.push(at as u32);
            at += table.len();
        }
        let mixed = u32::from(self.sizes.lone != self.sizes.tokens);
        let best = best.unwrap_or(0) as u32;
        self.words.extend([part_pages as u32, self.sizes.parts, mixed, best]);
        debug_assert_eq!(self.words.len(), HEADER);
        self.words.extend_from_slice(&self.places);
        tables.into_iter().for_each(|table| self.words.extend_from_slice(table));
        debug_assert!(self.words.len() <= room.words());
    }
}

#[cfg(test)]
mod tests;
