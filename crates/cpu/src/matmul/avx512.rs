//! The integer kernels for AVX-512 with VNNI: panels of sixteen matrix rows.
//!
//! `vpdpbusd` multiplies unsigned by signed bytes and adds four products in 32 bits, so nothing
//! can overflow. Signed weights are shifted up by 128, which the sum of the activations takes
//! back. A few tokens are multiplied in vectors of 256 bits, two rows each, as by the AVX2 kernels:
//! reading the weights is the limit there. Packed panels are multiplied in vectors of 512 bits.

use std::arch::x86_64::*;

use super::avx2::load::Load;
use super::avx2::{gather_wide, pack};
use super::formats::{BLOCK, Format, Row, with_format};
use super::panels::{self, Kernel, Packed, Panel, PanelScales, Token};
use super::scratch::Scratch;
use super::work::Work;

/// Rows of a panel, and of the halves in which it is read.
const ROWS: usize = 16;
const HALF: usize = 8;
/// Tokens that meet a packed panel together.
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

impl<F: Load> Kernel<F> for Avx512 {
    const ROWS: usize = ROWS;
    const TILE: usize = TILE;
    const MOST_DIRECT: usize = 2;
    const LINEAR: bool = F::LINEAR;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn values(row: &Row<'_>, out: &mut [u8]) {
        F::values(row, out);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn scales(rows: &[Row<'_>], scale: &mut [f32], min: &mut [f32]) {
        let (first, second) = rows.split_at(HALF);
        // SAFETY: the features are there.
        unsafe {
            F::scales_of_eight(first, scale, min, ROWS);
            let min = if F::MIN { &mut min[HALF..] } else { min };
            F::scales_of_eight(second, &mut scale[HALF..], min, ROWS);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn direct(work: &Work<'_>, row: usize, panel: Panel<'_>) {
        for first in (0..ROWS).step_by(HALF).filter(|&first| row + first < work.rows.end) {
            // SAFETY: the features are there, and the panel is of the work's matrix.
            unsafe {
                match work.job.tokens.len() {
                    1 => direct::<F, 1>(work, row, panel, first),
                    _ => direct::<F, 2>(work, row, panel, first),
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn pack(rows: &[*const u8], blocks: usize, out: &mut [u8]) {
        assert!(rows.len() == ROWS && out.len() == blocks * BLOCK * ROWS);
        // SAFETY: the features are there, and `out` has room for all blocks of all rows.
        unsafe {
            pack::<F>(&rows[..HALF], blocks, out.as_mut_ptr(), ROWS);
            pack::<F>(&rows[HALF..], blocks, out.as_mut_ptr().add(4 * HALF), ROWS);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn tile(work: &Work<'_>, row: usize, panel: Packed<'_>, first: usize, tokens: &[Token]) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match tokens.len() {
                1..=4 => tile::<F, 4>(work, row, panel, first, tokens),
                _ => tile::<F, TILE>(work, row, panel, first, tokens),
            }
        }
    }
}

/// What is to be subtracted from the integers as they are multiplied.
const fn offset<F: Format>() -> i32 {
    if F::SIGNED { 128 } else { F::OFFSET }
}

/// Products of all `T` tokens with the eight rows from `first` on of a panel in the file's order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn direct<F: Load, const T: usize>(
    work: &Work<'_>,
    row: usize,
    panel: Panel<'_>,
    first: usize,
) {
    let rows = &panel.rows[first..first + HALF];
    let tokens: [Token; T] = std::array::from_fn(|t| Token::new::<F>(work, t));
    let mut totals = [_mm256_setzero_ps(); T];
    let zero = _mm256_setzero_si256();
    for block in 0..work.x.cols / BLOCK {
        let mut low = [zero; 4];
        let mut high = [zero; 4];
        for i in 0..4 {
            // SAFETY: block `block` is inside the rows.
            (low[i], high[i]) = unsafe { F::pair(rows[i], rows[i + 4], block) };
            if F::SIGNED {
                let flip = _mm256_set1_epi8(-128);
                low[i] = _mm256_xor_si256(low[i], flip);
                high[i] = _mm256_xor_si256(high[i], flip);
            }
        }
        for (token, total) in tokens.iter().zip(&mut totals) {
            // SAFETY: block `block` is inside the activation row, and its groups inside the scales.
            unsafe {
                let x = token.values.add(block * BLOCK).cast();
                let x_low = _mm256_broadcastsi128_si256(_mm_loadu_si128(x));
                let x_high = _mm256_broadcastsi128_si256(_mm_loadu_si128(x.add(1)));
                let (mut first_sums, mut sums) = ([zero; 4], [zero; 4]);
                for i in 0..4 {
                    first_sums[i] = _mm256_dpbusd_epi32(zero, low[i], x_low);
                    let before = if F::GROUP == BLOCK { first_sums[i] } else { zero };
                    sums[i] = _mm256_dpbusd_epi32(before, high[i], x_high);
                }
                if F::GROUP == BLOCK {
                    let sums = gather_wide(sums);
                    *total = add_half::<F>(*total, sums, token, panel.scales, block, first);
                } else {
                    for (half, sums) in [first_sums, sums].into_iter().enumerate() {
                        let (sums, group) = (gather_wide(sums), 2 * block + half);
                        *total = add_half::<F>(*total, sums, token, panel.scales, group, first);
                    }
                }
            }
        }
    }
    for (t, total) in totals.into_iter().enumerate() {
        let mut products = [0.0f32; HALF];
        // SAFETY: the array holds eight floats.
        unsafe { _mm256_storeu_ps(products.as_mut_ptr(), total) };
        work.store(t, row + first, &products);
    }
}

// The features of what follows are those of where it is inlined: see the AVX2 kernels.

/// Adds one group's sums, scaled, to the totals of eight rows from the panel's `first` on.
#[inline(always)]
unsafe fn add_half<F: Format>(
    total: __m256,
    sums: __m256i,
    token: &Token,
    scales: PanelScales<'_>,
    group: usize,
    first: usize,
) -> __m256 {
    let at = group * ROWS + first;
    // SAFETY: the caller's group is inside the activation row and the panel.
    unsafe {
        let mut sums = _mm256_cvtepi32_ps(sums);
        if offset::<F>() != 0 {
            let x_sum = _mm256_set1_ps(*token.sum.add(group));
            sums = _mm256_fnmadd_ps(_mm256_set1_ps(offset::<F>() as f32), x_sum, sums);
        }
        let x_scale = _mm256_set1_ps(*token.scale.add(group * F::GROUP / BLOCK));
        let scale = _mm256_mul_ps(_mm256_loadu_ps(scales.scale.as_ptr().add(at)), x_scale);
        let total = _mm256_fmadd_ps(scale, sums, total);
        if !F::MIN {
            return total;
        }
        let min = _mm256_loadu_ps(scales.min.as_ptr().add(at));
        _mm256_fmadd_ps(min, _mm256_set1_ps(*token.scaled.add(group)), total)
    }
}

/// Products of at most `T` tokens, those from number `first` on, with a packed panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<F: Load, const T: usize>(
    work: &Work<'_>,
    row: usize,
    panel: Packed<'_>,
    first: usize,
    tokens: &[Token],
) {
    let Packed { values, scales } = panel;
    let count = tokens.len();
    // Tokens past the end repeat the last; their products are dropped.
    let tokens: [Token; T] = std::array::from_fn(|t| tokens[t.min(count - 1)]);
    let mut totals = [_mm512_setzero_ps(); T];
    for group in 0..work.x.cols / F::GROUP {
        let mut sums = [_mm512_setzero_si512(); T];
        for step in 0..F::GROUP / 4 {
            let column = group * F::GROUP + 4 * step;
            // SAFETY: the column is inside the panel.
            let mut w = unsafe { _mm512_loadu_si512(values.as_ptr().add(column * ROWS).cast()) };
            if F::SIGNED {
                w = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
            }
            for (sums, token) in sums.iter_mut().zip(&tokens) {
                // SAFETY: the column is inside the activation row.
                let x = unsafe { token.values.add(column).cast::<i32>().read_unaligned() };
                *sums = _mm512_dpbusd_epi32(*sums, w, _mm512_set1_epi32(x));
            }
        }
        for ((total, sums), token) in totals.iter_mut().zip(sums).zip(&tokens) {
            // SAFETY: the group is inside the activation rows and the scales.
            *total = unsafe { add_group::<F>(*total, sums, token, scales, group) };
        }
    }
    for (t, total) in totals.into_iter().enumerate().take(count) {
        let mut products = [0.0f32; ROWS];
        // SAFETY: the array holds sixteen floats.
        unsafe { _mm512_storeu_ps(products.as_mut_ptr(), total) };
        work.store(first + t, row, &products);
    }
}

/// As [`add_half`] for all sixteen rows.
#[inline(always)]
unsafe fn add_group<F: Format>(
    total: __m512,
    sums: __m512i,
    token: &Token,
    scales: PanelScales<'_>,
    group: usize,
) -> __m512 {
    // SAFETY: the caller's group is inside the activation row and the panel.
    unsafe {
        let mut sums = _mm512_cvtepi32_ps(sums);
        if offset::<F>() != 0 {
            let x_sum = _mm512_set1_ps(*token.sum.add(group));
            sums = _mm512_fnmadd_ps(_mm512_set1_ps(offset::<F>() as f32), x_sum, sums);
        }
        let x_scale = _mm512_set1_ps(*token.scale.add(group * F::GROUP / BLOCK));
        let scale =
            _mm512_mul_ps(_mm512_loadu_ps(scales.scale.as_ptr().add(group * ROWS)), x_scale);
        let total = _mm512_fmadd_ps(scale, sums, total);
        if !F::MIN {
            return total;
        }
        let min = _mm512_loadu_ps(scales.min.as_ptr().add(group * ROWS));
        _mm512_fmadd_ps(min, _mm512_set1_ps(*token.scaled.add(group)), total)
    }
}
