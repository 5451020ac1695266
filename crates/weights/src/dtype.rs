//! The encodings a tensor's elements may have.

use std::fmt;

/// How the elements of a [`Tensor`](crate::Tensor) are encoded.
///
/// The `Q*`, `Iq*` and `MxFp4` variants are ggml's block formats: a row is a sequence of blocks of
/// [`DType::block_len`] elements, [`DType::block_bytes`] bytes each. [`DType::Affine`] is MLX's
/// format, whose scales and biases lie in tensors of their own.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16: the upper half of a single.
    BF16,
    /// 32 weights: f16 scale, 4-bit values minus 8.
    Q4_0,
    /// 32 weights: f16 scale and minimum, 4-bit values.
    Q4_1,
    /// 32 weights: f16 scale, 5-bit values minus 16.
    Q5_0,
    /// 32 weights: f16 scale and minimum, 5-bit values.
    Q5_1,
    /// 32 weights: f16 scale, signed 8-bit values.
    Q8_0,
    /// 256 weights: 16 groups with 4-bit scale and minimum, 2-bit values.
    Q2_K,
    /// 256 weights: 16 groups with 6-bit scale, 3-bit values.
    Q3_K,
    /// 256 weights: 8 groups with 6-bit scale and minimum, 4-bit values.
    Q4_K,
    /// 256 weights: 8 groups with 6-bit scale and minimum, 5-bit values.
    Q5_K,
    /// 256 weights: 16 groups with 8-bit scale, 6-bit values.
    Q6_K,
    /// 32 weights: f16 scale, 4-bit indices into a non-linear table.
    Iq4Nl,
    /// 256 weights: 8 groups with 6-bit scale, 4-bit indices into a non-linear table.
    Iq4Xs,
    /// 32 weights: a power-of-two scale (E8M0), 4-bit floats (E2M1). OCP Microscaling format.
    MxFp4,
    /// MLX's affine format: `w = scale * q + bias` for each group of `group_size` weights along a
    /// row, `q` of `bits` bits packed little-endian into 32-bit words.
    Affine {
        /// Bits of one weight: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Weights that share a scale and a bias: 32, 64 or 128.
        group_size: u16,
    },
}

impl DType {
    /// Elements in one block; a row's length is a multiple of it.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::Iq4Nl | DType::MxFp4 => 32,
            DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
            DType::Iq4Xs => 256,
            DType::Affine { group_size, .. } => group_size as usize,
        }
    }

    /// Bytes of one block. For [`DType::Affine`]: of the packed values alone.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 | DType::Iq4Nl => 2 + 16,
            DType::Q4_1 => 4 + 16,
            DType::Q5_0 => 2 + 4 + 16,
            DType::Q5_1 => 4 + 4 + 16,
            DType::Q8_0 => 2 + 32,
            DType::Q2_K => 16 + 64 + 4,
            DType::Q3_K => 32 + 64 + 12 + 2,
            DType::Q4_K => 4 + 12 + 128,
            DType::Q5_K => 4 + 12 + 32 + 128,
            DType::Q6_K => 128 + 64 + 16 + 2,
            DType::Iq4Xs => 2 + 2 + 4 + 128,
            DType::MxFp4 => 1 + 16,
            DType::Affine { bits, group_size } => group_size as usize * bits as usize / 8,
        }
    }

    /// True for types whose elements are plain floats.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DType::Iq4Nl => f.write_str("IQ4_NL"),
            DType::Iq4Xs => f.write_str("IQ4_XS"),
            DType::MxFp4 => f.write_str("MXFP4"),
            DType::Affine { bits, group_size } => write!(f, "MLX {bits}-bit g{group_size}"),
            other => write!(f, "{other:?}"),
        }
    }
}
