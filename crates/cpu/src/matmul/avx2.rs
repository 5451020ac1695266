//! The integer kernels for AVX2: panels of eight matrix rows, one to a 32-bit lane.
//!
//! Bytes are multiplied by `vpmaddubsw`, unsigned by signed, whose sums of two products must not
//! exceed 16 bits. Activations are within ±127 and unsigned weights at most 63, so they never do;
//! how many such sums may be added before they are widened is worked out from `Format::MAX` at
//! compile time. Signed weights are up to 128 in magnitude: 2 * 128 * 127 just fits.

pub(super) mod load;
mod scales;

use std::arch::x86_64::*;

use super::formats::{BLOCK, Format, Row, with_format};
use super::panels::{self, Kernel, Packed, Panel, PanelScales, Token};
use super::scratch::Scratch;
use super::work::Work;
use load::Load;

/// Rows of a panel.
const ROWS: usize = 8;
/// Packed bytes of a block of all rows of a panel.
const PACKED_BLOCK: usize = ROWS * BLOCK;

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

impl<F: Load> Kernel<F> for Avx2 {
    const ROWS: usize = ROWS;
    const TILE: usize = 4;
    const MOST_DIRECT: usize = 2;
    const LINEAR: bool = F::LINEAR;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn values(row: &Row<'_>, out: &mut [u8]) {
        F::values(row, out);
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(rows: &[Row<'_>], scale: &mut [f32], min: &mut [f32]) {
        // SAFETY: the features are there.
        unsafe { F::scales_of_eight(rows, scale, min, ROWS) };
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn direct(work: &Work<'_>, row: usize, panel: Panel<'_>) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match work.job.tokens.len() {
                1 => direct::<F, 1>(work, row, panel),
                _ => direct::<F, 2>(work, row, panel),
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pack(rows: &[*const u8], blocks: usize, out: &mut [u8]) {
        assert!(rows.len() == ROWS && out.len() == blocks * PACKED_BLOCK);
        // SAFETY: the features are there, and `out` has room for all blocks.
        unsafe { pack::<F>(rows, blocks, out.as_mut_ptr(), ROWS) };
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile(work: &Work<'_>, row: usize, panel: Packed<'_>, first: usize, tokens: &[Token]) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match tokens.len() {
                1 | 2 => tile::<F, 2>(work, row, panel, first, tokens),
                _ => tile::<F, 4>(work, row, panel, first, tokens),
            }
        }
    }
}

/// Products of all `T` tokens with a panel whose values lie as in the file.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn direct<F: Load, const T: usize>(work: &Work<'_>, row: usize, panel: Panel<'_>) {
    let Panel { rows, scales } = panel;
    let tokens: [Token; T] = std::array::from_fn(|t| Token::new::<F>(work, t));
    let mut totals = [_mm256_setzero_ps(); T];
    for block in 0..work.x.cols / BLOCK {
        let mut low = [_mm256_setzero_si256(); 4];
        let mut high = low;
        for i in 0..4 {
            // SAFETY: block `block` is inside the rows.
            (low[i], high[i]) = unsafe { F::pair(rows[i], rows[i + 4], block) };
        }
        for (token, total) in tokens.iter().zip(&mut totals) {
            // SAFETY: block `block` is inside the activation row, and its groups inside the scales.
            unsafe {
                let x = token.values.add(block * BLOCK).cast();
                let x_low = _mm256_broadcastsi128_si256(_mm_loadu_si128(x));
                let x_high = _mm256_broadcastsi128_si256(_mm_loadu_si128(x.add(1)));
                if F::GROUP == BLOCK {
                    let sums = lane_sums_32::<F>(&low, &high, x_low, x_high);
                    *total = add_group::<F>(*total, sums, token, scales, block);
                } else {
                    let sums = lane_sums_16::<F>(&low, x_low);
                    *total = add_group::<F>(*total, sums, token, scales, 2 * block);
                    let sums = lane_sums_16::<F>(&high, x_high);
                    *total = add_group::<F>(*total, sums, token, scales, 2 * block + 1);
                }
            }
        }
    }
    // SAFETY: the features are there.
    unsafe { store(work, row, 0, &totals) };
}

/// Products of at most `T` tokens, those from number `first` on, with a packed panel.
#[target_feature(enable = "avx2,fma,f16c")]
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
    let mut totals = [_mm256_setzero_ps(); T];
    for group in 0..work.x.cols / F::GROUP {
        // SAFETY: group `group` is inside the panel, the activation rows and the scales.
        unsafe {
            let values = values.as_ptr().add(group * F::GROUP * ROWS);
            let sums = group_sums::<F, T>(values, &tokens, group * F::GROUP);
            for ((total, sums), token) in totals.iter_mut().zip(sums).zip(&tokens) {
                *total = add_group::<F>(*total, sums, token, scales, group);
            }
        }
    }
    // SAFETY: the features are there.
    unsafe { store(work, row, first, &totals[..count]) };
}

// What follows is part of the loops above. `#[inline]` is a hint only and cannot be made an order
// together with `#[target_feature]`, so these functions have the features of where they end up.

/// For each of `T` tokens, the integer sums of one group for the eight rows of a packed panel.
#[inline(always)]
unsafe fn group_sums<F: Load, const T: usize>(
    panel: *const u8,
    tokens: &[Token; T],
    first: usize,
) -> [__m256i; T] {
    // Steps of four values whose products' sums may be added in 16 bits: a power of two.
    let steps = F::GROUP / 4;
    let narrow = 1 << (i16::MAX as i32 / (2 * F::MAX * 127)).clamp(1, steps as i32).ilog2();
    // SAFETY: the group is inside the panel and the activation rows.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut wide = [_mm256_setzero_si256(); T];
        for chunk in 0..steps / narrow {
            let mut sums = [_mm256_setzero_si256(); T];
            for step in chunk * narrow..(chunk + 1) * narrow {
                let w = _mm256_loadu_si256(panel.add(step * 4 * ROWS).cast());
                for t in 0..T {
                    let x: *const i32 = tokens[t].values.add(first + 4 * step).cast();
                    let products = multiply::<F>(w, _mm256_set1_epi32(x.read_unaligned()));
                    sums[t] = _mm256_add_epi16(sums[t], products);
                }
            }
            for t in 0..T {
                wide[t] = _mm256_add_epi32(wide[t], _mm256_madd_epi16(sums[t], ones));
            }
        }
        wide
    }
}

/// Sums of two products each, as 16-bit integers.
#[inline(always)]
unsafe fn multiply<F: Format>(w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: arithmetic in registers.
    unsafe {
        if F::SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
        } else {
            _mm256_maddubs_epi16(w, x)
        }
    }
}

/// Integer sums of a block for each row. Vector `i` holds row `i` and, in its upper half, row
/// `i + 4`.
#[inline(always)]
unsafe fn lane_sums_32<F: Format>(
    low: &[__m256i; 4],
    high: &[__m256i; 4],
    x_low: __m256i,
    x_high: __m256i,
) -> __m256i {
    let largest = 4 * F::MAX * 127;
    // SAFETY: arithmetic in registers.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            let (a, b) = (multiply::<F>(low[i], x_low), multiply::<F>(high[i], x_high));
            sums[i] = if largest <= i16::MAX as i32 {
                _mm256_add_epi16(a, b)
            } else {
                _mm256_add_epi32(widen(a), widen(b))
            };
        }
        if largest <= i16::MAX as i32 { gather_rows(sums, largest) } else { gather_wide(sums) }
    }
}

/// As [`lane_sums_32`] for half a block.
#[inline(always)]
unsafe fn lane_sums_16<F: Format>(w: &[__m256i; 4], x: __m256i) -> __m256i {
    // SAFETY: arithmetic in registers.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            sums[i] = multiply::<F>(w[i], x);
        }
        gather_rows(sums, 2 * F::MAX * 127)
    }
}

/// Sums of neighbouring 16-bit integers.
#[inline(always)]
unsafe fn widen(v: __m256i) -> __m256i {
    // SAFETY: arithmetic in registers.
    unsafe { _mm256_madd_epi16(v, _mm256_set1_epi16(1)) }
}

/// Adds up each half of each vector, giving the eight sums in the order of the rows. Elements are
/// 16-bit integers of at most `largest` in magnitude; they are widened as late as that allows.
#[inline(always)]
unsafe fn gather_rows(v: [__m256i; 4], largest: i32) -> __m256i {
    let most = i16::MAX as i32;
    // SAFETY: arithmetic in registers.
    unsafe {
        if 2 * largest > most {
            return gather_wide([widen(v[0]), widen(v[1]), widen(v[2]), widen(v[3])]);
        }
        let a = _mm256_unpacklo_epi32(v[0], v[1]);
        let b = _mm256_unpackhi_epi32(v[0], v[1]);
        let c = _mm256_unpacklo_epi32(v[2], v[3]);
        let d = _mm256_unpackhi_epi32(v[2], v[3]);
        let (a, c) = (_mm256_add_epi16(a, b), _mm256_add_epi16(c, d));
        if 4 * largest > most {
            let (a, c) = (widen(a), widen(c));
            return _mm256_add_epi32(_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c));
        }
        let (a, b) = (_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c));
        widen(_mm256_add_epi16(a, b))
    }
}

/// As [`gather_rows`] for 32-bit integers.
#[inline(always)]
pub(super) unsafe fn gather_wide(v: [__m256i; 4]) -> __m256i {
    // SAFETY: arithmetic in registers.
    unsafe {
        let a = _mm256_unpacklo_epi32(v[0], v[1]);
        let b = _mm256_unpackhi_epi32(v[0], v[1]);
        let c = _mm256_unpacklo_epi32(v[2], v[3]);
        let d = _mm256_unpackhi_epi32(v[2], v[3]);
        let (a, c) = (_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
        _mm256_add_epi32(_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c))
    }
}

/// Adds one group's sums, scaled, to the totals of the eight rows.
#[inline(always)]
unsafe fn add_group<F: Format>(
    total: __m256,
    sums: __m256i,
    token: &Token,
    scales: PanelScales<'_>,
    group: usize,
) -> __m256 {
    // SAFETY: the caller's group is inside the activation row and the panel.
    unsafe {
        let mut sums = _mm256_cvtepi32_ps(sums);
        if F::OFFSET != 0 {
            let x_sum = _mm256_set1_ps(*token.sum.add(group));
            sums = _mm256_fnmadd_ps(_mm256_set1_ps(F::OFFSET as f32), x_sum, sums);
        }
        let x_scale = _mm256_set1_ps(*token.scale.add(group * F::GROUP / BLOCK));
        let scale =
            _mm256_mul_ps(_mm256_loadu_ps(scales.scale.as_ptr().add(group * ROWS)), x_scale);
        let total = _mm256_fmadd_ps(scale, sums, total);
        if !F::MIN {
            return total;
        }
        let min = _mm256_loadu_ps(scales.min.as_ptr().add(group * ROWS));
        _mm256_fmadd_ps(min, _mm256_set1_ps(*token.scaled.add(group)), total)
    }
}

#[inline(always)]
unsafe fn store(work: &Work<'_>, row: usize, token: usize, totals: &[__m256]) {
    for (t, &total) in totals.iter().enumerate() {
        let mut products = [0.0f32; ROWS];
        // SAFETY: the array holds eight floats.
        unsafe { _mm256_storeu_ps(products.as_mut_ptr(), total) };
        work.store(token + t, row, &products);
    }
}

/// Writes the values of eight rows so that a vector holds four consecutive ones of each. The
/// panel has `height` rows, of which these are neighbours.
///
/// # Safety
/// The machine must have AVX2, the rows `blocks` blocks, and `out` room for the panel from its
/// first of these rows on.
#[inline(always)]
pub(super) unsafe fn pack<F: Load>(rows: &[*const u8], blocks: usize, out: *mut u8, height: usize) {
    for block in 0..blocks {
        // SAFETY: the block is inside the rows, and `out` has room for it.
        unsafe {
            let mut low = [_mm256_setzero_si256(); 4];
            let mut high = low;
            for i in 0..4 {
                (low[i], high[i]) = F::pair(rows[i], rows[i + 4], block);
            }
            for (half, v) in [low, high].into_iter().enumerate() {
                let (a, b) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
                let (c, d) = (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
                let out = out.add((block * BLOCK + 16 * half) * height);
                _mm256_storeu_si256(out.cast(), _mm256_unpacklo_epi64(a, c));
                _mm256_storeu_si256(out.add(4 * height).cast(), _mm256_unpackhi_epi64(a, c));
                _mm256_storeu_si256(out.add(8 * height).cast(), _mm256_unpacklo_epi64(b, d));
                _mm256_storeu_si256(out.add(12 * height).cast(), _mm256_unpackhi_epi64(b, d));
            }
        }
    }
}
