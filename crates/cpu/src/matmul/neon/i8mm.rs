//! Packed panels by 8-bit matrix multiplication.
//!
//! `smmla` multiplies two rows of eight signed bytes with two others, giving 2×2 sums: here of two
//! matrix rows and two tokens.

use std::arch::aarch64::*;
use std::arch::asm;

use super::load::Load;
use super::{ROWS, add_group, direct_tokens, read_scales, store};
use crate::matmul::formats::{BLOCK, Row};
use crate::matmul::panels::{Kernel, Packed, Panel, Token};
use crate::matmul::work::Work;

/// Pairs of rows in a panel.
const PAIRS: usize = ROWS / 2;

pub(super) struct NeonI8mm;

impl<F: Load> Kernel<F> for NeonI8mm {
    const ROWS: usize = ROWS;
    const TILE: usize = 4;
    const MOST_DIRECT: usize = 2;
    const LINEAR: bool = F::LINEAR;

    unsafe fn values(row: &Row<'_>, out: &mut [u8]) {
        F::values(row, out);
    }

    unsafe fn scales(rows: &[Row<'_>], scale: &mut [f32], min: &mut [f32]) {
        read_scales::<F>(rows, scale, min);
    }

    #[target_feature(enable = "neon,dotprod,i8mm")]
    unsafe fn direct(work: &Work<'_>, row: usize, panel: Panel<'_>) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe { direct_tokens::<F>(work, row, panel) };
    }

    #[target_feature(enable = "neon,dotprod,i8mm")]
    unsafe fn pack(rows: &[*const u8], blocks: usize, out: &mut [u8]) {
        assert!(rows.len() == ROWS && out.len() == blocks * BLOCK * ROWS);
        for block in 0..blocks {
            for (pair, rows) in rows.chunks_exact(2).enumerate() {
                // SAFETY: the block is inside the rows, and `out` has room for all blocks.
                unsafe {
                    let (a, b) = (F::block(rows[0], block), F::block(rows[1], block));
                    for (half, (a, b)) in [(a.0, b.0), (a.1, b.1)].into_iter().enumerate() {
                        let (a, b) = (vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b));
                        let column = block * BLOCK + 16 * half;
                        let out = out.as_mut_ptr().add(column * ROWS + 16 * pair);
                        vst1q_u8(out, vreinterpretq_u8_u64(vzip1q_u64(a, b)));
                        vst1q_u8(out.add(8 * ROWS), vreinterpretq_u8_u64(vzip2q_u64(a, b)));
                    }
                }
            }
        }
    }

    #[target_feature(enable = "neon,dotprod,i8mm")]
    unsafe fn tile(work: &Work<'_>, row: usize, panel: Packed<'_>, first: usize, tokens: &[Token]) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match tokens.len() {
                1 | 2 => tile::<F, 1>(work, row, panel, first, tokens),
                _ => tile::<F, 2>(work, row, panel, first, tokens),
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

/// Products of at most `P` pairs of tokens, those from number `first` on, with a packed panel.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn tile<F: Load, const P: usize>(
    work: &Work<'_>,
    row: usize,
    panel: Packed<'_>,
    first: usize,
    tokens: &[Token],
) {
    let Packed { values, scales } = panel;
    let count = tokens.len();
    // Tokens past the end repeat the last; their products are dropped.
    let tokens: [[Token; 2]; P] =
        std::array::from_fn(|p| std::array::from_fn(|t| tokens[(2 * p + t).min(count - 1)]));
    let mut totals = [[[vdupq_n_f32(0.0); 2]; 2]; P];
    for group in 0..work.x.cols / F::GROUP {
        let mut sums = [[vdupq_n_s32(0); PAIRS]; P];
        for column in (group * F::GROUP..(group + 1) * F::GROUP).step_by(8) {
            // SAFETY: 8 columns from `column` on are inside the panel and the activation rows.
            unsafe {
                let values: *const i8 = values.as_ptr().add(column * ROWS).cast();
                let w: [int8x16_t; PAIRS] = std::array::from_fn(|i| vld1q_s8(values.add(16 * i)));
                for (sums, [a, b]) in sums.iter_mut().zip(&tokens) {
                    let (a, b) = (vld1_s8(a.values.add(column)), vld1_s8(b.values.add(column)));
                    let x = vcombine_s8(a, b);
                    for (sums, w) in sums.iter_mut().zip(w) {
                        *sums = multiply(*sums, w, x);
                    }
                }
            }
        }
        for ((totals, sums), tokens) in totals.iter_mut().zip(sums).zip(&tokens) {
            for half in 0..2 {
                let (a, b) = (sums[2 * half], sums[2 * half + 1]);
                for (t, sums) in [vuzp1q_s32(a, b), vuzp2q_s32(a, b)].into_iter().enumerate() {
                    let total = &mut totals[t][half];
                    // SAFETY: the group is inside the activation rows and the scales.
                    *total =
                        unsafe { add_group::<F>(*total, sums, &tokens[t], scales, group, half) };
                }
            }
        }
    }
    for (t, totals) in totals.into_iter().flatten().enumerate().take(count) {
        store(work, row, first + t, totals);
    }
}
