//! ggml's formats with super-blocks of 256 elements.

use super::blocks::{IQ4_OFFSET, IQ4_TABLE, nibbles as block_nibbles};
use super::{Format, Row, ScaleKind, Scales, half_at};

/// Elements of a super-block.
pub(super) const SUPER: usize = 256;

/// The half-precision number with these bits, negated: minima are subtracted in these formats.
#[inline(always)]
fn negated(half: u16) -> u16 {
    half ^ 0x8000
}

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
    const BITS: usize = 2;
    const GROUP: usize = 16;
    const MIN: bool = true;
    const SCALES: Option<ScaleKind> = Some(ScaleKind::Super);

    #[inline(always)]
    fn codes(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(84).zip(out.chunks_exact_mut(SUPER)) {
            bit_pairs(&block[16..], out);
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        for (i, block) in row.data.chunks_exact(84).enumerate() {
            out.factors(i, half_at(block, 80), negated(half_at(block, 82)));
            for (g, &packed) in block[..16].iter().enumerate() {
                out.bytes(16 * i + g, (packed & 15) as i8, (packed >> 4) as i8);
            }
        }
    }
}

/// 16 groups with 6-bit scale: third bits, bit pairs, scales, f16 scale of the scales.
pub(crate) struct Q3K;

impl Format for Q3K {
    const BITS: usize = 3;
    const GROUP: usize = 16;
    const OFFSET: i32 = 4;
    const SCALES: Option<ScaleKind> = Some(ScaleKind::Super);

    #[inline(always)]
    fn codes(row: &Row<'_>, out: &mut [u8]) {
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
            out.factors(i, half_at(block, 108), 0);
            let packed = &block[96..108];
            for g in 0..16 {
                // Low four bits: nibbles of the first eight bytes. High two: pairs of the rest.
                let low = packed[g % 8] >> (4 * (g / 8)) & 15;
                let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
                out.bytes(16 * i + g, (low | high << 4) as i8 - 32, 0);
            }
        }
    }
}

/// Scale and minimum of group `g` from the twelve bytes of Q4_K and Q5_K.
#[inline(always)]
fn scale_and_min(packed: &[u8], g: usize) -> (i8, i8) {
    let (scale, min) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        let (low, a, b) = (packed[g + 4], packed[g - 4] >> 6, packed[g] >> 6);
        (low & 15 | a << 4, low >> 4 | b << 4)
    };
    (scale as i8, min as i8)
}

/// The eight scales and minima of each super-block of Q4_K and Q5_K.
#[inline(always)]
fn scales_and_mins(row: &Row<'_>, bytes: usize, out: &mut Scales<'_>) {
    for (i, block) in row.data.chunks_exact(bytes).enumerate() {
        out.factors(i, half_at(block, 0), negated(half_at(block, 2)));
        for g in 0..8 {
            let (scale, min) = scale_and_min(&block[4..16], g);
            out.bytes(8 * i + g, scale, min);
        }
    }
}

/// 8 groups with 6-bit scale and minimum: f16 scale and minimum of the scales, scales, nibbles.
pub(crate) struct Q4K;

impl Format for Q4K {
    const BITS: usize = 4;
    const MIN: bool = true;
    const SCALES: Option<ScaleKind> = Some(ScaleKind::Super);

    #[inline(always)]
    fn codes(row: &Row<'_>, out: &mut [u8]) {
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
    const BITS: usize = 5;
    const MIN: bool = true;
    const SCALES: Option<ScaleKind> = Some(ScaleKind::Super);

    #[inline(always)]
    fn codes(row: &Row<'_>, out: &mut [u8]) {
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
    const BITS: usize = 6;
    const GROUP: usize = 16;
    const OFFSET: i32 = 32;
    const SCALES: Option<ScaleKind> = Some(ScaleKind::Super);

    #[inline(always)]
    fn codes(row: &Row<'_>, out: &mut [u8]) {
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
            out.factors(i, half_at(block, 208), 0);
            for (g, &scale) in block[192..208].iter().enumerate() {
                out.bytes(16 * i + g, scale as i8, 0);
            }
        }
    }
}

/// 8 groups with 6-bit scale: f16 scale of the scales, their high bits, their low bits, nibbles
/// that index a table.
pub(crate) struct Iq4Xs;

impl Format for Iq4Xs {
    const BITS: usize = 4;
    const MAX: i32 = 240;
    const TABLE: Option<&'static [u8; 16]> = Some(&IQ4_TABLE);
    const OFFSET: i32 = IQ4_OFFSET;
    const SCALES: Option<ScaleKind> = Some(ScaleKind::Super);

    #[inline(always)]
    fn codes(row: &Row<'_>, out: &mut [u8]) {
        for (block, out) in row.data.chunks_exact(136).zip(out.chunks_exact_mut(SUPER)) {
            for (packed, out) in block[8..].chunks_exact(16).zip(out.chunks_exact_mut(32)) {
                block_nibbles(packed, out);
            }
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        for (i, block) in row.data.chunks_exact(136).enumerate() {
            out.factors(i, half_at(block, 0), 0);
            let high = u16::from_le_bytes([block[2], block[3]]);
            for g in 0..8 {
                let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
                let scale = low | ((high >> (2 * g) & 3) << 4) as u8;
                out.bytes(8 * i + g, scale as i8 - 32, 0);
            }
        }
    }
}
