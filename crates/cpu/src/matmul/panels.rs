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

/// Most blocks of a panel that are unpacked together: a tile of activations as long stays in the
/// nearest cache.
const PART_BLOCKS: usize = 64;
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

/// Where the parts of one activation row lie.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// For each block, 32 high and 32 low parts: see [`crate::quant`].
    pub(super) values: *const i8,
    /// A scale for each block.
    pub(super) scale: *const f32,
    /// Whether the block has high parts that are not zero.
    fine: *const bool,
    /// The negated integers' sum for each group of the weights' format.
    pub(super) minus: *const i32,
    /// The integers' sum, times the scale.
    pub(super) scaled: *const f32,
}

impl Token {
    /// The parts of the work's token `token`.
    #[inline(always)]
    fn new<F: Format>(work: &Work<'_>, token: usize) -> Token {
        let x = work.x.quantized.expect("checked before");
        let (row, cols) = (work.job.tokens.row(token), work.x.cols);
        let (minus, scaled) =
            if F::GROUP == BLOCK { (&x.minus32, &x.scaled32) } else { (&x.minus16, &x.scaled16) };
        let groups = row * (cols / F::GROUP)..(row + 1) * (cols / F::GROUP);
        Token {
            values: x.values[2 * row * cols..2 * (row + 1) * cols].as_ptr(),
            scale: x.scale[row * (cols / BLOCK)..(row + 1) * (cols / BLOCK)].as_ptr(),
            fine: x.fine[row * (cols / BLOCK)..(row + 1) * (cols / BLOCK)].as_ptr(),
            minus: minus[groups.clone()].as_ptr(),
            scaled: scaled[groups].as_ptr(),
        }
    }

    /// What the weights' [`offset`] takes from the sum of a group's products.
    ///
    /// # Safety
    /// The activation row must have that group.
    #[inline(always)]
    pub(super) unsafe fn correction<F: Format, V: Vectors>(&self, group: usize) -> i32 {
        // SAFETY: as demanded of the caller.
        if offset::<F, V>() == 0 { 0 } else { offset::<F, V>() * unsafe { *self.minus.add(group) } }
    }

    /// Whether the block has high parts that are not zero.
    ///
    /// # Safety
    /// The activation row must have that block.
    #[inline(always)]
    pub(super) unsafe fn is_fine(&self, block: usize) -> bool {
        // SAFETY: as demanded of the caller.
        unsafe { *self.fine.add(block) }
    }

    /// The high parts of the four columns of a chunk of a block.
    ///
    /// # Safety
    /// As for [`Token::is_fine`].
    #[inline(always)]
    pub(super) unsafe fn high(&self, block: usize, chunk: usize) -> i32 {
        // SAFETY: as demanded of the caller.
        unsafe { self.values.add(2 * block * BLOCK + 4 * chunk).cast::<i32>().read_unaligned() }
    }

    /// The low parts.
    ///
    /// # Safety
    /// As for [`Token::is_fine`].
    #[inline(always)]
    pub(super) unsafe fn low(&self, block: usize, chunk: usize) -> i32 {
        // SAFETY: as demanded of the caller.
        unsafe {
            self.values.add((2 * block + 1) * BLOCK + 4 * chunk).cast::<i32>().read_unaligned()
        }
    }
}

/// Does the work, which is of format `F`, with vectors `V`.
///
/// # Safety
/// The machine must have the vectors' instruction set. This function is to be inlined into one that
/// is compiled for it.
#[inline(always)]
pub(super) unsafe fn run<F: Format, V: Vectors>(work: &Work<'_>, scratch: &mut Scratch) {
    let (tokens, cols) = (work.job.tokens.len(), work.x.cols);
    let packed = work.job.matrix.packed();
    assert_eq!(packed.rows(), V::ROWS, "the matrix was packed for another instruction set");
    let blocks = cols / BLOCK;
    if tokens <= MOST_KEPT {
        for row in work.rows.clone().step_by(V::ROWS) {
            let panel = packed.panel(row / V::ROWS);
            for token in (0..tokens).step_by(TILE) {
                // SAFETY: the caller's machine has the instructions.
                unsafe { tile::<F, V, _>(work, row, panel, token, 0..blocks, &mut []) };
            }
        }
        return;
    }

    let part = blocks.min(PART_BLOCKS);
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
                    unsafe { tile::<F, V, _>(work, row, panel, token, part.clone(), totals) };
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

/// Products of some blocks of a panel, which starts at matrix row `row`, with the work's tokens from
/// number `first` on, as many as make a tile. From the first blocks to the last the sums are carried
/// in `totals`.
#[inline(always)]
unsafe fn tile<F: Format, V: Vectors, S: Source<F, V>>(
    work: &Work<'_>,
    row: usize,
    panel: S,
    first: usize,
    blocks: Range<usize>,
    totals: &mut [f32],
) {
    let count = (work.job.tokens.len() - first).min(TILE);
    // SAFETY: passed on.
    unsafe {
        // Behind many tokens a last tile that is not full costs little, and a function less.
        match count {
            1 if S::KEPT => tile_of::<F, V, S, 1>(work, row, panel, first, count, blocks, totals),
            2 if S::KEPT => tile_of::<F, V, S, 2>(work, row, panel, first, count, blocks, totals),
            _ => tile_of::<F, V, S, TILE>(work, row, panel, first, count, blocks, totals),
        }
    }
}

/// The same for `count` tokens, at most `T`.
///
/// Groups are added up in order, each as `scale * activation_scale * integers`, then its minimum,
/// so that a token's result does not depend on the tile that it is in.
#[inline(always)]
unsafe fn tile_of<F: Format, V: Vectors, S: Source<F, V>, const T: usize>(
    work: &Work<'_>,
    row: usize,
    panel: S,
    first: usize,
    count: usize,
    blocks: Range<usize>,
    carried: &mut [f32],
) {
    // Tokens past the end repeat the last; their products are dropped.
    let tokens: [Token; T] =
        std::array::from_fn(|t| Token::new::<F>(work, first + t.min(count - 1)));
    let groups = BLOCK / F::GROUP;
    // SAFETY: blocks and groups are inside the panel and the activation rows.
    unsafe {
        let mut totals = [V::splat(0.0); T];
        if blocks.start > 0 {
            for t in 0..T {
                totals[t] = V::floats(carried[t * V::ROWS..(t + 1) * V::ROWS].as_ptr());
            }
        }
        for block in blocks.clone() {
            panel.prefetch(block);
            let mut fine = false;
            for token in &tokens {
                fine |= token.is_fine(block);
            }
            for part in 0..groups {
                let group = block * groups + part;
                let sums = V::sums::<F, S, T>(panel, &tokens, block, part, fine);
                let scale = panel.part(Part::Scale, group);
                for t in 0..T {
                    let scale = V::mul(scale, V::splat(*tokens[t].scale.add(block)));
                    totals[t] = V::mul_add(scale, sums[t], totals[t]);
                }
                if F::MIN {
                    let min = panel.part(Part::Min, group);
                    for t in 0..T {
                        let x_sum = V::splat(*tokens[t].scaled.add(group));
                        totals[t] = V::mul_add(min, x_sum, totals[t]);
                    }
                }
            }
        }
        if blocks.end < work.x.cols / BLOCK {
            for (total, carried) in totals.iter().zip(carried.chunks_exact_mut(V::ROWS)) {
                V::store_floats(carried.as_mut_ptr(), *total);
            }
            return;
        }
        for (t, total) in totals.iter().enumerate().take(count) {
            let mut products = [0.0f32; MOST_ROWS];
            V::store_floats(products.as_mut_ptr(), *total);
            work.store(first + t, row, &products[..V::ROWS]);
        }
    }
}
