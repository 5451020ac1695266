//! The integer kernels for AArch64 with dot products: panels of eight matrix rows.
//!
//! `sdot` multiplies signed bytes and adds four products in 32 bits. Weights beyond 127 are shifted
//! down by 128, which the sum of the activations takes back. The instructions have no stable
//! intrinsics yet, hence the assembly.

mod i8mm;
mod source;

use std::arch::aarch64::*;
use std::arch::asm;

use super::formats::{BLOCK, Format, Part, with_format};
use super::packed::{CHUNKS, Panel};
use super::panels::{self, Kernel, Token, Unpacked, Unpacking, widened};
use super::scratch::Scratch;
use super::work::Work;
use crate::quant::HIGH;
use i8mm::NeonI8mm;
use source::{Source, offset};

/// Rows of a panel.
const ROWS: usize = 8;

/// Does the work, which is of a quantized format.
///
/// # Safety
/// The machine must have dot products and, if `matrices`, 8-bit matrix multiplication.
pub(super) unsafe fn run(work: &Work<'_>, scratch: &mut Scratch, matrices: bool) {
    with_format!(work.job.matrix.dtype(), F => {
        // SAFETY: as demanded of the caller.
        unsafe {
            if matrices {
                panels::run::<F, NeonI8mm>(work, scratch);
            } else {
                panels::run::<F, Neon>(work, scratch);
            }
        }
    }, else unreachable!("floats have a kernel of their own"));
}

struct Neon;

impl<F: Format> Kernel<F> for Neon {
    const ROWS: usize = ROWS;
    const TILE: usize = 4;

    #[target_feature(enable = "neon")]
    unsafe fn unpack(panel: Panel<'_>, blocks: usize, out: Unpacking<'_>) {
        // SAFETY: the panel has so many blocks.
        unsafe { unpack::<F>(panel, blocks, out) };
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn kept(work: &Work<'_>, row: usize, panel: Panel<'_>, first: usize, tokens: &[Token]) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match tokens.len() {
                1 => tile::<F, _, 1>(work, row, panel, first, tokens),
                2 => tile::<F, _, 2>(work, row, panel, first, tokens),
                _ => tile::<F, _, 4>(work, row, panel, first, tokens),
            }
        }
    }

    #[target_feature(enable = "neon,dotprod")]
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
                1 | 2 => tile::<F, _, 2>(work, row, panel, first, tokens),
                _ => tile::<F, _, 4>(work, row, panel, first, tokens),
            }
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn unpack<F: Format>(panel: Panel<'_>, blocks: usize, out: Unpacking<'_>) {
    for (block, out) in out.integers.chunks_exact_mut(ROWS * BLOCK).enumerate().take(blocks) {
        for (chunk, out) in out.chunks_exact_mut(4 * ROWS).enumerate() {
            // SAFETY: the block is inside the panel, and the chunk has room for two vectors.
            unsafe {
                let [low, high] = Source::<F>::integers(panel, block, chunk);
                vst1q_u8(out.as_mut_ptr(), low);
                vst1q_u8(out.as_mut_ptr().add(16), high);
            }
        }
    }
    for (part, out) in [(Part::Scale, out.scale), (Part::Min, out.min)] {
        for (group, out) in out.chunks_exact_mut(ROWS).enumerate() {
            // SAFETY: the group is inside the panel, and there is room for two vectors.
            unsafe {
                let [low, high] = Source::<F>::part(panel, part, group);
                vst1q_f32(out.as_mut_ptr(), low);
                vst1q_f32(out.as_mut_ptr().add(4), high);
            }
        }
    }
}

/// Adds to each 32-bit lane the products of its four bytes with the four of `b`'s lane `LANE`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_lane<const LANE: usize>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction works on these registers only, and the feature is there.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Adds one group's sums, scaled, to a token's totals of the eight rows.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_group<F: Format, S: Source<F>>(
    totals: &mut [float32x4_t; 2],
    sums: [int32x4_t; 2],
    panel: S,
    token: &Token,
    group: usize,
) {
    // SAFETY: the caller's group is inside the activation row and the panel.
    unsafe {
        let x_scale = *token.scale.add(group * F::GROUP / BLOCK);
        let scales = panel.part(Part::Scale, group);
        for ((total, sums), scale) in totals.iter_mut().zip(sums).zip(scales) {
            let mut sums = vcvtq_f32_s32(sums);
            if offset::<F>() != 0 {
                let x_sum = vdupq_n_f32(*token.sum.add(group));
                sums = vfmsq_f32(sums, vdupq_n_f32(offset::<F>() as f32), x_sum);
            }
            *total = vfmaq_f32(*total, vmulq_n_f32(scale, x_scale), sums);
        }
        if F::MIN {
            let mins = panel.part(Part::Min, group);
            for (total, min) in totals.iter_mut().zip(mins) {
                *total = vfmaq_n_f32(*total, min, *token.scaled.add(group));
            }
        }
    }
}

/// The sums of whole integers from those of their high and low parts.
#[inline]
#[target_feature(enable = "neon")]
fn joined(high: int32x4_t, low: int32x4_t) -> int32x4_t {
    vmlaq_n_s32(low, high, HIGH)
}

#[inline]
#[target_feature(enable = "neon")]
fn store(work: &Work<'_>, row: usize, token: usize, totals: [float32x4_t; 2]) {
    let mut products = [0.0f32; ROWS];
    // SAFETY: the array holds eight floats.
    unsafe {
        vst1q_f32(products.as_mut_ptr(), totals[0]);
        vst1q_f32(products.as_mut_ptr().add(4), totals[1]);
    }
    work.store(token, row, &products);
}

/// Products of at most `T` tokens, those from number `first` on, with a panel.
#[target_feature(enable = "neon,dotprod")]
unsafe fn tile<F: Format, S: Source<F>, const T: usize>(
    work: &Work<'_>,
    row: usize,
    panel: S,
    first: usize,
    tokens: &[Token],
) {
    /// Columns that a vector of activations has, and their chunks.
    const WIDE: usize = 16;
    const QUARTERS: usize = CHUNKS * WIDE / BLOCK;
    let count = tokens.len();
    let tokens: [Token; T] = widened(tokens);
    let mut totals = [[vdupq_n_f32(0.0); 2]; T];
    let zero = vdupq_n_s32(0);
    for block in 0..work.x.cols / BLOCK {
        // For each token, rows and part.
        let mut sums = [[[zero; 2]; 2]; T];
        for half in 0..BLOCK / WIDE {
            // SAFETY: the block is inside the panel and the activation rows.
            unsafe {
                let w: [[int8x16_t; 2]; QUARTERS] =
                    std::array::from_fn(|i| panel.signed(block, QUARTERS * half + i));
                for (sums, token) in sums.iter_mut().zip(&tokens) {
                    let x = token.values.add(2 * block * BLOCK + WIDE * half);
                    for (part, x) in [vld1q_s8(x), vld1q_s8(x.add(BLOCK))].into_iter().enumerate() {
                        for (rows, sums) in sums.iter_mut().enumerate() {
                            let mut sum = sums[part];
                            sum = dot_lane::<0>(sum, w[0][rows], x);
                            sum = dot_lane::<1>(sum, w[1][rows], x);
                            sum = dot_lane::<2>(sum, w[2][rows], x);
                            sums[part] = dot_lane::<3>(sum, w[3][rows], x);
                        }
                    }
                }
            }
            let group = if F::GROUP == BLOCK { block } else { 2 * block + half };
            if F::GROUP == BLOCK && half == 0 {
                continue;
            }
            for ((totals, sums), token) in totals.iter_mut().zip(&mut sums).zip(&tokens) {
                let whole = sums.map(|[high, low]| joined(high, low));
                *sums = [[zero; 2]; 2];
                // SAFETY: the group is inside the panel and the activation rows.
                unsafe { add_group::<F, S>(totals, whole, panel, token, group) };
            }
        }
    }
    for (t, totals) in totals.into_iter().enumerate().take(count) {
        store(work, row, first + t, totals);
    }
}
