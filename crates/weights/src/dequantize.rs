//! Decoding of every format to single precision.
//!
//! These are the plain definitions that faster kernels are tested against: each formula multiplies
//! and adds in the order that ggml (or MLX) uses, so that results agree to the bit.

mod affine;
mod codes;
mod iq;
mod k_quants;
mod legacy;

use half::{bf16, f16};

pub use self::codes::Codes;
use crate::{DType, Tensor};

impl Tensor {
    /// Decodes row `row`, one of [`Tensor::rows`], into `out`, which holds [`Tensor::cols`] values.
    ///
    /// # Panics
    /// If `row` is out of bounds or `out` has another length.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        assert_eq!(out.len(), self.cols(), "out must hold one row");
        let bytes = &self.data()[row * self.row_bytes()..][..self.row_bytes()];
        match self.affine() {
            Some(affine) => affine::row(self.dtype(), affine, row, bytes, out),
            None => dequantize_blocks(self.dtype(), bytes, out),
        }
    }

    /// Decodes the whole tensor, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.elements()];
        if !out.is_empty() {
            for (row, values) in out.chunks_exact_mut(self.cols()).enumerate() {
                self.dequantize_row(row, values);
            }
        }
        out
    }
}

/// Decodes `bytes`, whole blocks of `dtype`, into `out`.
///
/// # Panics
/// If the two lengths do not belong together, or for [`DType::Affine`], whose scales lie elsewhere.
pub fn dequantize_blocks(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let blocks = out.len() / dtype.block_len();
    assert!(
        blocks * dtype.block_len() == out.len() && blocks * dtype.block_bytes() == bytes.len(),
        "{} bytes of {dtype} for {} values",
        bytes.len(),
        out.len()
    );
    match dtype {
        DType::F32 => each(bytes, out, |b, o: &mut [f32; 1]| o[0] = f32::from_le_bytes(*b)),
        DType::F16 => each(bytes, out, |b, o: &mut [f32; 1]| o[0] = f16_le(*b)),
        DType::BF16 => each(bytes, out, |b, o: &mut [f32; 1]| o[0] = bf16_le(*b)),
        DType::Q4_0 => each(bytes, out, legacy::q4_0),
        DType::Q4_1 => each(bytes, out, legacy::q4_1),
        DType::Q5_0 => each(bytes, out, legacy::q5_0),
        DType::Q5_1 => each(bytes, out, legacy::q5_1),
        DType::Q8_0 => each(bytes, out, legacy::q8_0),
        DType::Q2_K => each(bytes, out, k_quants::q2_k),
        DType::Q3_K => each(bytes, out, k_quants::q3_k),
        DType::Q4_K => each(bytes, out, k_quants::q4_k),
        DType::Q5_K => each(bytes, out, k_quants::q5_k),
        DType::Q6_K => each(bytes, out, k_quants::q6_k),
        DType::Iq4Nl => each(bytes, out, iq::iq4_nl),
        DType::Iq4Xs => each(bytes, out, iq::iq4_xs),
        DType::MxFp4 => each(bytes, out, iq::mxfp4),
        DType::Affine { .. } => panic!("an affine tensor's blocks need its scales"),
    }
}

fn each<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (block, values) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, values);
    }
}

fn f16_le(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

fn bf16_le(bytes: [u8; 2]) -> f32 {
    // Not bf16::to_f32, which would set the quiet bit of a NaN.
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// The half-precision value at byte `at` of a block.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_le([block[at], block[at + 1]])
}

/// Rounds to the precision of a float type.
fn round_to(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
