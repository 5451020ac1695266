//! ggml's formats with super-blocks of 256 elements.

use super::blocks::iq4_values;
use super::{Format, Row, Scales, f16_at};

const SUPER: usize = 256;

/// Elements `128 * half + 32 * pair + i` are the bit pair `pair` of byte `32 * half + i`.
#[inline(always)]
fn bit_pairs(packed: &[u8], out: &mut [u8]) {
    for (packed, out) in packed[..64].chunks_exact(32).zip(out.chunks_exact_mut(128)) {
        for (pair, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, &byte) in out.iter_mut().zip(packed) {
                *out = byte >> (2 * pair) & 3;
            }
        }
    }
}

/// Elements `64 * quarter + i` are the low nibble of byte `32 * quarter + i`, those 32 further on
/// the high nibble.
#[inline(always)]
fn nibbles(packed: &[u8], out: &mut [u8]) {
    for (packed, out) in packed[..128].chunks_exact(32).zip(out.chunks_exact_mut(64)) {
        let (low, high) = out.split_at_mut(32);
        for ((&byte, low), high) in packed.iter().zip(low).zip(high) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

/// 16 groups with 4-bit scale and minimum: scales, bit pairs, f16 scale and minimum of the scales.
pub(crate) struct Q2K;

impl Format for Q2K {
    const GROUP: usize = 16;
    const MAX: i32 = 3;
    const MIN: bool = true;

    #[inline(always)]
    fn values(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(84).zip(out.chunks_exact_mut(SUPER)) {
            bit_pairs(&block[16..], out);
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        for (i, block) in row.data.chunks_exact(84).enumerate() {
            let (d, min) = (f16_at(block, 80), f16_at(block, 82));
            for (g, &packed) in block[..16].iter().enumerate() {
                let (scale, low) = (f32::from(packed & 15), f32::from(packed >> 4));
                out.set_with_min(16 * i + g, d * scale, -(min * low));
            }
        }
    }
}

/// 16 groups with 6-bit scale: third bits, bit pairs, scales, f16 scale of the scales.
pub(crate) struct Q3K;

impl Format for Q3K {
    const GROUP: usize = 16;
    const MAX: i32 = 7;
    const OFFSET: i32 = 4;

    #[inline(always)]
    fn values(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(110).zip(out.chunks_exact_mut(SUPER)) {
            bit_pairs(&block[32..], out);
            for (bit, out) in out.chunks_exact_mut(32).enumerate() {
                for (value, &byte) in out.iter_mut().zip(&block[..32]) {
                    *value |= (byte >> bit & 1) << 2;
                }
            }
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        for (i, block) in row.data.chunks_exact(110).enumerate() {
            let d = f16_at(block, 108);
            let packed = &block[96..108];
            for g in 0..16 {
                // Low four bits: nibbles of the first eight bytes. High two: pairs of the rest.
                let low = packed[g % 8] >> (4 * (g / 8)) & 15;
                let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
                out.set(16 * i + g, d * (f32::from(low | high << 4) - 32.0));
            }
        }
    }
}

/// Scale and minimum of group `g` from the twelve bytes of Q4_K and Q5_K.
#[inline(always)]
fn scale_and_min(packed: &[u8], g: usize) -> (f32, f32) {
    let (scale, min) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        let (low, a, b) = (packed[g + 4], packed[g - 4] >> 6, packed[g] >> 6);
        (low & 15 | a << 4, low >> 4 | b << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// The eight scales and minima of each super-block of Q4_K and Q5_K.
#[inline(always)]
fn scales_and_mins(row: &Row<'_>, bytes: usize, out: &mut Scales<'_>) {
    for (i, block) in row.data.chunks_exact(bytes).enumerate() {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        for g in 0..8 {
            let (scale, min) = scale_and_min(&block[4..16], g);
            out.set_with_min(8 * i + g, d * scale, -(dmin * min));
        }
    }
}

/// 8 groups with 6-bit scale and minimum: f16 scale and minimum of the scales, scales, nibbles.
pub(crate) struct Q4K;

impl Format for Q4K {
    const MAX: i32 = 15;
    const MIN: bool = true;

    #[inline(always)]
    fn values(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(144).zip(out.chunks_exact_mut(SUPER)) {
            nibbles(&block[16..], out);
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        scales_and_mins(row, 144, out);
    }
}

/// As [`Q4K`] with fifth bits before the nibbles.
pub(crate) struct Q5K;

impl Format for Q5K {
    const MAX: i32 = 31;
    const MIN: bool = true;

    #[inline(always)]
    fn values(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(176).zip(out.chunks_exact_mut(SUPER)) {
            nibbles(&block[48..], out);
            for (bit, out) in out.chunks_exact_mut(32).enumerate() {
                for (value, &byte) in out.iter_mut().zip(&block[16..48]) {
                    *value |= (byte >> bit & 1) << 4;
                }
            }
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        scales_and_mins(row, 176, out);
    }
}

/// 16 groups with signed 8-bit scale: low nibbles, high bit pairs, scales, f16 scale of the scales.
pub(crate) struct Q6K;

impl Format for Q6K {
    const GROUP: usize = 16;
    const MAX: i32 = 63;
    const OFFSET: i32 = 32;

    #[inline(always)]
    fn values(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(210).zip(out.chunks_exact_mut(SUPER)) {
            for (half, out) in out.chunks_exact_mut(128).enumerate() {
                let low = &block[64 * half..64 * half + 64];
                let high = &block[128 + 32 * half..160 + 32 * half];
                for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
                    let low = &low[32 * (quarter % 2)..32 * (quarter % 2) + 32];
                    let shift = 4 * (quarter / 2);
                    for ((value, &low), &high) in out.iter_mut().zip(low).zip(high) {
                        *value = low >> shift & 15 | (high >> (2 * quarter) & 3) << 4;
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        for (i, block) in row.data.chunks_exact(210).enumerate() {
            let d = f16_at(block, 208);
            for (g, &scale) in block[192..208].iter().enumerate() {
                out.set(16 * i + g, d * f32::from(scale as i8));
            }
        }
    }
}

/// 8 groups with 6-bit scale: f16 scale of the scales, their high bits, their low bits, nibbles
/// that index a table.
pub(crate) struct Iq4Xs;

impl Format for Iq4Xs {
    const MAX: i32 = 128;
    const SIGNED: bool = true;

    #[inline(always)]
    fn values(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(136).zip(out.chunks_exact_mut(SUPER)) {
            for (packed, out) in block[8..].chunks_exact(16).zip(out.chunks_exact_mut(32)) {
                iq4_values(packed, out);
            }
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        for (i, block) in row.data.chunks_exact(136).enumerate() {
            let d = f16_at(block, 0);
            let high = u16::from_le_bytes([block[2], block[3]]);
            for g in 0..8 {
                let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
                let scale = u16::from(low) | (high >> (2 * g) & 3) << 4;
                out.set(8 * i + g, d * (f32::from(scale) - 32.0));
            }
        }
    }
}
