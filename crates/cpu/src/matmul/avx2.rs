//! The integer kernels for AVX2: panels of eight matrix rows, one to a 32-bit lane.
//!
//! Bytes are multiplied by `vpmaddubsw`, unsigned by signed, whose sums of two products must not
//! exceed 16 bits. Activations come in two parts within ±31 and weights are at most 255, so they
//! never do; how many such sums may be added before they are widened is worked out from
//! `Format::MAX` at compile time.

mod source;

use std::arch::x86_64::*;

use super::formats::{BLOCK, Format, Part, with_format};
use super::packed::{CHUNKS, Panel};
use super::panels::{self, Kernel, Token, Unpacked, Unpacking, widened};
use super::scratch::Scratch;
use super::work::Work;
use crate::quant::{HIGH, MOST_PART};
use source::Source;

/// Rows of a panel.
const ROWS: usize = 8;

/// Does the work, which is of a quantized format.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C.
pub(super) unsafe fn run(work: &Work<'_>, scratch: &mut Scratch) {
    // SAFETY: as demanded of the caller.
    with_format!(work.job.matrix.dtype(), F => unsafe { panels::run::<F, Avx2>(work, scratch) },
        else unreachable!("floats have a kernel of their own"));
}

struct Avx2;

impl<F: Format> Kernel<F> for Avx2 {
    const ROWS: usize = ROWS;
    const TILE: usize = 4;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(panel: Panel<'_>, blocks: usize, out: Unpacking<'_>) {
        // SAFETY: the features are there, and the panel has so many blocks.
        unsafe { unpack::<F>(panel, blocks, out) };
    }

    #[target_feature(enable = "avx2,fma,f16c")]
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

    #[target_feature(enable = "avx2,fma,f16c")]
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

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<F: Format>(panel: Panel<'_>, blocks: usize, out: Unpacking<'_>) {
    for (block, out) in out.integers.chunks_exact_mut(ROWS * BLOCK).enumerate().take(blocks) {
        for (chunk, out) in out.chunks_exact_mut(4 * ROWS).enumerate() {
            // SAFETY: the block is inside the panel, and the chunk has room for a vector.
            unsafe {
                let integers = Source::<F>::integers(panel, block, chunk);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), integers);
            }
        }
    }
    for (part, out) in [(Part::Scale, out.scale), (Part::Min, out.min)] {
        for (group, out) in out.chunks_exact_mut(ROWS).enumerate() {
            // SAFETY: the group is inside the panel, and there is room for a vector.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), Source::<F>::part(panel, part, group)) };
        }
    }
}

/// Products of at most `T` tokens, those from number `first` on, with a panel.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<F: Format, S: Source<F>, const T: usize>(
    work: &Work<'_>,
    row: usize,
    panel: S,
    first: usize,
    tokens: &[Token],
) {
    let count = tokens.len();
    let tokens: [Token; T] = widened(tokens);
    let mut totals = [_mm256_setzero_ps(); T];
    for block in 0..work.x.cols / BLOCK {
        // SAFETY: the block is inside the panel.
        unsafe { panel.prefetch(block) };
        for part in 0..BLOCK / F::GROUP {
            let group = block * (BLOCK / F::GROUP) + part;
            // SAFETY: the block and its groups are inside the panel and the activation rows.
            unsafe {
                let sums = group_sums::<F, S, T>(panel, &tokens, block, part);
                let scale = panel.part(Part::Scale, group);
                for ((total, sums), token) in totals.iter_mut().zip(sums).zip(&tokens) {
                    let mut sums = _mm256_cvtepi32_ps(sums);
                    if F::OFFSET != 0 {
                        let x_sum = _mm256_set1_ps(*token.sum.add(group));
                        sums = _mm256_fnmadd_ps(_mm256_set1_ps(F::OFFSET as f32), x_sum, sums);
                    }
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*token.scale.add(block)));
                    *total = _mm256_fmadd_ps(scale, sums, *total);
                }
                if F::MIN {
                    let min = panel.part(Part::Min, group);
                    for (total, token) in totals.iter_mut().zip(&tokens) {
                        *total =
                            _mm256_fmadd_ps(min, _mm256_set1_ps(*token.scaled.add(group)), *total);
                    }
                }
            }
        }
    }
    for (t, total) in totals.into_iter().enumerate().take(count) {
        let mut products = [0.0f32; ROWS];
        // SAFETY: the array holds eight floats.
        unsafe { _mm256_storeu_ps(products.as_mut_ptr(), total) };
        work.store(first + t, row, &products);
    }
}

/// For each of `T` tokens, the integer sums of group `part` of a block for the eight rows.
///
/// `#[inline]` is a hint only and cannot be made an order together with `#[target_feature]`, so
/// this function has the features of where it ends up.
#[inline(always)]
unsafe fn group_sums<F: Format, S: Source<F>, const T: usize>(
    panel: S,
    tokens: &[Token; T],
    block: usize,
    part: usize,
) -> [__m256i; T] {
    let chunks = CHUNKS * F::GROUP / BLOCK;
    // Chunks whose products' sums may be added in 16 bits: a power of two.
    let most = i16::MAX as i32 / (2 * F::MAX * MOST_PART);
    let narrow = 1usize << most.clamp(1, chunks as i32).ilog2();
    // SAFETY: the group is inside the panel and the activation rows.
    unsafe {
        let (high_factor, ones) = (_mm256_set1_epi16(HIGH as i16), _mm256_set1_epi16(1));
        let mut wide = [_mm256_setzero_si256(); T];
        for run in 0..chunks / narrow {
            let mut sums = [[_mm256_setzero_si256(); 2]; T];
            for step in 0..narrow {
                let chunk = part * chunks + run * narrow + step;
                let w = panel.integers(block, chunk);
                for (sums, token) in sums.iter_mut().zip(tokens) {
                    let x = token.values.add(2 * block * BLOCK + 4 * chunk);
                    for (sum, x) in sums.iter_mut().zip([x, x.add(BLOCK)]) {
                        let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
                        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(w, x));
                    }
                }
            }
            for (wide, [high, low]) in wide.iter_mut().zip(sums) {
                let high = _mm256_madd_epi16(high, high_factor);
                let low = _mm256_madd_epi16(low, ones);
                *wide = _mm256_add_epi32(*wide, _mm256_add_epi32(high, low));
            }
        }
        wide
    }
}
