//! MLX's affine format: packed unsigned integers, scale and bias per group, in tensors apart.

use super::{BLOCK, Format, Row, Scales, float_at};

/// Integers of `BITS` bits, packed little-endian. Those of 8 bits are read as signed, 128 less,
/// and the minimum makes up for it: x86's products of bytes would overflow otherwise.
pub(crate) struct Affine<const BITS: usize>;

impl<const BITS: usize> Format for Affine<BITS> {
    const MAX: i32 = if BITS == 8 { 128 } else { (1 << BITS) - 1 };
    const SIGNED: bool = BITS == 8;
    const MIN: bool = true;

    #[inline(always)]
    fn values(row: &Row<'_>, out: &mut [u8]) {
        if BITS == 8 {
            for (out, &byte) in out.iter_mut().zip(row.data) {
                *out = byte ^ 0x80;
            }
            return;
        }
        // Eight integers of any width fill whole bytes.
        for (packed, out) in row.data.chunks_exact(BITS).zip(out.chunks_exact_mut(8)) {
            let mut word = [0; 8];
            word[..BITS].copy_from_slice(packed);
            let word = u64::from_le_bytes(word);
            for (i, out) in out.iter_mut().enumerate() {
                *out = (word >> (BITS * i)) as u8 & Self::MAX as u8;
            }
        }
    }

    #[inline(always)]
    fn scales(row: &Row<'_>, out: &mut Scales<'_>) {
        let blocks_each = row.group / BLOCK;
        let groups = row.scales.len() / row.scale_type.block_bytes();
        for group in 0..groups {
            let scale = float_at(row.scales, group, row.scale_type);
            let bias = float_at(row.biases, group, row.scale_type);
            let min = if BITS == 8 { 128.0 * scale + bias } else { bias };
            for block in 0..blocks_each {
                out.set_with_min(group * blocks_each + block, scale, min);
            }
        }
    }
}
