//! The integer kernels for AVX-512 with VNNI: panels of 32 matrix rows.
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

// Two registers side by side, so that a number of an activation that was read meets two of weights.
//
// `#[inline]` is a hint only and cannot be made an order together with `#[target_feature]`, so these
// functions have the features of where they end up. Loops over tokens are written with indices: what
// closures and iterators of arrays are compiled to would keep sums in memory.
impl Vectors for Avx512 {
    const ROWS: usize = 32;
    const UNPACKED_BYTES: usize = 256 << 10;
    const SIGNED: bool = false;
    type Bytes = [__m512i; 2];
    type Floats = [__m512; 2];

    #[inline(always)]
    unsafe fn bytes(at: *const u8) -> Self::Bytes {
        // SAFETY: as demanded of the caller, here and below.
        unsafe { [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(64).cast())] }
    }

    #[inline(always)]
    unsafe fn store_bytes(at: *mut u8, v: Self::Bytes) {
        // SAFETY: see `bytes`.
        unsafe {
            _mm512_storeu_si512(at.cast(), v[0]);
            _mm512_storeu_si512(at.add(64).cast(), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn bits(v: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes {
        // SAFETY: see `bytes`.
        unsafe {
            let (count, mask) = (_mm_cvtsi32_si128(shift as i32), _mm512_set1_epi8(mask as i8));
            [
                _mm512_and_si512(_mm512_srl_epi16(v[0], count), mask),
                _mm512_and_si512(_mm512_srl_epi16(v[1], count), mask),
            ]
        }
    }

    #[inline(always)]
    unsafe fn put_above(low: Self::Bytes, high: Self::Bytes, shift: usize) -> Self::Bytes {
        // SAFETY: see `bytes`.
        unsafe {
            let count = _mm_cvtsi32_si128(shift as i32);
            [
                _mm512_or_si512(low[0], _mm512_sll_epi16(high[0], count)),
                _mm512_or_si512(low[1], _mm512_sll_epi16(high[1], count)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes {
        // SAFETY: see `bytes`.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm512_shuffle_epi8(table, indices[0]), _mm512_shuffle_epi8(table, indices[1])]
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [_mm512_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn floats(at: *const f32) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16))] }
    }

    #[inline(always)]
    unsafe fn store_floats(at: *mut f32, v: Self::Floats) {
        // SAFETY: see `bytes`.
        unsafe {
            _mm512_storeu_ps(at, v[0]);
            _mm512_storeu_ps(at.add(16), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe {
            [
                _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())),
                _mm512_cvtph_ps(_mm256_loadu_si256(at.add(32).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn brains(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [brains(at), brains(at.add(32))] }
    }

    #[inline(always)]
    unsafe fn small_integers(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [small_integers(at), small_integers(at.add(16))] }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [_mm512_mul_ps(a[0], b[0]), _mm512_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [_mm512_fmadd_ps(a[0], b[0], c[0]), _mm512_fmadd_ps(a[1], b[1], c[1])] }
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
    ) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe {
            let (w, x) = (panel.integers(block, chunk), _mm512_set1_epi32(x));
            let zero = _mm512_setzero_si512();
            [
                _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(zero, w[0], x)),
                _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(zero, w[1], x)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn sums<F: Format, S: Source<F, Self>, const T: usize>(
        panel: S,
        tokens: &[Token; T],
        block: usize,
        part: usize,
    ) -> [Self::Floats; T] {
        let chunks = CHUNKS * F::GROUP / BLOCK;
        // SAFETY: see `bytes`.
        unsafe {
            let mut low = [[_mm512_setzero_si512(); 2]; T];
            if F::OFFSET != 0 {
                for t in 0..T {
                    // Where it can be, multiplied after it is spread: that takes less.
                    low[t] = [if F::OFFSET.count_ones() == 1 {
                        let minus = _mm512_set1_epi32(tokens[t].minus::<F>(block, part));
                        _mm512_sll_epi32(minus, _mm_cvtsi32_si128(F::OFFSET.ilog2() as i32))
                    } else {
                        _mm512_set1_epi32(tokens[t].correction::<F, Self>(block, part))
                    }; 2];
                }
            }
            // Every other chunk of a long group has sums of its own, so that enough additions
            // are under way at once.
            let apart = chunks == CHUNKS;
            let mut odd = [[_mm512_setzero_si512(); 2]; T];
            for chunk in part * chunks..(part + 1) * chunks {
                let w = panel.integers(block, chunk);
                let sums = if apart && chunk % 2 == 1 { &mut odd } else { &mut low };
                for t in 0..T {
                    let x = _mm512_set1_epi32(tokens[t].low(block, chunk));
                    for i in 0..2 {
                        sums[t][i] = _mm512_dpbusd_epi32(sums[t][i], w[i], x);
                    }
                }
            }
            if apart {
                for t in 0..T {
                    for i in 0..2 {
                        low[t][i] = _mm512_add_epi32(low[t][i], odd[t][i]);
                    }
                }
            }
            let mut sums = [[_mm512_setzero_ps(); 2]; T];
            for t in 0..T {
                for i in 0..2 {
                    sums[t][i] = _mm512_cvtepi32_ps(low[t][i]);
                }
            }
            sums
        }
    }
}

/// Sixteen numbers in bf16.
#[inline(always)]
unsafe fn brains(at: *const u8) -> __m512 {
    // SAFETY: as demanded of the caller.
    unsafe {
        let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))
    }
}

/// Sixteen signed bytes.
#[inline(always)]
unsafe fn small_integers(at: *const u8) -> __m512 {
    // SAFETY: as demanded of the caller.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
}
