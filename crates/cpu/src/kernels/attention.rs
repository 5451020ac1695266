//! Attention of a block of queries over keys and values, with the softmax computed page by page
//! (Milakov and Gimelshein 2018, arXiv:1805.02867): no score matrix is ever stored.
//!
//! Pages are taken in parts of [`PART_PAGES`], each summed up by itself and then [joined](join) in order.
//! The boundaries are the same for all tokens, so that a token's result depends neither on which
//! tokens it came with nor on whether other threads did some of the parts.
//!
//! All query heads that share a key-value head are rows of one block, so that keys and values are
//! read once for them.

mod products;

use std::cell::RefCell;
use std::ops::Range;

use baton_graph::{KvType, PageId};

use crate::isa::Isa;
use crate::kv::{HeadPage, KvPages, LayerLayout, NewRows, PAGE, padded, quant};
use crate::simd::{self, Kernel, Map, Simd, dispatch};
use products::{accumulate, scores, widen};

/// From this many rows on, a page is widened to f32 once instead of at each use.
const WIDEN_ROWS: usize = 8;

/// Pages of a part.
const PART_PAGES: usize = 4;

/// How many tokens ahead queries are asked for.
const AHEAD_TOKENS: usize = 2;

/// The parts that some pages are in, each cut to those pages.
pub(crate) fn parts(pages: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let (first, last) = (pages.start, pages.end);
    (first / PART_PAGES..last.div_ceil(PART_PAGES))
        .map(move |part| (part * PART_PAGES).max(first)..((part + 1) * PART_PAGES).min(last))
}

/// How scores are made and which of them count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scoring {
    /// Factor on the scores.
    pub(crate) scale: f32,
    /// Soft cap of the scores.
    pub(crate) softcap: Option<f32>,
    /// Positions that a token sees to either side, itself included.
    pub(crate) window: Option<usize>,
    /// Whether a token sees what comes after it.
    pub(crate) both_ways: bool,
}

impl Scoring {
    /// Positions that the token at `position` sees in a sequence of `end` tokens.
    #[inline]
    pub(crate) fn visible(&self, position: usize, end: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let last = match (self.both_ways, self.window) {
            (false, _) => position + 1,
            (true, None) => end,
            (true, Some(window)) => position.saturating_add(window).min(end),
        };
        first..last
    }
}

/// Where keys and values are.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// In a cache.
    Pages {
        kv: &'a KvPages,
        layer: LayerLayout,
        /// All pages of the sequence.
        table: &'a [PageId],
    },
    /// In the rows of the pass itself, those of a text from `first` on; what is called a page is
    /// then any [`PAGE`] tokens of the text.
    Rows { new: NewRows<'a>, first: usize },
}

/// Consecutive tokens' queries for one key-value head, and the pages they are to look at.
pub(crate) struct Tile<'a> {
    pub(crate) scoring: Scoring,
    pub(crate) source: Source<'a>,
    pub(crate) kv_head: usize,
    pub(crate) head_dim: usize,
    /// The pages to read, by their index in the sequence.
    pub(crate) pages: Range<usize>,
    /// Position of the first token.
    pub(crate) position: usize,
    pub(crate) tokens: usize,
    /// Tokens of the sequence.
    pub(crate) end: usize,
    /// Query heads of the key-value head.
    pub(crate) group: usize,
    /// The first token's queries for the head, side by side; further tokens follow by the stride.
    pub(crate) queries: &'a [f32],
    pub(crate) query_stride: usize,
    /// Logits of the heads' sinks; empty if there are none.
    pub(crate) sinks: &'a [f32],
    /// Whether the pages are one part, which is to be joined with others later.
    pub(crate) is_part: bool,
}

/// Softmax-weighted sums as far as they are computed: rows are `token * group + head`.
#[derive(Default)]
pub(crate) struct Sums {
    /// Greatest score of each row.
    pub(crate) max: Vec<f32>,
    /// Sum of the exponentials, relative to `max`.
    pub(crate) total: Vec<f32>,
    /// Sum of the values by those exponentials, `(rows, stride)`.
    pub(crate) values: Vec<f32>,
}

impl Sums {
    /// Those of nothing, for so many rows.
    fn clear(&mut self, rows: usize, stride: usize) {
        self.max.clear();
        self.max.resize(rows, f32::NEG_INFINITY);
        self.total.clear();
        self.total.resize(rows, 0.0);
        self.values.clear();
        self.values.resize(rows * stride, 0.0);
    }
}

/// A row's sums as far as its parts are joined: the greatest score and the total of the exponentials.
/// A head's sink is a score of its own whose value is zero.
pub(crate) fn start(sinks: &[f32], head: usize) -> (f32, f32) {
    sinks.get(head).map_or((f32::NEG_INFINITY, 0.0), |&sink| (sink, 1.0))
}

/// Adds the sums of a row's next part to those of the parts before.
pub(crate) fn join(
    (max, total): &mut (f32, f32),
    values: &mut [f32],
    (part_max, part_total): (f32, f32),
    part: &[f32],
) {
    // The row sees nothing of that part.
    if part_max == f32::NEG_INFINITY {
        return;
    }
    let new = max.max(part_max);
    let before = if *max == f32::NEG_INFINITY { 0.0 } else { (*max - new).exp() };
    let factor = (part_max - new).exp();
    *total = *total * before + part_total * factor;
    *max = new;
    for (value, part) in values.iter_mut().zip(part) {
        *value = *value * before + part * factor;
    }
}

#[derive(Default)]
struct Scratch {
    sums: Sums,
    joined: Sums,
    queries: Vec<f32>,
    scores: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Attends and hands the sums to `finish`.
pub(crate) fn attend<R>(isa: Isa, tile: &Tile<'_>, finish: impl FnOnce(&Sums) -> R) -> R {
    let rows = tile.tokens * tile.group;
    let (dim, stride) = (tile.head_dim, padded(tile.head_dim));
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { sums, joined, queries, scores, keys, values } = scratch;
        for (buffer, len) in [
            (&mut *queries, rows * dim),
            (&mut *scores, rows * PAGE),
            (&mut *keys, dim * PAGE),
            (&mut *values, PAGE * stride),
        ] {
            buffer.resize(len, 0.0);
        }
        dispatch(isa, Scale { tile, queries });
        joined.clear(rows, stride);
        for row in 0..rows {
            (joined.max[row], joined.total[row]) = start(tile.sinks, row % tile.group);
        }
        for pages in parts(&tile.pages) {
            sums.clear(rows, stride);
            dispatch(isa, Attend { tile, pages, sums, queries, scores, keys, values });
            if tile.is_part {
                return finish(sums);
            }
            for row in 0..rows {
                let mut so_far = (joined.max[row], joined.total[row]);
                let part = (sums.max[row], sums.total[row]);
                let range = row * stride..(row + 1) * stride;
                let values = &mut joined.values[range.clone()];
                join(&mut so_far, values, part, &sums.values[range]);
                (joined.max[row], joined.total[row]) = so_far;
            }
        }
        finish(joined)
    })
}

/// Puts a tile's queries side by side, times the factor on scores.
struct Scale<'a> {
    tile: &'a Tile<'a>,
    queries: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Tile { queries: from, query_stride, group, head_dim, scoring, .. } = *self.tile;
        let len = group * head_dim;
        for (token, to) in self.queries.chunks_exact_mut(len).enumerate() {
            // Tokens lie so far apart that the processor does not see the next one coming.
            let ahead = from.as_ptr().wrapping_add((token + AHEAD_TOKENS) * query_stride);
            for line in (0..len).step_by(16) {
                s.prefetch(ahead.wrapping_add(line).cast());
            }
            to.copy_from_slice(&from[token * query_stride..][..len]);
            let whole = len - len % S::LANES;
            scale(s, scoring.scale, &mut to[..whole]);
            to[whole..].iter_mut().for_each(|x| *x *= scoring.scale);
        }
    }
}

struct Attend<'a> {
    tile: &'a Tile<'a>,
    pages: Range<usize>,
    sums: &'a mut Sums,
    queries: &'a [f32],
    scores: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attend { tile, pages, sums, queries, scores: score, keys, values } = self;
        let Tile { scoring, tokens, group, position, .. } = *tile;
        let stride = padded(tile.head_dim);
        let rows = tokens * group;
        let seen = scoring.visible(position, tile.end).start
            ..scoring.visible(position + tokens - 1, tile.end).end;
        for index in pages {
            let start = index * PAGE;
            // Within the page: tokens that some row sees, and whole vectors around them.
            let first = seen.start.saturating_sub(start).min(PAGE);
            let end = seen.end.saturating_sub(start).min(PAGE);
            if first >= end {
                continue;
            }
            let cols = end.next_multiple_of(32).min(PAGE);
            let half = tile.load(s, index, cols, first..end, keys, values);
            match half {
                None => scores(s, queries, keys, cols, score),
                Some(half) => scores(s, queries, half.keys, cols, score),
            }
            for row in 0..rows {
                let visible = scoring.visible(position + row / group, tile.end);
                let visible = visible.start.saturating_sub(start).min(PAGE)
                    ..visible.end.saturating_sub(start).min(PAGE);
                let score = &mut score[row * PAGE..][..cols];
                let factor = softmax(
                    s,
                    score,
                    visible,
                    scoring.softcap,
                    &mut sums.max[row],
                    &mut sums.total[row],
                );
                if factor != 1.0 {
                    scale(s, factor, &mut sums.values[row * stride..][..stride]);
                }
            }
            match half {
                None => accumulate(s, score, first..end, values, stride, &mut sums.values),
                Some(half) => {
                    accumulate(s, score, first..end, half.values, stride, &mut sums.values);
                }
            }
        }
    }
}

impl Tile<'_> {
    /// Widens page `index` of keys and values, as far as it is used: of the keys the first `cols`
    /// tokens, of the values those in `used`. A page of f16 that is worth no such trouble is returned
    /// as it is.
    #[inline(always)]
    fn load<S: Simd>(
        &self,
        s: S,
        index: usize,
        cols: usize,
        used: Range<usize>,
        keys: &mut [f32],
        values: &mut [f32],
    ) -> Option<HeadPage<'_>> {
        let (dim, stride) = (self.head_dim, padded(self.head_dim));
        let (kv, layer, table) = match self.source {
            Source::Pages { kv, layer, table } => (kv, layer, table),
            Source::Rows { new, first } => {
                // Keys of other tokens stay what they were; nobody sees their scores.
                let offset = self.kv_head * dim;
                for at in used {
                    let row = first + index * PAGE + at;
                    let key = &new.keys[row * new.key_stride + offset..][..dim];
                    key.iter().enumerate().for_each(|(d, &key)| keys[d * PAGE + at] = key);
                    let value = &new.values[row * new.value_stride + offset..][..dim];
                    values[at * stride..][..dim].copy_from_slice(value);
                }
                return None;
            }
        };
        let half = kv.head(table[index], &layer, self.kv_head);
        if layer.kind != KvType::F16 {
            quant::keys(layer.kind, half.keys, cols, keys);
            quant::values(layer.kind, half.values, used, stride, values);
        } else if self.tokens * self.group >= WIDEN_ROWS {
            for d in 0..dim {
                widen(s, &half.keys[d * PAGE..][..cols], &mut keys[d * PAGE..][..cols]);
            }
            let used = used.start * stride..used.end * stride;
            widen(s, &half.values[used.clone()], &mut values[used]);
        } else {
            return Some(half);
        }
        None
    }
}

struct Softcap(f32);
impl Map for Softcap {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        s.mul(simd::tanh(s, s.div(x, s.splat(self.0))), s.splat(self.0))
    }
}

/// Turns a row of scores, a multiple of 16 of them, into exponentials relative to the new maximum,
/// those that are not visible into 0. Returns the factor for what was summed up before.
#[inline(always)]
fn softmax<S: Simd>(
    s: S,
    scores: &mut [f32],
    visible: Range<usize>,
    softcap: Option<f32>,
    max: &mut f32,
    total: &mut f32,
) -> f32 {
    if visible.is_empty() {
        scores.fill(0.0);
        return 1.0;
    }
    if let Some(cap) = softcap {
        simd::map(s, &Softcap(cap), None, scores);
    }
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    let mut greatest = s.splat(*max);
    for part in scores.chunks_exact(S::LANES) {
        greatest = s.max(greatest, s.load(part));
    }
    let new = s.greatest(greatest);
    // With nothing but infinities the differences below would be NaN.
    let shift = if new == f32::NEG_INFINITY { 0.0 } else { new };
    let mut sum = s.splat(0.0);
    for part in scores.chunks_exact_mut(S::LANES) {
        let weight = simd::exp(s, s.sub(s.load(part), s.splat(shift)));
        sum = s.add(sum, weight);
        s.store(part, weight);
    }
    let factor = if *max == new { 1.0 } else { (*max - shift).exp() };
    *total = *total * factor + s.sum(sum);
    *max = new;
    factor
}

#[inline(always)]
fn scale<S: Simd>(s: S, by: f32, x: &mut [f32]) {
    for part in x.chunks_exact_mut(S::LANES) {
        let scaled = s.mul(s.load(part), s.splat(by));
        s.store(part, scaled);
    }
}
