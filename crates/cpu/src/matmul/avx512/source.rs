//! Reading panels: as they are kept, or unpacked.

use std::arch::x86_64::*;

use super::ROWS;
use crate::matmul::formats::{Format, Part, ScaleKind, factor_at};
use crate::matmul::packed::{CHUNKS, Panel, high_bits, low_bits, mask};
use crate::matmul::panels::Unpacked;

/// Bytes of a chunk.
const CHUNK: usize = 4 * ROWS;

/// A panel that the kernel can read.
///
/// # Safety
/// The functions need the features of the kernels, and have them from where they are inlined. Blocks and
/// groups must be inside the panel.
pub(super) trait Source<F: Format>: Copy {
    /// The integers of a chunk of a block: four columns of each row.
    unsafe fn integers(self, block: usize, chunk: usize) -> __m512i;
    /// Asks for what is read some time after a block.
    #[inline(always)]
    unsafe fn prefetch(self, _block: usize) {}
    /// The scales or minima of a group.
    unsafe fn part(self, part: Part, group: usize) -> __m512;
}

impl<F: Format> Source<F> for Unpacked<'_> {
    #[inline(always)]
    unsafe fn integers(self, block: usize, chunk: usize) -> __m512i {
        let at = (block * CHUNKS + chunk) * CHUNK;
        // SAFETY: as demanded of the caller.
        unsafe { _mm512_loadu_si512(self.integers.as_ptr().add(at).cast()) }
    }

    #[inline(always)]
    unsafe fn part(self, part: Part, group: usize) -> __m512 {
        let all = if part == Part::Scale { self.scale } else { self.min };
        // SAFETY: as demanded of the caller.
        unsafe { _mm512_loadu_ps(all.as_ptr().add(group * ROWS)) }
    }
}

impl<F: Format> Source<F> for Panel<'_> {
    #[inline(always)]
    unsafe fn integers(self, block: usize, chunk: usize) -> __m512i {
        // SAFETY: as demanded of the caller.
        unsafe {
            let at = self.codes.as_ptr().add(block * F::BITS * CHUNK);
            let mut codes = plane(at, low_bits::<F>(), chunk);
            if high_bits::<F>() > 0 {
                let high = plane(at.add(low_bits::<F>() * CHUNK), high_bits::<F>().max(1), chunk);
                let shift = _mm_cvtsi32_si128(low_bits::<F>() as i32);
                codes = _mm512_or_si512(codes, _mm512_sll_epi16(high, shift));
            }
            match F::TABLE {
                None => codes,
                Some(table) => {
                    let table = _mm_loadu_si128(table.as_ptr().cast());
                    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(self, block: usize) {
        for line in self.lines_ahead::<F>(block, CHUNK) {
            // SAFETY: a hint, which may be of any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
        }
    }

    #[inline(always)]
    unsafe fn part(self, part: Part, group: usize) -> __m512 {
        let bytes = if part == Part::Scale { self.scale } else { self.min };
        let kind = self.kind::<F>();
        // SAFETY: as demanded of the caller.
        unsafe {
            let at = bytes.as_ptr().add(group * ROWS * kind.bytes());
            match kind {
                ScaleKind::Half => halves(at),
                ScaleKind::Brain => {
                    let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))
                }
                ScaleKind::Single => _mm512_loadu_ps(at.cast()),
                ScaleKind::Super => {
                    let factor = self.factor.as_ptr().add(factor_at::<F>(part, ROWS, group));
                    let bytes = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
                    _mm512_mul_ps(halves(factor), _mm512_cvtepi32_ps(bytes))
                }
            }
        }
    }
}

/// Sixteen half-precision numbers.
#[inline(always)]
unsafe fn halves(at: *const u8) -> __m512 {
    // SAFETY: as demanded of the caller.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

/// The bits that a plane of `bits` bits a code has for a chunk.
#[inline(always)]
unsafe fn plane(at: *const u8, bits: usize, chunk: usize) -> __m512i {
    // SAFETY: as demanded of the caller.
    unsafe {
        let packed = _mm512_loadu_si512(at.add(chunk % bits * CHUNK).cast());
        if bits == 8 {
            return packed;
        }
        let shift = _mm_cvtsi32_si128((bits * (chunk / bits)) as i32);
        let mask = _mm512_set1_epi8(mask(bits) as i8);
        _mm512_and_si512(_mm512_srl_epi16(packed, shift), mask)
    }
}
