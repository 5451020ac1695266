//! Calm blocks with AVX-512 and VNNI. Other blocks take the way of all machines; of these, which are
//! nearly all, the sums of the integers are what takes most instructions there.

use std::arch::x86_64::*;

use super::{Block, MOST_LOW, OUTSTANDING};
use crate::matmul::BLOCK;

/// Quantizes a block, as [`quantize_block`](super::quantize_block) does, if it is finite, not too small
/// and does not stand out of a row of that `size`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
pub(super) fn quantize_calm(x: &[f32; BLOCK], size: f32, out: &mut Block) -> bool {
    let x = x.as_ptr();
    // SAFETY: a block is two vectors.
    let (low, high) = unsafe { (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))) };
    let magnitude = |v| _mm512_castps_si512(_mm512_abs_ps(v));
    let most = _mm512_reduce_max_epi32(_mm512_max_epi32(magnitude(low), magnitude(high)));
    let most = f32::from_bits(most as u32);
    if !(most > 1e-34 && most <= OUTSTANDING * size && most.is_finite()) {
        return false;
    }
    let scale = most / MOST_LOW as f32;
    let inverse = _mm512_set1_ps(1.0 / scale);
    // To the nearest, as everywhere.
    let bytes = |v| _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, inverse)));
    let bytes = _mm256_set_m128i(bytes(high), bytes(low));
    let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    let sums = _mm_hadd_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    let sums = _mm_hadd_epi32(sums, sums);
    let sums = [_mm_cvtsi128_si32(sums), _mm_extract_epi32::<1>(sums)];
    // SAFETY: there is room for a byte of each.
    unsafe { _mm256_storeu_si256(out.low.as_mut_ptr().cast(), bytes) };
    out.describe(scale, sums);
    true
}
