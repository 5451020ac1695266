//! MXFP4 as checkpoints store it, turned into ggml's blocks.

use crate::{DType, Error, Result, Tensor};

/// A [`DType::MxFp4`] tensor of the given shape from values and scales that lie apart, as in
/// gpt-oss's checkpoints and MLX's: byte `i` of `values` has weight `2 i` in its low and `2 i + 1`
/// in its high bits, and `scales` has one E8M0 byte for every 32 weights. ggml's blocks begin with
/// their scale, and pair weight `i` with `i + 16`. The new bytes are in memory, not in the file.
///
/// # Errors
/// If the lengths do not fit the shape, or its last dimension is no multiple of 32.
pub fn mxfp4_blocks(
    name: impl Into<String>,
    shape: &[usize],
    values: &[u8],
    scales: &[u8],
) -> Result<Tensor> {
    let name = name.into();
    if !values.len().is_multiple_of(16) || values.len() / 16 != scales.len() {
        let problem = format!(
            "{} bytes of MXFP4 values need {} scales, found {}",
            values.len(),
            values.len() / 16,
            scales.len()
        );
        return Err(Error::Tensor { name, problem });
    }
    let mut blocks = Vec::with_capacity(scales.len() * DType::MxFp4.block_bytes());
    for (pairs, scale) in values.as_chunks::<16>().0.iter().zip(scales) {
        blocks.push(*scale);
        let (first, second) = pairs.split_at(8);
        for (a, b) in first.iter().zip(second) {
            blocks.push(a & 15 | b << 4);
            blocks.push(a >> 4 | b & 0xf0);
        }
    }
    Tensor::new(name, DType::MxFp4, shape, blocks.into())
}
