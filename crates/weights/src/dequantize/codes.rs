//! The integers of quantized weights, for formats elsewhere that have the same.

use super::{affine, f16_at, legacy};
use crate::{DType, Tensor};

/// Weights as `scale * code + minimum`, with a scale for each block of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Codes {
    /// Weights of a block.
    pub block: usize,
    /// Bits of a code.
    pub bits: u8,
    /// The codes, row-major: in two's complement if there are no minima, else from 0 on.
    pub codes: Vec<u8>,
    /// The scale of each block, row-major.
    pub scales: Vec<f32>,
    /// The minimum of each block, if the format has them.
    pub minima: Option<Vec<f32>>,
}

impl Tensor {
    /// The integers of a tensor in Q4_0, Q4_1, Q8_0 or MLX's format of 4 or 8 bits, if `wanted` takes
    /// their bits and blocks. None for every other type.
    pub fn codes(&self, wanted: impl FnOnce(u8, usize) -> bool) -> Option<Codes> {
        let block = self.dtype().block_len();
        let (bits, minima) = match self.dtype() {
            DType::Q4_0 => (4, false),
            DType::Q4_1 => (4, true),
            DType::Q8_0 => (8, false),
            DType::Affine { bits: bits @ (4 | 8), .. } => (bits, true),
            _ => return None,
        };
        if !wanted(bits, block) {
            return None;
        }
        let blocks = self.elements() / block;
        let mut found = Codes {
            block,
            bits,
            codes: Vec::with_capacity(self.elements()),
            scales: Vec::with_capacity(blocks),
            minima: minima.then(|| Vec::with_capacity(blocks)),
        };
        for (i, bytes) in self.data().chunks_exact(self.dtype().block_bytes()).enumerate() {
            let (scale, minimum) = match self.affine() {
                Some(affine) => {
                    let code = |k| affine::unpack(bytes, k * usize::from(bits), usize::from(bits));
                    found.codes.extend((0..block).map(code));
                    let part = |bytes| affine::element(affine.dtype, bytes, i);
                    (part(&affine.scales), part(&affine.biases))
                }
                None => {
                    match self.dtype() {
                        DType::Q8_0 => found.codes.extend(&bytes[2..]),
                        DType::Q4_0 => {
                            let signed = |q: u8| q.wrapping_sub(8);
                            found.codes.extend(legacy::nibbles(&bytes[2..]).map(signed));
                        }
                        _ => found.codes.extend(legacy::nibbles(&bytes[4..])),
                    }
                    (f16_at(bytes, 0), if minima { f16_at(bytes, 2) } else { 0.0 })
                }
            };
            found.scales.push(scale);
            if let Some(minima) = &mut found.minima {
                minima.push(minimum);
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Affine;

    fn values(codes: &Codes) -> Vec<f32> {
        let value = |(i, &code): (usize, &u8)| {
            let (scale, at) = (codes.scales[i / codes.block], i / codes.block);
            match &codes.minima {
                Some(minima) => scale * f32::from(code) + minima[at],
                None => scale * f32::from(code as i8),
            }
        };
        codes.codes.iter().enumerate().map(value).collect()
    }

    #[test]
    fn codes_and_scales_are_the_weights() {
        let wave: Vec<f32> = (0..128).map(|i| (i as f32 * 0.7).sin()).collect();
        for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0] {
            let tensor = Tensor::quantize("x", dtype, &[2, 64], &wave).unwrap();
            let codes = tensor.codes(|_, block| block == 32).unwrap();
            assert_eq!((codes.scales.len(), codes.codes.len()), (4, 128));
            assert_eq!(values(&codes), tensor.to_f32(), "{dtype}");
            assert_eq!(tensor.codes(|bits, _| bits == 3), None);
        }
        let tensor = Tensor::quantize("x", DType::Q5_0, &[2, 64], &wave).unwrap();
        assert_eq!(tensor.codes(|_, _| true), None);
    }

    #[test]
    fn groups_of_mlx_have_minima() {
        let floats = |v: [f32; 2]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        for bits in [4, 8] {
            let dtype = DType::Affine { bits, group_size: 32 };
            let (scales, biases) = (floats([0.5, 2.0]), floats([-1.0, 3.0]));
            let affine = Affine { dtype: DType::F32, scales: scales.into(), biases: biases.into() };
            let data: Vec<u8> = (0..8 * bits).map(|i| i.wrapping_mul(5)).collect();
            let tensor = Tensor::with_affine("x", dtype, &[1, 64], data.into(), affine).unwrap();
            let codes = tensor.codes(|found, block| (found, block) == (bits, 32)).unwrap();
            assert_eq!(values(&codes), tensor.to_f32());
        }
    }
}
