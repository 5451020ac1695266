//! MLX's affine format.

use super::{bf16_le, f16_le, round_to};
use crate::{Affine, DType};

/// Decodes row `row`, whose packed values are `packed`. Product and sum are each rounded to the
/// type of the scales, as MLX computes in it.
pub(super) fn row(dtype: DType, affine: &Affine, row: usize, packed: &[u8], out: &mut [f32]) {
    let DType::Affine { bits, group_size } = dtype else {
        unreachable!("Tensor::with_affine takes affine types only");
    };
    let (bits, group_size) = (usize::from(bits), usize::from(group_size));
    let first = row * (out.len() / group_size);
    for (group, values) in out.chunks_exact_mut(group_size).enumerate() {
        let scale = element(affine.dtype, &affine.scales, first + group);
        let bias = element(affine.dtype, &affine.biases, first + group);
        for (i, value) in values.iter_mut().enumerate() {
            let q = unpack(packed, (group * group_size + i) * bits, bits);
            let product = round_to(affine.dtype, f32::from(q) * scale);
            *value = round_to(affine.dtype, product + bias);
        }
    }
}

/// Element `i` of a buffer of floats.
pub(super) fn element(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    match dtype {
        DType::F16 => f16_le([bytes[2 * i], bytes[2 * i + 1]]),
        DType::BF16 => bf16_le([bytes[2 * i], bytes[2 * i + 1]]),
        _ => f32::from_le_bytes([0, 1, 2, 3].map(|k| bytes[4 * i + k])),
    }
}

/// The value of `bits` (at most 8) bits that starts at bit `at`. A row is one little-endian stream
/// of bits; for 3, 5 and 6 bits a value may cross into the next byte.
pub(super) fn unpack(packed: &[u8], at: usize, bits: usize) -> u8 {
    let (byte, shift) = (at / 8, at % 8);
    let next = if shift + bits > 8 { packed[byte + 1] } else { 0 };
    let window = u16::from_le_bytes([packed[byte], next]) >> shift;
    (window & ((1 << bits) - 1)) as u8
}
