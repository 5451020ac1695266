//! ggml's formats with blocks of 32 elements.

use super::{BLOCK, Format, Row, Scales, f16_at};

/// Low nibbles are elements 0..16 of a block, high nibbles 16..32.
#[inline(always)]
fn nibbles(packed: &[u8], out: &mut [u8]) {
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
        values($block:ident, $out:ident) $values:block
        scales($sblock:ident) $scales:expr
    ) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)]
        pub(crate) struct $name;

        impl Format for $name {
            $($consts)*

            #[inline(always)]
            fn values(row: &Row<'_>, out: &mut [u8]) {
                let blocks = row.data.chunks_exact($bytes);
                for ($block, $out) in blocks.zip(out.chunks_exact_mut(BLOCK)) $values
            }

            #[inline(always)]
            fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
                for (i, $sblock) in row.data.chunks_exact($bytes).enumerate() {
                    let (scale, min): (f32, Option<f32>) = $scales;
                    match min {
                        Some(min) => out.set_with_min(i, scale, min),
                        None => out.set(i, scale),
                    }
                }
            }
        }
    };
}

block_format! {
    /// f16 scale, nibbles.
    Q4_0, 18 { const MAX: i32 = 15; const OFFSET: i32 = 8; }
    values(block, out) { nibbles(&block[2..], out); }
    scales(block) (f16_at(block, 0), None)
}

block_format! {
    /// f16 scale and minimum, nibbles.
    Q4_1, 20 { const MAX: i32 = 15; const MIN: bool = true; }
    values(block, out) { nibbles(&block[4..], out); }
    scales(block) (f16_at(block, 0), Some(f16_at(block, 2)))
}

block_format! {
    /// f16 scale, fifth bits, nibbles.
    Q5_0, 22 { const MAX: i32 = 31; const OFFSET: i32 = 16; }
    values(block, out) {
        nibbles(&block[6..], out);
        fifth_bits(&block[2..6], out);
    }
    scales(block) (f16_at(block, 0), None)
}

block_format! {
    /// f16 scale and minimum, fifth bits, nibbles.
    Q5_1, 24 { const MAX: i32 = 31; const MIN: bool = true; }
    values(block, out) {
        nibbles(&block[8..], out);
        fifth_bits(&block[4..8], out);
    }
    scales(block) (f16_at(block, 0), Some(f16_at(block, 2)))
}

block_format! {
    /// f16 scale, signed bytes.
    Q8_0, 34 { const MAX: i32 = 128; const SIGNED: bool = true; }
    values(block, out) { out.copy_from_slice(&block[2..]); }
    scales(block) (f16_at(block, 0), None)
}

/// The values that the indices of IQ4_NL and IQ4_XS stand for.
pub(crate) const IQ4_TABLE: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// As [`nibbles`], each looked up in [`IQ4_TABLE`].
#[inline(always)]
pub(super) fn iq4_values(packed: &[u8], out: &mut [u8]) {
    nibbles(packed, out);
    for value in out {
        *value = IQ4_TABLE[usize::from(*value & 15)] as u8;
    }
}

block_format! {
    /// f16 scale, nibbles that index a table of signed bytes.
    Iq4Nl, 18 { const MAX: i32 = 128; const SIGNED: bool = true; }
    values(block, out) { iq4_values(&block[2..], out); }
    scales(block) (f16_at(block, 0), None)
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
    MxFp4, 17 { const MAX: i32 = 24; const OFFSET: i32 = 12; }
    values(block, out) {
        nibbles(&block[1..], out);
        for value in out {
            *value = FP4_TABLE[usize::from(*value & 15)];
        }
    }
    scales(block) (half_power_of_two(block[0]), None)
}
