//! Reading the scales of eight rows at once, in the order that the kernels want: eight rows for
//! each group.

use std::arch::x86_64::*;

use baton_weights::DType;

use crate::matmul::formats::{BLOCK, Format, Row, Scales};

/// Rows that are read together.
const ROWS: usize = 8;

/// The format's own plain code.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn plain<F: Format>(
    rows: &[Row<'_>],
    scale: &mut [f32],
    min: &mut [f32],
    stride: usize,
) {
    for (i, row) in rows[..ROWS].iter().enumerate() {
        let min = if F::MIN { &mut min[i..] } else { &mut [] };
        F::scales(row, &mut Scales { scale: &mut scale[i..], min, stride });
    }
}

/// Where eight floats of group `group` go.
#[inline(always)]
fn eight(all: &mut [f32], group: usize, stride: usize) -> &mut [f32; ROWS] {
    all[group * stride..].first_chunk_mut().expect("room for every group")
}

#[inline]
#[target_feature(enable = "avx2")]
fn put(out: &mut [f32; ROWS], v: __m256) {
    // SAFETY: the array holds eight floats.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v) };
}

/// Blocks of `BYTES` bytes that start with a half-precision scale and, if `MIN`, a minimum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn headers<const BYTES: usize, const MIN: bool>(
    rows: &[Row<'_>],
    scale: &mut [f32],
    min: &mut [f32],
    stride: usize,
) {
    let blocks = rows[0].data.len() / BYTES;
    assert!(rows.len() >= ROWS && rows.iter().all(|row| row.data.len() == blocks * BYTES));
    let starts: [*const u8; ROWS] = std::array::from_fn(|i| rows[i].data.as_ptr());
    for block in 0..blocks {
        // SAFETY: blocks have more than four bytes.
        let [a, b, c, d, e, f, g, h] =
            starts.map(|row| unsafe { row.add(block * BYTES).cast::<i32>().read_unaligned() });
        let both = _mm256_setr_epi32(a, b, c, d, e, f, g, h);
        let low = _mm256_and_si256(both, _mm256_set1_epi32(0xffff));
        let halves = _mm256_packus_epi32(low, _mm256_srli_epi32(both, 16));
        let halves = _mm256_permute4x64_epi64(halves, 0b11_01_10_00);
        put(eight(scale, block, stride), _mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
        if MIN {
            let high = _mm256_extracti128_si256(halves, 1);
            put(eight(min, block, stride), _mm256_cvtph_ps(high));
        }
    }
}

/// Eight 6-bit scales and minima for each super-block of `BYTES` bytes, as Q4_K and Q5_K have them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn six_bits<const BYTES: usize>(
    rows: &[Row<'_>],
    scale: &mut [f32],
    min: &mut [f32],
    stride: usize,
) {
    for i in 0..rows[0].data.len() / BYTES {
        let mut scales = [_mm256_setzero_ps(); ROWS];
        let mut mins = scales;
        for ((row, scales), mins) in rows.iter().zip(&mut scales).zip(&mut mins) {
            let block: &[u8; 16] = row.data[i * BYTES..].first_chunk().expect("a whole block");
            let word = |at: usize| {
                u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
            };
            let (a, b, c) = (word(4), word(8), word(12));
            let (low, two) = (0x0f0f_0f0f, 0x0303_0303);
            let second = c & low | (a >> 6 & two) << 4;
            let first = a & 0x3f3f_3f3f;
            let second_min = c >> 4 & low | (b >> 6 & two) << 4;
            let first_min = b & 0x3f3f_3f3f;
            let d = _mm_cvtph_ps(_mm_cvtsi32_si128(word(0) as i32));
            let dmin = _mm_xor_ps(_mm_movehdup_ps(d), _mm_set1_ps(-0.0));
            let spread = |first: u32, second: u32| {
                let bytes = _mm_cvtsi64_si128((u64::from(second) << 32 | u64::from(first)) as i64);
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
            };
            *scales = _mm256_mul_ps(_mm256_broadcastss_ps(d), spread(first, second));
            *mins = _mm256_mul_ps(_mm256_broadcastss_ps(dmin), spread(first_min, second_min));
        }
        for (g, v) in transposed(scales).into_iter().enumerate() {
            put(eight(scale, 8 * i + g, stride), v);
        }
        for (g, v) in transposed(mins).into_iter().enumerate() {
            put(eight(min, 8 * i + g, stride), v);
        }
    }
}

/// Sixteen signed bytes and a half-precision factor at the end of each super-block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn q6_k(rows: &[Row<'_>], scale: &mut [f32], _min: &mut [f32], stride: usize) {
    for i in 0..rows[0].data.len() / 210 {
        for half in 0..2 {
            let mut scales = [_mm256_setzero_ps(); ROWS];
            for (row, scales) in rows.iter().zip(&mut scales) {
                let block = &row.data[i * 210..(i + 1) * 210];
                let bytes: &[u8; 8] = block[192 + 8 * half..].first_chunk().expect("a whole block");
                let d = i32::from(u16::from_le_bytes([block[208], block[209]]));
                let d = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(d)));
                let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(*bytes));
                *scales = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
            }
            for (g, v) in transposed(scales).into_iter().enumerate() {
                put(eight(scale, 16 * i + 8 * half + g, stride), v);
            }
        }
    }
}

/// MLX's scales and biases. Eight groups at a time; what is left over goes the plain way.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn affine<const BITS: usize>(
    rows: &[Row<'_>],
    scale: &mut [f32],
    min: &mut [f32],
    stride: usize,
) {
    let Row { scale_type, group, .. } = rows[0];
    if scale_type == DType::F32 {
        // SAFETY: the features are there.
        return unsafe { plain::<crate::matmul::formats::Affine<BITS>>(rows, scale, min, stride) };
    }
    let (groups, blocks_each) = (rows[0].scales.len() / 2, group / BLOCK);
    for first in (0..groups).step_by(8) {
        let count = (groups - first).min(8);
        let read = |packed: &[u8]| {
            let mut halves = [0u8; 16];
            halves[..2 * count].copy_from_slice(&packed[2 * first..2 * (first + count)]);
            // SAFETY: 16 bytes are read from an array of them.
            let halves = unsafe { _mm_loadu_si128(halves.as_ptr().cast()) };
            if scale_type == DType::BF16 {
                let wide = _mm256_cvtepu16_epi32(halves);
                _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))
            } else {
                _mm256_cvtph_ps(halves)
            }
        };
        let mut scales = [_mm256_setzero_ps(); ROWS];
        let mut mins = scales;
        for ((row, scales), mins) in rows.iter().zip(&mut scales).zip(&mut mins) {
            (*scales, *mins) = (read(row.scales), read(row.biases));
            if BITS == 8 {
                let shift = _mm256_mul_ps(*scales, _mm256_set1_ps(128.0));
                *mins = _mm256_add_ps(shift, *mins);
            }
        }
        let both = transposed(scales).into_iter().zip(transposed(mins)).take(count);
        for (g, (scales, mins)) in both.enumerate() {
            for block in 0..blocks_each {
                let at = (first + g) * blocks_each + block;
                put(eight(scale, at, stride), scales);
                put(eight(min, at, stride), mins);
            }
        }
    }
}

/// Rows become columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(v: [__m256; 8]) -> [__m256; 8] {
    let pairs = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let fours =
        |a, b| (_mm256_shuffle_ps(a, b, 0b01_00_01_00), _mm256_shuffle_ps(a, b, 0b11_10_11_10));
    let ((a0, a1), (b0, b1)) = (pairs(v[0], v[1]), pairs(v[2], v[3]));
    let ((c0, c1), (d0, d1)) = (pairs(v[4], v[5]), pairs(v[6], v[7]));
    let ((e0, e1), (e2, e3)) = (fours(a0, b0), fours(a1, b1));
    let ((f0, f1), (f2, f3)) = (fours(c0, d0), fours(c1, d1));
    let low = |a, b| _mm256_permute2f128_ps(a, b, 0x20);
    let high = |a, b| _mm256_permute2f128_ps(a, b, 0x31);
    [
        low(e0, f0),
        low(e1, f1),
        low(e2, f2),
        low(e3, f3),
        high(e0, f0),
        high(e1, f1),
        high(e2, f2),
        high(e3, f3),
    ]
}
