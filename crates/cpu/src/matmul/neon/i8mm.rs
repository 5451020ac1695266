//! Sums by 8-bit matrix multiplication. Eight columns of a row lie together in these panels.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{ROWS, joined, signed};
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
        // For each pair of tokens and of rows, and each part of the activations. The last token of
        // an odd number is its own partner.
        let mut sums = [[[vdupq_n_s32(0); 2]; PAIRS]; T];
        let group = block * (BLOCK / F::GROUP) + part;
        for (sums, pair) in sums.iter_mut().zip(tokens.chunks(2)) {
            let correction = |token: &Token| vdup_n_s32(token.correction::<F, V>(group));
            let pair = vzip1_s32(correction(&pair[0]), correction(&pair[pair.len() - 1]));
            for [_, low] in sums {
                *low = vcombine_s32(pair, pair);
            }
        }
        for step in part * steps..(part + 1) * steps {
            let [a, b] = signed::<F, V, S>(panel, block, STEP * step);
            let [c, d] = signed::<F, V, S>(panel, block, STEP * step + 1);
            for (sums, pair) in sums.iter_mut().zip(tokens.chunks(2)) {
                for part in 0..2 {
                    let at = (2 * block + part) * BLOCK + step * RUN;
                    let (x, y) = (pair[0].values.add(at), pair[pair.len() - 1].values.add(at));
                    let x = vcombine_s8(vld1_s8(x), vld1_s8(y));
                    for (sums, w) in sums.iter_mut().zip([a, b, c, d]) {
                        sums[part] = multiply(sums[part], w, x);
                    }
                }
            }
        }
        std::array::from_fn(|t| {
            let [a, b, c, d] = sums[t / 2].map(|parts| joined(parts));
            if t % 2 == 0 {
                [vuzp1q_f32(a, b), vuzp1q_f32(c, d)]
            } else {
                [vuzp2q_f32(a, b), vuzp2q_f32(c, d)]
            }
        })
    }
}
