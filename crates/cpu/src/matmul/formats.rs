//! Weight formats as the matrix kernels see them.
//!
//! Every quantized format is reduced to the same picture: a row is a sequence of small integers
//! with one scale, and for some formats one minimum, per group of 16 or 32 of them:
//! `weight = scale * (integer - OFFSET) + minimum`. A format says how to read the two parts from a
//! file; packing and all kernels are written once against that picture.

mod affine;
mod blocks;
mod kquants;
mod scales;

pub(crate) use affine::Affine;
pub(crate) use blocks::{Iq4Nl, MxFp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use kquants::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use scales::{Part, ScaleKind, ScaleSizes, Scales, factor_at};

use baton_weights::DType;

/// Elements that share one activation scale; the step of all integer kernels.
pub(crate) const BLOCK: usize = 32;

/// One row of a matrix as it lies in the file.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    /// The packed values, in block formats with everything else between them.
    pub(crate) data: &'a [u8],
    /// MLX's scales and biases, one per group; empty for other formats.
    pub(crate) scales: &'a [u8],
    /// See `scales`.
    pub(crate) biases: &'a [u8],
    /// Type of both.
    pub(crate) scale_type: DType,
    /// Elements that share one of them.
    pub(crate) group: usize,
}

/// A quantized weight format.
pub(crate) trait Format {
    /// Bits of an element's code.
    const BITS: usize;
    /// Elements per scale: 16 or 32.
    const GROUP: usize = BLOCK;
    /// Largest integer; integers are bytes in `0..=MAX`.
    const MAX: i32 = (1 << Self::BITS) - 1;
    /// The integers that codes stand for, if not themselves.
    const TABLE: Option<&'static [u8; 16]> = None;
    /// What is subtracted from each integer.
    const OFFSET: i32 = 0;
    /// Whether groups have a minimum.
    const MIN: bool = false;
    /// How scales are kept; `None` if that depends on the file.
    const SCALES: Option<ScaleKind>;

    /// Writes the codes of a row, one byte each.
    fn codes(row: &Row<'_>, out: &mut [u8]);
    /// Writes the scales, and minima where there are any, of every group.
    fn scales(row: &Row<'_>, out: &mut Scales<'_>);
}

/// Runs `$body` with the type `$F` bound to the format of a quantized `DType`, else `$otherwise`.
macro_rules! with_format {
    ($dtype:expr, $F:ident => $body:expr, else $otherwise:expr) => {{
        use baton_weights::DType as D;
        use $crate::matmul::formats as f;
        match $dtype {
            D::Q4_0 => {
                type $F = f::Q4_0;
                $body
            }
            D::Q4_1 => {
                type $F = f::Q4_1;
                $body
            }
            D::Q5_0 => {
                type $F = f::Q5_0;
                $body
            }
            D::Q5_1 => {
                type $F = f::Q5_1;
                $body
            }
            D::Q8_0 => {
                type $F = f::Q8_0;
                $body
            }
            D::Q2_K => {
                type $F = f::Q2K;
                $body
            }
            D::Q3_K => {
                type $F = f::Q3K;
                $body
            }
            D::Q4_K => {
                type $F = f::Q4K;
                $body
            }
            D::Q5_K => {
                type $F = f::Q5K;
                $body
            }
            D::Q6_K => {
                type $F = f::Q6K;
                $body
            }
            D::Iq4Nl => {
                type $F = f::Iq4Nl;
                $body
            }
            D::Iq4Xs => {
                type $F = f::Iq4Xs;
                $body
            }
            D::MxFp4 => {
                type $F = f::MxFp4;
                $body
            }
            D::Affine { bits: 2, .. } => {
                type $F = f::Affine<2>;
                $body
            }
            D::Affine { bits: 3, .. } => {
                type $F = f::Affine<3>;
                $body
            }
            D::Affine { bits: 4, .. } => {
                type $F = f::Affine<4>;
                $body
            }
            D::Affine { bits: 5, .. } => {
                type $F = f::Affine<5>;
                $body
            }
            D::Affine { bits: 6, .. } => {
                type $F = f::Affine<6>;
                $body
            }
            D::Affine { bits: 8, .. } => {
                type $F = f::Affine<8>;
                $body
            }
            _ => $otherwise,
        }
    }};
}
pub(crate) use with_format;

/// The single-precision value of half-precision bits. Branch-free, so that it vectorizes.
#[inline(always)]
pub(crate) fn f16(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13);
    // Moves the exponent's bias from 15 to 127; exact for subnormals too.
    let value = (magnitude * f32::from_bits(0x7780_0000)).to_bits();
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value | special | u32::from(bits & 0x8000) << 16)
}

/// The bits of the 16-bit number at byte `at`.
#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The bits of the single-precision number at byte `at`.
#[inline(always)]
fn single_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_of_every_kind() {
        for (bits, value) in [
            (0u16, 0.0f32),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(f16(bits), value, "{bits:#x}");
        }
        assert!(f16(0x7e00).is_nan() && f16(0x7c01).is_nan());
        assert!(f16(0x8000).is_sign_negative());
    }
}
