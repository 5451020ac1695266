//! MLX's affine format: packed unsigned integers, scale and bias per group, in tensors apart.

use baton_weights::DType;

use super::{BLOCK, Format, Row, ScaleKind, Scales, half_at, single_at};

/// Integers of `BITS` bits, packed little-endian.
pub(crate) struct Affine<const BITS: usize>;

impl<const BITS: usize> Format for Affine<BITS> {
    const BITS: usize = BITS;
    const MIN: bool = true;
    const SCALES: Option<ScaleKind> = None;

    #[inline(always)]
    fn codes(row: &Row<'_>, out: &mut [u8]) {
        if BITS == 8 {
            out.copy_from_slice(row.data);
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
            for block in group * blocks_each..(group + 1) * blocks_each {
                if row.scale_type == DType::F32 {
                    let (scale, bias) =
                        (single_at(row.scales, 4 * group), single_at(row.biases, 4 * group));
                    out.singles(block, scale, bias);
                } else {
                    out.halves(
                        block,
                        half_at(row.scales, 2 * group),
                        half_at(row.biases, 2 * group),
                    );
                }
            }
        }
    }
}
