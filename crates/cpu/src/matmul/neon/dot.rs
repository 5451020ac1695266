//! Sums by dot products.

use std::arch::aarch64::*;
use std::arch::asm;

use super::signed;
use crate::matmul::formats::{BLOCK, Format};
use crate::matmul::packed::CHUNKS;
use crate::matmul::panels::Token;
use crate::matmul::vectors::{Source, Vectors};

/// Columns that a vector of activations has, and their chunks.
const WIDE: usize = 16;
const QUARTERS: usize = CHUNKS * WIDE / BLOCK;

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

/// [`Vectors::dot`].
#[inline(always)]
pub(super) unsafe fn dot<F, V, S>(panel: S, block: usize, chunk: usize, x: i32) -> [float32x4_t; 2]
where
    F: Format,
    V: Vectors<Bytes = [uint8x16_t; 2]>,
    S: Source<F, V>,
{
    // SAFETY: as demanded of the caller.
    unsafe {
        let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
        let w = signed::<F, V, S>(panel, block, chunk);
        w.map(|w| vcvtq_f32_s32(dot_lane::<0>(vdupq_n_s32(0), w, x)))
    }
}

/// [`Vectors::sums`].
#[inline(always)]
pub(super) unsafe fn sums<F, V, S, const T: usize>(
    panel: S,
    tokens: &[Token; T],
    block: usize,
    part: usize,
) -> [[float32x4_t; 2]; T]
where
    F: Format,
    V: Vectors<Bytes = [uint8x16_t; 2]>,
    S: Source<F, V>,
{
    let halves = F::GROUP / WIDE;
    // SAFETY: as demanded of the caller.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); 2]; T];
        for (sums, token) in sums.iter_mut().zip(tokens) {
            *sums = [vdupq_n_s32(token.correction::<F, V>(block, part)); 2];
        }
        for half in part * halves..(part + 1) * halves {
            let w: [[int8x16_t; 2]; QUARTERS] =
                std::array::from_fn(|i| signed::<F, V, S>(panel, block, QUARTERS * half + i));
            for (sums, token) in sums.iter_mut().zip(tokens) {
                let x = vld1q_s8(token.block(block).low.as_ptr().add(WIDE * half));
                for (rows, sum) in sums.iter_mut().enumerate() {
                    *sum = dot_lane::<0>(*sum, w[0][rows], x);
                    *sum = dot_lane::<1>(*sum, w[1][rows], x);
                    *sum = dot_lane::<2>(*sum, w[2][rows], x);
                    *sum = dot_lane::<3>(*sum, w[3][rows], x);
                }
            }
        }
        sums.map(|sums| sums.map(|sums| vcvtq_f32_s32(sums)))
    }
}
