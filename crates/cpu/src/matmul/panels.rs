//! The order of work that all integer kernels share: panels of neighbouring matrix rows against
//! tiles of tokens.
//!
//! With few tokens, a panel is multiplied as it is kept. With more, some panels, or parts of long
//! ones, are first unpacked, as many as stay in the caches near the core, and then meet one tile of
//! tokens after the other.

use std::ops::Range;

use super::formats::{BLOCK, Format, Part};
use super::packed::{CHUNKS, Panel};
use super::scratch::Scratch;
use super::vectors::{Source, Vectors, offset};
use super::work::Work;
use crate::quant::{Block, CHUNK, HIGH, Outlier, PART};

/// Most rows that a panel has.
const MOST_ROWS: usize = 32;
/// Tokens that meet a panel together.
const TILE: usize = 4;
/// Most tokens that meet panels as they are kept.
const MOST_KEPT: usize = 8;

/// An unpacked panel: a byte for each integer, in the kept order; a scale for each row and group, and as many minima for formats that have them.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<'a> {
    /// The panel's block that comes first.
    pub(super) first: usize,
    pub(super) integers: &'a [u8],
    pub(super) scale: &'a [f32],
    pub(super) min: &'a [f32],
}

/// A quantized row.
#[derive(Clone, Copy)]
pub(super) struct Token {
    blocks: *const Block,
    outliers: *const Outlier,
    counts: *const u32,
}

/// All functions of a block: the row must have it.
impl Token {
    /// Quantized row `row` of the work's activations.
    #[inline(always)]
    fn new(work: &Work<'_>, row: usize) -> Token {
        let x = work.x.quantized.expect("checked before");
        let blocks = work.x.cols / BLOCK;
        Token {
            blocks: x.blocks[row * blocks..(row + 1) * blocks].as_ptr(),
            outliers: x.outliers[row * blocks * CHUNKS..(row + 1) * blocks * CHUNKS].as_ptr(),
            counts: x.counts[row * x.parts()..(row + 1) * x.parts()].as_ptr(),
        }
    }

    /// What is read of a block.
    #[inline(always)]
    pub(super) unsafe fn block(&self, block: usize) -> &Block {
        // SAFETY: as demanded of the caller, here and below.
        unsafe { &*self.blocks.add(block) }
    }

    /// The sum of the negated integers of a group.
    #[inline(always)]
    pub(super) unsafe fn minus<F: Format>(&self, block: usize, part: usize) -> i32 {
        // SAFETY: see `block`.
        let block = unsafe { self.block(block) };
        if F::GROUP == BLOCK { block.minus32 } else { block.minus16[part] }
    }

    /// What the weights' [`offset`] takes from the sum of a group's products.
    #[inline(always)]
    pub(super) unsafe fn correction<F: Format, V: Vectors>(
        &self,
        block: usize,
        part: usize,
    ) -> i32 {
        if offset::<F, V>() == 0 {
            return 0;
        }
        // SAFETY: see `block`.
        offset::<F, V>() * unsafe { self.minus::<F>(block, part) }
    }

    /// The sum of a group's integers, times the scale.
    #[inline(always)]
    unsafe fn scaled<F: Format>(&self, block: usize, part: usize) -> f32 {
        // SAFETY: see `block`.
        let block = unsafe { self.block(block) };
        if F::GROUP == BLOCK { block.scaled32 } else { block.scaled16[part] }
    }

    /// The low parts of the four columns of a chunk of a block.
    #[inline(always)]
    pub(super) unsafe fn low(&self, block: usize, chunk: usize) -> i32 {
        // SAFETY: see `block`.
        unsafe { self.block(block).low.as_ptr().add(CHUNK * chunk).cast::<i32>().read_unaligned() }
    }

    /// The outliers of the part that starts with a block.
    #[inline(always)]
    unsafe fn outliers(&self, block: usize) -> &[Outlier] {
        // SAFETY: see `block`.
        unsafe {
            let count = *self.counts.add(block / PART) as usize;
            std::slice::from_raw_parts(self.outliers.add(block * CHUNKS), count)
        }
    }
}

/// Quantized rows of the work's tokens.
fn rows_of(work: &Work<'_>) -> usize {
    work.job.tokens.len() * work.x.quantized.expect("checked before").passes
}

/// Does the work, which is of format `F`, with vectors `V`.
///
/// # Safety
/// The machine must have the vectors' instruction set. This function is to be inlined into one that
/// is compiled for it.
#[inline(always)]
pub(super) unsafe fn run<F: Format, V: Vectors>(work: &Work<'_>, scratch: &mut Scratch) {
    let (tokens, cols) = (rows_of(work), work.x.cols);
    let packed = work.job.matrix.packed();
    assert_eq!(packed.rows(), V::ROWS, "the matrix was packed for another instruction set");
    let blocks = cols / BLOCK;
    if tokens <= MOST_KEPT {
        for row in work.rows.clone().step_by(V::ROWS) {
            let panel = packed.panel(row / V::ROWS);
            for token in (0..tokens).step_by(TILE) {
                let tile = Tile::new(work, token);
                // SAFETY: the caller's machine has the instructions.
                unsafe { tile.run::<F, V, _>(work, row, panel, 0..blocks, &mut []) };
            }
        }
        return;
    }

    let part = blocks.min(PART);
    // Bytes of integers, and scales, of that part of a panel, and sums of a panel.
    let (size, scales) = (V::ROWS * part * BLOCK, V::ROWS * part * (BLOCK / F::GROUP));
    let sums = V::ROWS * tokens.next_multiple_of(TILE);
    let together = (V::UNPACKED_BYTES / size).max(1);
    let integers = scratch.integers.bytes(together * size);
    let scale = scratch.scale.floats(together * scales);
    let min = scratch.min.floats(if F::MIN { together * scales } else { 0 });
    let totals = scratch.totals.floats(if part < blocks { together * sums } else { 0 });
    let mins = |i: usize| if F::MIN { i * scales..(i + 1) * scales } else { 0..0 };
    for first in work.rows.clone().step_by(together * V::ROWS) {
        let last = (first + together * V::ROWS).min(work.rows.end);
        let starts = || (first..last).step_by(V::ROWS).enumerate();
        for start in (0..blocks).step_by(part) {
            let part = start..(start + part).min(blocks);
            for (i, row) in starts() {
                let integers = &mut integers[i * size..(i + 1) * size];
                let scale = &mut scale[i * scales..(i + 1) * scales];
                let panel = packed.panel(row / V::ROWS);
                // SAFETY: the caller's machine has the instructions.
                unsafe {
                    unpack::<F, V>(panel, part.clone(), integers, scale, &mut min[mins(i)]);
                }
            }
            for token in (0..tokens).step_by(TILE) {
                let tile = Tile::new(work, token);
                for (i, row) in starts() {
                    let panel = Unpacked {
                        first: start,
                        integers: &integers[i * size..(i + 1) * size],
                        scale: &scale[i * scales..(i + 1) * scales],
                        min: &min[mins(i)],
                    };
                    let at = i * sums + token * V::ROWS;
                    let totals = totals.get_mut(at..at + TILE * V::ROWS).unwrap_or_default();
                    // SAFETY: the caller's machine has the instructions.
                    unsafe { tile.run::<F, V, _>(work, row, panel, part.clone(), totals) };
                }
            }
        }
    }
}

/// Unpacks some blocks of a panel.
#[inline(always)]
unsafe fn unpack<F: Format, V: Vectors>(
    panel: Panel<'_>,
    blocks: Range<usize>,
    integers: &mut [u8],
    scale: &mut [f32],
    min: &mut [f32],
) {
    for (block, out) in blocks.clone().zip(integers.chunks_exact_mut(V::ROWS * BLOCK)) {
        for (chunk, out) in out.chunks_exact_mut(V::ROWS * BLOCK / CHUNKS).enumerate() {
            // SAFETY: the block is inside the panel, and there is room for a chunk.
            unsafe {
                let integers = Source::<F, V>::integers(panel, block, chunk);
                V::store_bytes(out.as_mut_ptr(), integers);
            }
        }
    }
    let groups = blocks.start * (BLOCK / F::GROUP)..blocks.end * (BLOCK / F::GROUP);
    for (part, out) in [(Part::Scale, scale), (Part::Min, min)] {
        for (group, out) in groups.clone().zip(out.chunks_exact_mut(V::ROWS)) {
            // SAFETY: the group is inside the panel, and there is room for a number of each row.
            unsafe {
                let numbers = Source::<F, V>::part(panel, part, group);
                V::store_floats(out.as_mut_ptr(), numbers);
            }
        }
    }
}

/// Quantized rows that meet panels together.
struct Tile {
    /// The number of the first among those of the work's tokens, and how many there are.
    first: usize,
    count: usize,
    /// How many stand for a token.
    passes: usize,
    /// Those past the end repeat the last; their products are dropped.
    tokens: [Token; TILE],
}

impl Tile {
    /// Those from number `first` on, as many as make a tile.
    #[inline(always)]
    fn new(work: &Work<'_>, first: usize) -> Tile {
        let passes = work.x.quantized.expect("checked before").passes;
        let count = (rows_of(work) - first).min(TILE);
        let token = |t: usize| {
            let number = first + t.min(count - 1);
            Token::new(work, work.job.tokens.row(number / passes) * passes + number % passes)
        };
        Tile { first, count, passes, tokens: [token(0), token(1), token(2), token(3)] }
    }

    /// Products with some blocks of a panel, which starts at matrix row `row`. From the first blocks to
    /// the last the sums are carried in `totals`.
    #[inline(always)]
    unsafe fn run<F: Format, V: Vectors, S: Source<F, V>>(
        &self,
        work: &Work<'_>,
        row: usize,
        panel: S,
        blocks: Range<usize>,
        totals: &mut [f32],
    ) {
        // SAFETY: passed on.
        unsafe {
            // Behind many tokens a last tile that is not full costs little, and a function less.
            match self.count {
                1 if S::KEPT => self.run_of::<F, V, S, 1>(work, row, panel, blocks, totals),
                2 if S::KEPT => self.run_of::<F, V, S, 2>(work, row, panel, blocks, totals),
                _ => self.run_of::<F, V, S, TILE>(work, row, panel, blocks, totals),
            }
        }
    }

    /// The same for the first `T` rows.
    ///
    /// In each part first the groups are added up in order, each as `scale * activation_scale *
    /// integers`, then its minimum; then the outliers: so that a token's result does not depend on the
    /// tile that it is in.
    #[inline(always)]
    unsafe fn run_of<F: Format, V: Vectors, S: Source<F, V>, const T: usize>(
        &self,
        work: &Work<'_>,
        row: usize,
        panel: S,
        blocks: Range<usize>,
        carried: &mut [f32],
    ) {
        let tokens: &[Token; T] = self.tokens.first_chunk().expect("no more than a tile");
        let groups = BLOCK / F::GROUP;
        // SAFETY: blocks and groups are inside the panel and the activation rows.
        unsafe {
            let mut totals = [V::splat(0.0); T];
            if blocks.start > 0 {
                for t in 0..T {
                    totals[t] = V::floats(carried[t * V::ROWS..(t + 1) * V::ROWS].as_ptr());
                }
            }
            let mut start = blocks.start;
            while start < blocks.end {
                let end = blocks.end.min(start + PART);
                for block in start..end {
                    panel.prefetch(block);
                    for part in 0..groups {
                        let sums = V::sums::<F, S, T>(panel, tokens, block, part);
                        let group = block * groups + part;
                        let scale = panel.part(Part::Scale, group);
                        for t in 0..T {
                            let scale = V::mul(scale, V::splat(tokens[t].block(block).scale));
                            totals[t] = V::mul_add(scale, sums[t], totals[t]);
                        }
                        if F::MIN {
                            let min = panel.part(Part::Min, group);
                            for t in 0..T {
                                let x_sum = V::splat(tokens[t].scaled::<F>(block, part));
                                totals[t] = V::mul_add(min, x_sum, totals[t]);
                            }
                        }
                    }
                }
                for t in 0..T {
                    totals[t] = with_outliers::<F, V, S>(panel, &tokens[t], start, totals[t]);
                }
                start = end;
            }
            if blocks.end < work.x.cols / BLOCK {
                for (total, carried) in totals.iter().zip(carried.chunks_exact_mut(V::ROWS)) {
                    V::store_floats(carried.as_mut_ptr(), *total);
                }
                return;
            }
            if self.passes == 1 {
                for (t, total) in totals.iter().enumerate().take(self.count) {
                    store::<V>(work, self.first + t, row, *total);
                }
            } else {
                for t in (0..T.min(self.count)).step_by(2) {
                    let sum = add::<V>(totals[t], totals[t + 1]);
                    store::<V>(work, (self.first + t) / 2, row, sum);
                }
            }
        }
    }
}

/// The sum of two vectors.
#[inline(always)]
unsafe fn add<V: Vectors>(a: V::Floats, b: V::Floats) -> V::Floats {
    // SAFETY: passed on.
    unsafe { V::mul_add(a, V::splat(1.0), b) }
}

/// Stores the products of a token with a panel, which starts at matrix row `row`.
#[inline(always)]
unsafe fn store<V: Vectors>(work: &Work<'_>, token: usize, row: usize, mut products: V::Floats) {
    // SAFETY: passed on; slices are as long as vectors.
    unsafe {
        if work.rows.end - row < V::ROWS {
            let mut array = [0.0f32; MOST_ROWS];
            V::store_floats(array.as_mut_ptr(), products);
            work.store(token, row, &array[..V::ROWS]);
            return;
        }
        let (out, bias, accumulate) = work.place(token, row, V::ROWS);
        if let Some(bias) = bias {
            products = add::<V>(products, V::floats(bias.as_ptr()));
        }
        if accumulate {
            products = add::<V>(products, V::floats(out.as_ptr()));
        }
        V::store_floats(out.as_mut_ptr(), products);
    }
}

/// Adds a token's outliers in the part of a panel that starts with a block.
#[inline(always)]
unsafe fn with_outliers<F: Format, V: Vectors, S: Source<F, V>>(
    panel: S,
    token: &Token,
    start: usize,
    mut total: V::Floats,
) -> V::Floats {
    // SAFETY: passed on; the chunks are in the part.
    unsafe {
        for outlier in token.outliers(start) {
            let (block, chunk) = (outlier.chunk as usize / CHUNKS, outlier.chunk as usize % CHUNKS);
            let scale = HIGH as f32 * token.block(block).scale;
            let group = (outlier.chunk as usize * CHUNK) / F::GROUP;
            let scale = V::mul(panel.part(Part::Scale, group), V::splat(scale));
            let sums = V::dot::<F, S>(
                panel,
                block,
                chunk,
                i32::from_ne_bytes(outlier.high.map(|v| v as u8)),
            );
            total = V::mul_add(scale, sums, total);
        }
    }
    total
}
