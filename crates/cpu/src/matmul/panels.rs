//! The order of work that all integer kernels share: panels of neighbouring matrix rows against
//! tiles of tokens.
//!
//! With few tokens, a panel is multiplied as it is kept. With more, some panels are first unpacked,
//! as many as stay in the caches near the core, and then meet one tile of tokens after the other.

use super::formats::{BLOCK, Format};
use super::packed::Panel;
use super::scratch::Scratch;
use super::work::Work;

/// Bytes of unpacked panels that are used together: what the caches near the core hold.
const UNPACKED_BYTES: usize = 24 << 10;
/// Most tokens that a tile has.
const MOST_TOKENS: usize = 8;

/// What a family of kernels does with one panel of a format.
///
/// # Safety
/// All functions need the instruction set that the kernel is made for.
pub(super) trait Kernel<F: Format> {
    /// Rows of a panel, at most 16.
    const ROWS: usize;
    /// Tokens that meet a panel together, at most 8. With more, panels are unpacked.
    const TILE: usize;

    /// Unpacks a panel of `blocks` blocks: a byte for each integer, in the kept order, and single
    /// precision for each scale and minimum.
    unsafe fn unpack(panel: Panel<'_>, blocks: usize, out: Unpacking<'_>);
    /// Multiplies the panel that starts at matrix row `row` with `tokens`, the work's tokens from
    /// number `first` on.
    unsafe fn kept(work: &Work<'_>, row: usize, panel: Panel<'_>, first: usize, tokens: &[Token]);
    /// As `kept` with an unpacked panel.
    unsafe fn tile(
        work: &Work<'_>,
        row: usize,
        panel: Unpacked<'_>,
        first: usize,
        tokens: &[Token],
    );
}

/// An unpacked panel: `ROWS` scales for each group, and as many minima for formats that have them.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<'a> {
    pub(super) integers: &'a [u8],
    pub(super) scale: &'a [f32],
    pub(super) min: &'a [f32],
}

/// Where one is made.
pub(super) struct Unpacking<'a> {
    pub(super) integers: &'a mut [u8],
    pub(super) scale: &'a mut [f32],
    pub(super) min: &'a mut [f32],
}

/// Where the parts of one activation row lie.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// For each block, 32 high and 32 low parts: see [`crate::quant`].
    pub(super) values: *const i8,
    /// A scale for each block.
    pub(super) scale: *const f32,
    /// The integers' sum for each group of the weights' format.
    pub(super) sum: *const f32,
    /// The same times the scale.
    pub(super) scaled: *const f32,
}

impl Token {
    /// The parts of the work's token `token`.
    #[inline(always)]
    fn new<F: Format>(work: &Work<'_>, token: usize) -> Token {
        let x = work.x.quantized.expect("checked before");
        let (row, cols) = (work.job.tokens.row(token), work.x.cols);
        let (sum, scaled) =
            if F::GROUP == BLOCK { (&x.sum32, &x.scaled32) } else { (&x.sum16, &x.scaled16) };
        let groups = row * (cols / F::GROUP)..(row + 1) * (cols / F::GROUP);
        Token {
            values: x.values[2 * row * cols..2 * (row + 1) * cols].as_ptr(),
            scale: x.scale[row * (cols / BLOCK)..(row + 1) * (cols / BLOCK)].as_ptr(),
            sum: sum[groups.clone()].as_ptr(),
            scaled: scaled[groups].as_ptr(),
        }
    }
}

/// A tile as wide as a kernel wants it: tokens past the end repeat the last.
#[inline(always)]
pub(super) fn widened<const T: usize>(tokens: &[Token]) -> [Token; T] {
    std::array::from_fn(|t| tokens[t.min(tokens.len() - 1)])
}

/// Does the work.
///
/// # Safety
/// The machine must have the kernel's instruction set.
pub(super) unsafe fn run<F: Format, K: Kernel<F>>(work: &Work<'_>, scratch: &mut Scratch) {
    let (tokens, cols) = (work.job.tokens.len(), work.x.cols);
    let packed = work.job.matrix.packed();
    assert_eq!(packed.rows(), K::ROWS, "the matrix was packed for another instruction set");
    let tile = |first: usize| {
        let count = (tokens - first).min(K::TILE);
        let last = first + count - 1;
        let tokens: [Token; MOST_TOKENS] =
            std::array::from_fn(|t| Token::new::<F>(work, (first + t).min(last)));
        (tokens, count)
    };
    if tokens <= K::TILE {
        let (tokens, count) = tile(0);
        for row in work.rows.clone().step_by(K::ROWS) {
            let panel = packed.panel(row / K::ROWS);
            // SAFETY: the caller's machine has the instructions.
            unsafe { K::kept(work, row, panel, 0, &tokens[..count]) };
        }
        return;
    }

    // Bytes of integers, and scales, of a panel.
    let (size, scales) = (K::ROWS * cols, K::ROWS * (cols / F::GROUP));
    let together = (UNPACKED_BYTES / size).max(1);
    let integers = scratch.integers.bytes(together * size);
    let scale = scratch.scale.floats(together * scales);
    let min = scratch.min.floats(if F::MIN { together * scales } else { 0 });
    let part = |i: usize| if F::MIN { i * scales..(i + 1) * scales } else { 0..0 };
    for first in work.rows.clone().step_by(together * K::ROWS) {
        let last = (first + together * K::ROWS).min(work.rows.end);
        let starts = || (first..last).step_by(K::ROWS).enumerate();
        for (i, row) in starts() {
            let out = Unpacking {
                integers: &mut integers[i * size..(i + 1) * size],
                scale: &mut scale[i * scales..(i + 1) * scales],
                min: &mut min[part(i)],
            };
            // SAFETY: the caller's machine has the instructions.
            unsafe { K::unpack(packed.panel(row / K::ROWS), cols / BLOCK, out) };
        }
        for token in (0..tokens).step_by(K::TILE) {
            let (tokens, count) = tile(token);
            for (i, row) in starts() {
                let panel = Unpacked {
                    integers: &integers[i * size..(i + 1) * size],
                    scale: &scale[i * scales..(i + 1) * scales],
                    min: &min[part(i)],
                };
                // SAFETY: the caller's machine has the instructions.
                unsafe { K::tile(work, row, panel, token, &tokens[..count]) };
            }
        }
    }
}
