//! The cache of an executor: keys and values by position, which is what other units are handed.

use std::ops::Range;

use baton_graph::{ExecError, Graph, KvBlock, Limits, Pager, SeqId};
use half::f16;

/// Positions of a page: with one a sequence never shares a part of it.
const PAGE: usize = 1;

/// Keys and values of every sequence.
#[derive(Debug)]
pub(crate) struct Pages {
    pub pager: Pager,
    /// Keys, then values, of a position, each `(layers, heads, features)`.
    pages: Vec<Option<Box<[f16]>>>,
    /// Layers, heads and features, or nothing.
    cache: [usize; 3],
}

/// Some rows of a tensor `(layers, heads, places, features)`, which may be larger than the cache is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Of the tensor, the layer that comes first.
    first: usize,
    heads: usize,
    places: usize,
}

impl Grid {
    /// The rows of a tensor of that shape, if it can hold these layers of such a cache.
    fn of(shape: &[usize], layers: Range<usize>, [_, heads, width]: [usize; 3]) -> Option<Grid> {
        let &[l, h, places, w] = shape else { return None };
        let fits = l >= layers.end && h >= heads && w >= width;
        fits.then_some(Grid { first: layers.start, heads: h, places })
    }

    fn row(self, layer: usize, head: usize, place: usize) -> usize {
        ((self.first + layer) * self.heads + head) * self.places + place
    }
}

impl Pages {
    pub fn new(cache: Option<[usize; 3]>, limits: &Limits) -> Pages {
        let pager = Pager::new(PAGE, limits);
        Pages { pages: vec![None; pager.pages()], pager, cache: cache.unwrap_or([0; 3]) }
    }

    /// How rows lie in a tensor for some layers, of which the first is at its beginning.
    pub fn grid(&self, shape: &[usize], layers: usize) -> Option<Grid> {
        self.grid_at(shape, 0..layers)
    }

    /// As [`Pages::grid`], for layers of the tensor that do not begin it.
    pub fn grid_at(&self, shape: &[usize], layers: Range<usize>) -> Option<Grid> {
        Grid::of(shape, layers, self.cache)
    }

    /// Elements of the keys, or of the values, of a position.
    fn per_position(&self) -> usize {
        self.cache.iter().product()
    }

    fn page(&self, seq: SeqId, position: usize) -> &[f16] {
        let (page, _) = self.pager.locate(seq, position);
        self.pages[page.0 as usize].as_deref().expect("positions are written before they are read")
    }

    fn page_mut(&mut self, seq: SeqId, position: usize) -> &mut [f16] {
        let (page, _) = self.pager.locate(seq, position);
        let len = 2 * self.per_position();
        let page = &mut self.pages[page.0 as usize];
        page.get_or_insert_with(|| vec![f16::ZERO; len].into())
    }

    /// Where the keys (`which` 0) or values (1) of some layers lie in a page.
    fn part(&self, which: usize, layers: &Range<usize>) -> Range<usize> {
        let [_, heads, width] = self.cache;
        let first = which * self.per_position();
        first + layers.start * heads * width..first + layers.end * heads * width
    }

    /// The keys or values of some layers at some positions, each with the row of a tensor that it
    /// belongs into.
    pub fn rows(
        &self,
        seq: SeqId,
        which: usize,
        layers: &Range<usize>,
        positions: Range<usize>,
        grid: Grid,
    ) -> impl Iterator<Item = (usize, &[f16])> {
        let [_, heads, width] = self.cache;
        let part = self.part(which, layers);
        positions.flat_map(move |position| {
            let rows = self.page(seq, position)[part.clone()].chunks_exact(width);
            let row = move |i: usize| grid.row(i / heads, i % heads, position);
            rows.enumerate().map(move |(i, values)| (row(i), values))
        })
    }

    /// The keys or values of some layers at a position, to be filled from place `place` of a tensor.
    pub fn rows_mut(
        &mut self,
        (seq, position): (SeqId, usize),
        which: usize,
        layers: &Range<usize>,
        place: usize,
        grid: Grid,
    ) -> impl Iterator<Item = (usize, &mut [f16])> {
        let [_, heads, width] = self.cache;
        let part = self.part(which, layers);
        let rows = self.page_mut(seq, position)[part].chunks_exact_mut(width);
        rows.enumerate().map(move |(i, values)| (grid.row(i / heads, i % heads, place), values))
    }

    pub fn export(
        &self,
        graph: &Graph,
        seq: SeqId,
        range: Range<usize>,
    ) -> Result<KvBlock, ExecError> {
        let mut block = KvBlock::for_range(graph, seq, self.pager.len(seq), &range)?;
        let (each, width, heads) = (self.per_position(), block.head_dim, block.kv_heads);
        for (token, position) in range.enumerate() {
            let page = self.page(seq, position);
            for (i, row) in page.chunks_exact(width).enumerate() {
                let head = i % (each / width);
                let at = block.offset(head / heads, head % heads, token);
                let part = if i < each / width { &mut block.keys } else { &mut block.values };
                part[at..at + width].copy_from_slice(row);
            }
        }
        Ok(block)
    }

    /// Appends a block that was checked to be the graph's.
    pub fn import(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        KvBlock::check_position(at, self.pager.len(seq))?;
        self.pager.append(&[(seq, block.tokens)])?;
        let (each, width, heads) = (self.per_position(), block.head_dim, block.kv_heads);
        for token in 0..block.tokens {
            for (i, row) in self.page_mut(seq, at + token).chunks_exact_mut(width).enumerate() {
                let head = i % (each / width);
                let from = block.offset(head / heads, head % heads, token);
                let part = if i < each / width { &block.keys } else { &block.values };
                row.copy_from_slice(&part[from..from + width]);
            }
        }
        Ok(())
    }

    /// Bytes of the pages that were ever written.
    pub fn bytes(&self) -> usize {
        self.pages.iter().flatten().count() * 4 * self.per_position()
    }

    /// Positions in use.
    pub fn tokens(&self) -> usize {
        (self.pager.pages() - self.pager.free_pages()) * PAGE
    }
}
