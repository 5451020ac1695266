//! The integer kernels for AVX-512 with VNNI: panels of sixteen matrix rows.
//!
//! `vpdpbusd` multiplies unsigned by signed bytes and adds four products in 32 bits, so nothing
//! can overflow.

use std::arch::x86_64::*;

use super::formats::{BLOCK, Format, with_format};
use super::packed::CHUNKS;
use super::panels::{self, Token};
use super::scratch::Scratch;
use super::vectors::{Source, Vectors};
use super::work::Work;
use crate::quant::HIGH;

/// Does the work, which is of a quantized format.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL and VNNI, AVX2, FMA and F16C.
pub(super) unsafe fn run(work: &Work<'_>, scratch: &mut Scratch) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn with<F: Format>(work: &Work<'_>, scratch: &mut Scratch) {
        // SAFETY: the features are there.
        unsafe { panels::run::<F, Avx512>(work, scratch) };
    }
    // SAFETY: as demanded of the caller.
    with_format!(work.job.matrix.dtype(), F => unsafe { with::<F>(work, scratch) },
        else unreachable!("floats have a kernel of their own"));
}

#[derive(Clone, Copy)]
struct Avx512;

// `#[inline]` is a hint only and cannot be made an order together with `#[target_feature]`, so these
// functions have the features of where they end up.
impl Vectors for Avx512 {
    const ROWS: usize = 16;
    const TILE: usize = 8;
    const SIGNED: bool = false;
    type Bytes = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn bytes(at: *const u8) -> __m512i {
        // SAFETY: as demanded of the caller, here and below.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(at: *mut u8, v: __m512i) {
        // SAFETY: see `bytes`.
        unsafe { _mm512_storeu_si512(at.cast(), v) }
    }

    #[inline(always)]
    unsafe fn bits(v: __m512i, shift: usize, mask: u8) -> __m512i {
        // SAFETY: see `bytes`.
        unsafe {
            let shifted = _mm512_srl_epi16(v, _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    unsafe fn put_above(low: __m512i, high: __m512i, shift: usize) -> __m512i {
        // SAFETY: see `bytes`.
        unsafe { _mm512_or_si512(low, _mm512_sll_epi16(high, _mm_cvtsi32_si128(shift as i32))) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: __m512i) -> __m512i {
        // SAFETY: see `bytes`.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices)
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see `bytes`.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn floats(at: *const f32) -> __m512 {
        // SAFETY: see `bytes`.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn store_floats(at: *mut f32, v: __m512) {
        // SAFETY: see `bytes`.
        unsafe { _mm512_storeu_ps(at, v) }
    }

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> __m512 {
        // SAFETY: see `bytes`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn brains(at: *const u8) -> __m512 {
        // SAFETY: see `bytes`.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))
        }
    }

    #[inline(always)]
    unsafe fn small_integers(at: *const u8) -> __m512 {
        // SAFETY: see `bytes`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see `bytes`.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see `bytes`.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: see `bytes`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn sums<F: Format, S: Source<F, Self>, const T: usize>(
        panel: S,
        tokens: &[Token; T],
        block: usize,
        part: usize,
    ) -> [__m512; T] {
        let chunks = CHUNKS * F::GROUP / BLOCK;
        // SAFETY: see `bytes`.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); 2]; T];
            for chunk in part * chunks..(part + 1) * chunks {
                let w = panel.integers(block, chunk);
                for (sums, token) in sums.iter_mut().zip(tokens) {
                    for (sum, x) in sums.iter_mut().zip(token.runs(block, chunk)) {
                        *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(x));
                    }
                }
            }
            sums.map(|[high, low]| {
                // HIGH is one less than a power of two.
                let shifted = _mm512_slli_epi32::<{ (HIGH + 1).ilog2() }>(high);
                let whole = _mm512_add_epi32(_mm512_sub_epi32(shifted, high), low);
                _mm512_cvtepi32_ps(whole)
            })
        }
    }
}

const _: () = assert!((HIGH + 1) & HIGH == 0);
