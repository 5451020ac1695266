//! The integer kernels for AVX-512 with VNNI: panels of sixteen matrix rows.
//!
//! `vpdpbusd` multiplies unsigned by signed bytes and adds four products in 32 bits, so nothing
//! can overflow.

mod source;

use std::arch::x86_64::*;

use super::formats::{BLOCK, Format, Part, with_format};
use super::packed::{CHUNKS, Panel};
use super::panels::{self, Kernel, Token, Unpacked, Unpacking, widened};
use super::scratch::Scratch;
use super::work::Work;
use crate::quant::HIGH;
use source::Source;

/// Rows of a panel.
const ROWS: usize = 16;
/// Tokens that meet a panel together.
const TILE: usize = 8;

/// Does the work, which is of a quantized format.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL and VNNI, AVX2, FMA and F16C.
pub(super) unsafe fn run(work: &Work<'_>, scratch: &mut Scratch) {
    // SAFETY: as demanded of the caller.
    with_format!(work.job.matrix.dtype(), F => unsafe { panels::run::<F, Avx512>(work, scratch) },
        else unreachable!("floats have a kernel of their own"));
}

struct Avx512;

impl<F: Format> Kernel<F> for Avx512 {
    const ROWS: usize = ROWS;
    const TILE: usize = TILE;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn unpack(panel: Panel<'_>, blocks: usize, out: Unpacking<'_>) {
        for (block, out) in out.integers.chunks_exact_mut(ROWS * BLOCK).enumerate().take(blocks) {
            for (chunk, out) in out.chunks_exact_mut(4 * ROWS).enumerate() {
                // SAFETY: the block is inside the panel, and the chunk has room for a vector.
                unsafe {
                    let integers = Source::<F>::integers(panel, block, chunk);
                    _mm512_storeu_si512(out.as_mut_ptr().cast(), integers);
                }
            }
        }
        for (part, out) in [(Part::Scale, out.scale), (Part::Min, out.min)] {
            for (group, out) in out.chunks_exact_mut(ROWS).enumerate() {
                // SAFETY: the group is inside the panel, and there is room for a vector.
                unsafe {
                    _mm512_storeu_ps(out.as_mut_ptr(), Source::<F>::part(panel, part, group));
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn kept(work: &Work<'_>, row: usize, panel: Panel<'_>, first: usize, tokens: &[Token]) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match tokens.len() {
                1 => tile::<F, _, 1>(work, row, panel, first, tokens),
                2 => tile::<F, _, 2>(work, row, panel, first, tokens),
                3 | 4 => tile::<F, _, 4>(work, row, panel, first, tokens),
                _ => tile::<F, _, TILE>(work, row, panel, first, tokens),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
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
                1..=4 => tile::<F, _, 4>(work, row, panel, first, tokens),
                _ => tile::<F, _, TILE>(work, row, panel, first, tokens),
            }
        }
    }
}

/// Products of at most `T` tokens, those from number `first` on, with a panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<F: Format, S: Source<F>, const T: usize>(
    work: &Work<'_>,
    row: usize,
    panel: S,
    first: usize,
    tokens: &[Token],
) {
    let count = tokens.len();
    let tokens: [Token; T] = widened(tokens);
    let mut totals = [_mm512_setzero_ps(); T];
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
                    let mut sums = _mm512_cvtepi32_ps(sums);
                    if F::OFFSET != 0 {
                        let x_sum = _mm512_set1_ps(*token.sum.add(group));
                        sums = _mm512_fnmadd_ps(_mm512_set1_ps(F::OFFSET as f32), x_sum, sums);
                    }
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*token.scale.add(block)));
                    *total = _mm512_fmadd_ps(scale, sums, *total);
                }
                if F::MIN {
                    let min = panel.part(Part::Min, group);
                    for (total, token) in totals.iter_mut().zip(&tokens) {
                        let scaled = _mm512_set1_ps(*token.scaled.add(group));
                        *total = _mm512_fmadd_ps(min, scaled, *total);
                    }
                }
            }
        }
    }
    for (t, total) in totals.into_iter().enumerate().take(count) {
        let mut products = [0.0f32; ROWS];
        // SAFETY: the array holds sixteen floats.
        unsafe { _mm512_storeu_ps(products.as_mut_ptr(), total) };
        work.store(first + t, row, &products);
    }
}

/// For each of `T` tokens, the integer sums of group `part` of a block for the sixteen rows.
///
/// `#[inline]` is a hint only and cannot be made an order together with `#[target_feature]`, so
/// this function has the features of where it ends up.
#[inline(always)]
unsafe fn group_sums<F: Format, S: Source<F>, const T: usize>(
    panel: S,
    tokens: &[Token; T],
    block: usize,
    part: usize,
) -> [__m512i; T] {
    let chunks = CHUNKS * F::GROUP / BLOCK;
    // SAFETY: the group is inside the panel and the activation rows.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); 2]; T];
        for chunk in part * chunks..(part + 1) * chunks {
            let w = panel.integers(block, chunk);
            for (sums, token) in sums.iter_mut().zip(tokens) {
                let x = token.values.add(2 * block * BLOCK + 4 * chunk);
                for (sum, x) in sums.iter_mut().zip([x, x.add(BLOCK)]) {
                    let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
                    *sum = _mm512_dpbusd_epi32(*sum, w, x);
                }
            }
        }
        sums.map(|[high, low]| {
            // HIGH is one less than a power of two.
            let shifted = _mm512_slli_epi32::<{ (HIGH + 1).ilog2() }>(high);
            _mm512_add_epi32(_mm512_sub_epi32(shifted, high), low)
        })
    }
}

const _: () = assert!((HIGH + 1) & HIGH == 0);
