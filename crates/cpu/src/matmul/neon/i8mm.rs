//! Panels by 8-bit matrix multiplication.
//!
//! `smmla` multiplies two rows of eight signed bytes with two others, giving 2×2 sums: here of two
//! matrix rows and two tokens. Hence eight columns of a row lie together in these panels.

use std::arch::aarch64::*;
use std::arch::asm;

use super::source::Source;
use super::{ROWS, add_group, joined, store, unpack};
use crate::matmul::formats::{BLOCK, Format};
use crate::matmul::packed::{CHUNKS, Panel};
use crate::matmul::panels::{Kernel, Token, Unpacked, Unpacking, widened};
use crate::matmul::work::Work;

/// Pairs of rows in a panel.
const PAIRS: usize = ROWS / 2;
/// Columns that lie together.
const RUN: usize = 8;
/// Most pairs of tokens in a tile.
const MOST_PAIRS: usize = 2;

pub(super) struct NeonI8mm;

impl<F: Format> Kernel<F> for NeonI8mm {
    const ROWS: usize = ROWS;
    const TILE: usize = 4;

    #[target_feature(enable = "neon")]
    unsafe fn unpack(panel: Panel<'_>, blocks: usize, out: Unpacking<'_>) {
        // SAFETY: the panel has so many blocks.
        unsafe { unpack::<F>(panel, blocks, out) };
    }

    #[target_feature(enable = "neon,i8mm")]
    unsafe fn kept(work: &Work<'_>, row: usize, panel: Panel<'_>, first: usize, tokens: &[Token]) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match tokens.len() {
                1 | 2 => tile::<F, _, 1>(work, row, panel, first, tokens),
                _ => tile::<F, _, 2>(work, row, panel, first, tokens),
            }
        }
    }

    #[target_feature(enable = "neon,i8mm")]
    unsafe fn tile(
        work: &Work<'_>,
        row: usize,
        panel: Unpacked<'_>,
        first: usize,
        tokens: &[Token],
    ) {
        // SAFETY: as above.
        unsafe {
            match tokens.len() {
                1 | 2 => tile::<F, _, 1>(work, row, panel, first, tokens),
                _ => tile::<F, _, 2>(work, row, panel, first, tokens),
            }
        }
    }
}

/// Adds the four sums of products of two rows of `a` and two of `b`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn multiply(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction works on these registers only, and the feature is there.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Products of at most `P` pairs of tokens, those from number `first` on, with a panel.
#[target_feature(enable = "neon,i8mm")]
unsafe fn tile<F: Format, S: Source<F>, const P: usize>(
    work: &Work<'_>,
    row: usize,
    panel: S,
    first: usize,
    tokens: &[Token],
) {
    /// Chunks that eight columns of all rows take.
    const STEP: usize = CHUNKS * RUN / BLOCK;
    let count = tokens.len();
    let tokens: [[Token; 2]; P] = {
        let tokens: [Token; 2 * MOST_PAIRS] = widened(tokens);
        std::array::from_fn(|p| [tokens[2 * p], tokens[2 * p + 1]])
    };
    let mut totals = [[[vdupq_n_f32(0.0); 2]; 2]; P];
    let groups = BLOCK / F::GROUP;
    for group in 0..work.x.cols / F::GROUP {
        let block = group / groups;
        // For each pair of tokens and of rows, and each part of the activations.
        let mut sums = [[[vdupq_n_s32(0); 2]; PAIRS]; P];
        for step in 0..F::GROUP / RUN {
            let step = group % groups * (F::GROUP / RUN) + step;
            // SAFETY: the block is inside the panel and the activation rows.
            unsafe {
                let (a, b) =
                    (panel.signed(block, STEP * step), panel.signed(block, STEP * step + 1));
                let w: [int8x16_t; PAIRS] = [a[0], a[1], b[0], b[1]];
                for (sums, [a, b]) in sums.iter_mut().zip(&tokens) {
                    for part in 0..2 {
                        let at = 2 * block * BLOCK + part * BLOCK + step * RUN;
                        let x = vcombine_s8(vld1_s8(a.values.add(at)), vld1_s8(b.values.add(at)));
                        for (sums, w) in sums.iter_mut().zip(w) {
                            sums[part] = multiply(sums[part], w, x);
                        }
                    }
                }
            }
        }
        for ((totals, sums), tokens) in totals.iter_mut().zip(sums).zip(&tokens) {
            let [a, b, c, d] = sums.map(|[high, low]| joined(high, low));
            let first = [vuzp1q_s32(a, b), vuzp1q_s32(c, d)];
            let second = [vuzp2q_s32(a, b), vuzp2q_s32(c, d)];
            for ((totals, sums), token) in totals.iter_mut().zip([first, second]).zip(tokens) {
                // SAFETY: the group is inside the panel and the activation rows.
                unsafe { add_group::<F, S>(totals, sums, panel, token, group) };
            }
        }
    }
    for (t, totals) in totals.into_iter().flatten().enumerate().take(count) {
        store(work, row, first + t, totals);
    }
}
