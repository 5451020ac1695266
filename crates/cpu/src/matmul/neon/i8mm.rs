//! Sums by 8-bit matrix multiplication. Eight columns of a row lie together in these panels.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{ROWS, signed};
use crate::matmul::formats::{BLOCK, Format};
use crate::matmul::packed::CHUNKS;
use crate::matmul::panels::Token;
use crate::matmul::vectors::{Source, Vectors};

/// Pairs of rows in a panel.
const PAIRS: usize = ROWS / 2;
/// Columns that lie together, and the chunks that they take of all rows.
const RUN: usize = 8;
const STEP: usize = CHUNKS * RUN / BLOCK;

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

/// [`Vectors::dot`]. Here a chunk is half of the eight columns that lie together: the other half of the
/// activations is zero.
#[inline(always)]
pub(super) unsafe fn dot<F, V, S>(panel: S, block: usize, chunk: usize, x: i32) -> [float32x4_t; 2]
where
    F: Format,
    V: Vectors<Bytes = [uint8x16_t; 2]>,
    S: Source<F, V>,
{
    let step = chunk / STEP;
    // SAFETY: as demanded of the caller.
    unsafe {
        let x = u64::from(x as u32) << (32 * (chunk % STEP));
        let x = vreinterpretq_s8_u64(vdupq_n_u64(x));
        let sums = |w| vcvtq_f32_s32(multiply(vdupq_n_s32(0), w, x));
        let [a, b] = signed::<F, V, S>(panel, block, STEP * step);
        let [c, d] = signed::<F, V, S>(panel, block, STEP * step + 1);
        [vuzp1q_f32(sums(a), sums(b)), vuzp1q_f32(sums(c), sums(d))]
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
    let steps = F::GROUP / RUN;
    // SAFETY: as demanded of the caller.
    unsafe {
        // For each pair of tokens and of rows. The last token of an odd number is its own partner.
        let mut sums = [[vdupq_n_s32(0); PAIRS]; T];
        for (sums, pair) in sums.iter_mut().zip(tokens.chunks(2)) {
            let correction = |token: &Token| vdup_n_s32(token.correction::<F, V>(block, part));
            let pair = vzip1_s32(correction(&pair[0]), correction(&pair[pair.len() - 1]));
            *sums = [vcombine_s32(pair, pair); PAIRS];
        }
        for step in part * steps..(part + 1) * steps {
            let [a, b] = signed::<F, V, S>(panel, block, STEP * step);
            let [c, d] = signed::<F, V, S>(panel, block, STEP * step + 1);
            for (sums, pair) in sums.iter_mut().zip(tokens.chunks(2)) {
                let low = |token: &Token| vld1_s8(token.block(block).low.as_ptr().add(step * RUN));
                let x = vcombine_s8(low(&pair[0]), low(&pair[pair.len() - 1]));
                for (sum, w) in sums.iter_mut().zip([a, b, c, d]) {
                    *sum = multiply(*sum, w, x);
                }
            }
        }
        std::array::from_fn(|t| {
            let [a, b, c, d] = sums[t / 2].map(|sums| vcvtq_f32_s32(sums));
            if t % 2 == 0 {
                [vuzp1q_f32(a, b), vuzp1q_f32(c, d)]
            } else {
                [vuzp2q_f32(a, b), vuzp2q_f32(c, d)]
            }
        })
    }
}
