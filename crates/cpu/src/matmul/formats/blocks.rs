//! ggml's formats with blocks of 32 elements.

use super::{BLOCK, Format, Row, ScaleKind, Scales, half_at};

/// Low nibbles are elements 0..16 of a block, high nibbles 16..32.
#[inline(always)]
pub(super) fn nibbles(packed: &[u8], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(16);
    for ((&byte, low), high) in packed[..16].iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Adds bit `i` of the four bytes as fifth bit of element `i`.
#[inline(always)]
fn fifth_bits(bits: &[u8], out: &mut [u8]) {
    for (chunk, &byte) in out.chunks_exact_mut(8).zip(bits) {
        for (i, value) in chunk.iter_mut().enumerate() {
            *value |= (byte >> i & 1) << 4;
        }
    }
}

macro_rules! block_format {
    (
        $(#[$doc:meta])* $name:ident, $bytes:literal { $($consts:tt)* }
        codes($block:ident, $out:ident) $codes:block
        scales($sblock:ident) $scales:expr
    ) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)]
        pub(crate) struct $name;

        impl Format for $name {
            $($consts)*

            #[inline(always)]
            fn codes(row: &Row<'_>, out: &mut [u8]) {
                let blocks = row.data.chunks_exact($bytes);
                for ($block, $out) in blocks.zip(out.chunks_exact_mut(BLOCK)) $codes
            }

            #[inline(always)]
            fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
                for (i, $sblock) in row.data.chunks_exact($bytes).enumerate() {
                    let (scale, min): (u16, u16) = $scales;
                    out.halves(i, scale, min);
                }
            }
        }
    };
}

block_format! {
    /// f16 scale, nibbles.
    Q4_0, 18 {
        const BITS: usize = 4;
        const OFFSET: i32 = 8;
        const SCALES: Option<ScaleKind> = Some(ScaleKind::Half);
    }
    codes(block, out) { nibbles(&block[2..], out); }
    scales(block) (half_at(block, 0), 0)
}

block_format! {
    /// f16 scale and minimum, nibbles.
    Q4_1, 20 {
        const BITS: usize = 4;
        const MIN: bool = true;
        const SCALES: Option<ScaleKind> = Some(ScaleKind::Half);
    }
    codes(block, out) { nibbles(&block[4..], out); }
    scales(block) (half_at(block, 0), half_at(block, 2))
}

block_format! {
    /// f16 scale, fifth bits, nibbles.
    Q5_0, 22 {
        const BITS: usize = 5;
        const OFFSET: i32 = 16;
        const SCALES: Option<ScaleKind> = Some(ScaleKind::Half);
    }
    codes(block, out) {
        nibbles(&block[6..], out);
        fifth_bits(&block[2..6], out);
    }
    scales(block) (half_at(block, 0), 0)
}

block_format! {
    /// f16 scale and minimum, fifth bits, nibbles.
    Q5_1, 24 {
        const BITS: usize = 5;
        const MIN: bool = true;
        const SCALES: Option<ScaleKind> = Some(ScaleKind::Half);
    }
    codes(block, out) {
        nibbles(&block[8..], out);
        fifth_bits(&block[4..8], out);
    }
    scales(block) (half_at(block, 0), half_at(block, 2))
}

block_format! {
    /// f16 scale, signed bytes.
    Q8_0, 34 {
        const BITS: usize = 8;
        const OFFSET: i32 = 128;
        const SCALES: Option<ScaleKind> = Some(ScaleKind::Half);
    }
    codes(block, out) {
        for (out, &byte) in out.iter_mut().zip(&block[2..]) {
            *out = byte ^ 0x80;
        }
    }
    scales(block) (half_at(block, 0), 0)
}

/// The values that the indices of IQ4_NL and IQ4_XS stand for, plus [`IQ4_OFFSET`].
pub(crate) const IQ4_TABLE: [u8; 16] =
    [0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240];

/// What makes them unsigned.
pub(crate) const IQ4_OFFSET: i32 = 127;

block_format! {
    /// f16 scale, nibbles that index a table.
    Iq4Nl, 18 {
        const BITS: usize = 4;
        const MAX: i32 = 240;
        const TABLE: Option<&'static [u8; 16]> = Some(&IQ4_TABLE);
        const OFFSET: i32 = IQ4_OFFSET;
        const SCALES: Option<ScaleKind> = Some(ScaleKind::Half);
    }
    codes(block, out) { nibbles(&block[2..], out); }
    scales(block) (half_at(block, 0), 0)
}

/// Twice the values of the 4-bit floats (E2M1), plus 12 to make them unsigned.
pub(crate) const FP4_TABLE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Half of the power of two that the byte stands for, as the table has doubled values.
#[inline(always)]
fn half_power_of_two(exponent: u8) -> f32 {
    let bits = match exponent {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        e => u32::from(e - 1) << 23,
    };
    f32::from_bits(bits)
}

block_format! {
    /// A power of two as scale, nibbles that are 4-bit floats.
    MxFp4, 17 {
        const BITS: usize = 4;
        const MAX: i32 = 24;
        const TABLE: Option<&'static [u8; 16]> = Some(&FP4_TABLE);
        const OFFSET: i32 = 12;
        const SCALES: Option<ScaleKind> = Some(ScaleKind::Brain);
    }
    codes(block, out) {
        nibbles(&block[1..], out);
    }
    scales(block) ((half_power_of_two(block[0]).to_bits() >> 16) as u16, 0)
}
