//! The integer kernels for AVX2: panels of eight matrix rows, one to a 32-bit lane.
//!
//! Bytes are multiplied by `vpmaddubsw`, unsigned by signed, whose sums of two products must not
//! exceed 16 bits: 2 · 127 · 127 do not. Weights beyond 127 are shifted down by 128, which the sum of
//! the activations takes back. How many such sums may be added before they are widened is worked out
//! from `Format::MAX` at compile time.

use std::arch::x86_64::*;

use super::formats::{BLOCK, Format, with_format};
use super::packed::CHUNKS;
use super::panels::{self, Token};
use super::scratch::Scratch;
use super::vectors::{Source, Vectors, shift};
use super::work::Work;
use crate::quant::MOST_LOW;

/// Does the work, which is of a quantized format.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C.
pub(super) unsafe fn run(work: &Work<'_>, scratch: &mut Scratch) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn with<F: Format>(work: &Work<'_>, scratch: &mut Scratch) {
        // SAFETY: the features are there.
        unsafe { panels::run::<F, Avx2>(work, scratch) };
    }
    // SAFETY: as demanded of the caller.
    with_format!(work.job.matrix.dtype(), F => unsafe { with::<F>(work, scratch) },
        else unreachable!("floats have a kernel of their own"));
}

#[derive(Clone, Copy)]
struct Avx2;

// `#[inline]` is a hint only and cannot be made an order together with `#[target_feature]`, so these
// functions have the features of where they end up.
impl Vectors for Avx2 {
    const ROWS: usize = 8;
    const SIGNED: bool = true;
    type Bytes = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn bytes(at: *const u8) -> __m256i {
        // SAFETY: as demanded of the caller, here and below.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(at: *mut u8, v: __m256i) {
        // SAFETY: see `bytes`.
        unsafe { _mm256_storeu_si256(at.cast(), v) }
    }

    #[inline(always)]
    unsafe fn bits(v: __m256i, shift: usize, mask: u8) -> __m256i {
        // SAFETY: see `bytes`.
        unsafe {
            let shifted = _mm256_srl_epi16(v, _mm_cvtsi32_si128(shift as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    unsafe fn put_above(low: __m256i, high: __m256i, shift: usize) -> __m256i {
        // SAFETY: see `bytes`.
        unsafe { _mm256_or_si256(low, _mm256_sll_epi16(high, _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: __m256i) -> __m256i {
        // SAFETY: see `bytes`.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices)
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn floats(at: *const f32) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe { _mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn store_floats(at: *mut f32, v: __m256) {
        // SAFETY: see `bytes`.
        unsafe { _mm256_storeu_ps(at, v) }
    }

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn brains(at: *const u8) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))
        }
    }

    #[inline(always)]
    unsafe fn small_integers(at: *const u8) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: see `bytes`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<F: Format, S: Source<F, Self>>(
        panel: S,
        block: usize,
        chunk: usize,
        x: i32,
    ) -> __m256 {
        // SAFETY: see `bytes`.
        unsafe {
            let pairs = products::<F>(panel.integers(block, chunk), x);
            _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn sums<F: Format, S: Source<F, Self>, const T: usize>(
        panel: S,
        tokens: &[Token; T],
        block: usize,
        part: usize,
    ) -> [__m256; T] {
        let chunks = CHUNKS * F::GROUP / BLOCK;
        // Chunks whose products' sums may be added in 16 bits: a power of two.
        let weight = if shift::<F, Self>() == 0 { F::MAX } else { 128 };
        let most = i16::MAX as i32 / (2 * weight * MOST_LOW);
        let narrow = 1usize << most.clamp(1, chunks as i32).ilog2();
        // SAFETY: see `bytes`.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut wide = [_mm256_setzero_si256(); T];
            for t in 0..T {
                wide[t] = _mm256_set1_epi32(tokens[t].correction::<F, Self>(block, part));
            }
            for run in 0..chunks / narrow {
                let mut low = [_mm256_setzero_si256(); T];
                for step in 0..narrow {
                    let chunk = part * chunks + run * narrow + step;
                    let w = panel.integers(block, chunk);
                    for t in 0..T {
                        let products = products::<F>(w, tokens[t].low(block, chunk));
                        low[t] = _mm256_add_epi16(low[t], products);
                    }
                }
                for t in 0..T {
                    wide[t] = _mm256_add_epi32(wide[t], _mm256_madd_epi16(low[t], ones));
                }
            }
            let mut sums = [_mm256_setzero_ps(); T];
            for t in 0..T {
                sums[t] = _mm256_cvtepi32_ps(wide[t]);
            }
            sums
        }
    }
}

/// Sums of pairs of products with the four activations in `x`. Of weights that are shifted down the
/// sign is given to the activation.
#[inline(always)]
unsafe fn products<F: Format>(w: __m256i, x: i32) -> __m256i {
    // SAFETY: as demanded of the caller.
    unsafe {
        let x = _mm256_set1_epi32(x);
        if shift::<F, Avx2>() == 0 {
            return _mm256_maddubs_epi16(w, x);
        }
        let w = _mm256_xor_si256(w, _mm256_set1_epi8(i8::MIN));
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
    }
}
