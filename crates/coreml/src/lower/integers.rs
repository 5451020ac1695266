//! Weights as integers of 4 or 8 bits with a scale for each block.

use baton_weights::{Codes, Tensor};
use half::f16;
use rayon::prelude::*;

use super::palette::pack;
use crate::mil::DataType;

/// How weights are made integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// Bits of an integer: 4 or 8.
    pub bits: u8,
    /// Weights of an output channel that share a scale; all of it for 0, or where it is no multiple.
    pub block: usize,
}

/// Bits that an integer can have.
pub const INTEGER_BITS: [u8; 2] = [4, 8];

/// A matrix as integers: `scale * (code - offset)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Integers {
    /// Type of the codes: signed without offsets.
    pub dtype: DataType,
    /// The codes, packed, the first in the lowest bits.
    pub codes: Vec<u8>,
    /// A scale for each block, row-major.
    pub scales: Vec<f32>,
    /// An offset for each block, if there are any.
    pub offsets: Option<Vec<f32>>,
}

impl Integer {
    /// Weights of a block in rows of `cols`.
    pub(super) fn length(&self, cols: usize) -> usize {
        match self.block {
            block if block > 0 && cols.is_multiple_of(block) => block,
            _ => cols.max(1),
        }
    }

    fn dtype(&self, signed: bool) -> DataType {
        match (self.bits, signed) {
            (4, true) => DataType::Int4,
            (4, false) => DataType::UInt4,
            (_, true) => DataType::Int8,
            (_, false) => DataType::UInt8,
        }
    }
}

/// A tensor's own integers times `factor`, if it has such blocks and their scales are numbers in half
/// precision. Offsets are rounded to that, which changes no weight by more than its own rounding would.
pub(super) fn keep(tensor: &Tensor, integer: Integer, factor: f32) -> Option<Integers> {
    let Codes { block, bits, codes, scales, minima } = tensor
        .codes(|bits, block| bits == integer.bits && block == integer.length(tensor.cols()))?;
    let half = |v: f32| f16::from_f32(v).to_f32();
    let mut integers = Integers {
        dtype: integer.dtype(minima.is_none()),
        codes: pack(&codes, bits),
        scales: scales.iter().map(|scale| scale * factor).collect(),
        offsets: None,
    };
    if let Some(minima) = minima {
        let mut codes = codes;
        let mut offsets = Vec::with_capacity(scales.len());
        for (i, minimum) in minima.into_iter().enumerate() {
            let scale = &mut integers.scales[i];
            if *scale == 0.0 && minimum != 0.0 {
                // Every weight is the minimum.
                *scale = half(minimum * factor);
                codes[i * block..(i + 1) * block].fill(1);
                offsets.push(0.0);
            } else {
                let offset = if *scale == 0.0 { 0.0 } else { -minimum * factor / *scale };
                offsets.push(half(offset));
            }
        }
        integers.codes = pack(&codes, bits);
        integers.offsets = Some(offsets);
    }
    let offsets = integers.offsets.iter().flatten();
    let kept = integers.scales.iter().all(|&scale| half(scale) == scale);
    (kept && offsets.copied().all(f32::is_finite)).then_some(integers)
}

/// Makes rows of finite numbers integers, symmetric to zero. `columns` is what an error in each column
/// counts.
pub(super) fn quantize(values: &[f16], columns: &[f32], integer: Integer) -> Integers {
    let cols = columns.len().max(1);
    let length = integer.length(cols);
    let mut codes = vec![0u8; values.len()];
    let rows = codes.par_chunks_mut(cols).zip(values.par_chunks(cols));
    let scales: Vec<Vec<f32>> = rows
        .map(|(codes, values)| {
            let blocks = codes.chunks_mut(length).zip(values.chunks(length));
            let blocks = blocks.zip(columns.chunks(length));
            blocks
                .map(|((codes, values), weights)| one(values, weights, integer.bits, codes))
                .collect()
        })
        .collect();
    Integers {
        dtype: integer.dtype(true),
        codes: pack(&codes, integer.bits),
        scales: scales.concat(),
        offsets: None,
    }
}

/// What the value of largest magnitude becomes, in the ways that are tried: with few codes it may pay to
/// cut it off.
const EXTREMES: [f32; 8] = [-8.0, -7.5, -7.0, -9.0, 7.0, 7.5, 6.5, 8.0];

/// Writes the codes of a block and yields its scale.
fn one(values: &[f16], weights: &[f32], bits: u8, codes: &mut [u8]) -> f32 {
    let extreme =
        values.iter().map(|v| v.to_f32()).fold(0f32, |a, b| if b.abs() > a.abs() { b } else { a });
    if extreme == 0.0 {
        codes.fill(0);
        return 0.0;
    }
    let most = f32::from(1u8 << (bits - 1));
    let code = |value: f16, inverse: f32| {
        (value.to_f32() * inverse).round_ties_even().clamp(-most, most - 1.0)
    };
    // Also of scales so small that they are rounded to nothing.
    let inverse = |scale: f32| if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let half = |scale: f32| f16::from_f32(scale).to_f32();
    let scale = match bits {
        4 => {
            let try_out = |&at: &f32| {
                let first = inverse(extreme / at);
                // The scale of least error for these codes.
                let [mut above, mut below] = [0.0; 2];
                for (&value, &weight) in values.iter().zip(weights) {
                    let code = code(value, first);
                    above += weight * value.to_f32() * code;
                    below += weight * code * code;
                }
                let scale = half(if below > 0.0 { above / below } else { extreme / at });
                let inverse = inverse(scale);
                let error = |(&value, &weight): (&f16, &f32)| {
                    weight * (value.to_f32() - scale * code(value, inverse)).powi(2)
                };
                (values.iter().zip(weights).map(error).sum::<f32>(), scale)
            };
            let best = EXTREMES.iter().map(try_out).min_by(|a, b| a.0.total_cmp(&b.0));
            best.expect("some are tried").1
        }
        _ => half(extreme.abs() / (most - 1.0)),
    };
    let inverse = inverse(scale);
    codes.iter_mut().zip(values).for_each(|(to, &value)| *to = code(value, inverse) as i8 as u8);
    scale
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::Random;
    use baton_weights::DType;

    use super::*;

    /// The numbers that integers stand for; a code for each.
    fn numbers(integers: &Integers, bits: usize, length: usize) -> Vec<f32> {
        let n = integers.scales.len() * length;
        let signed = integers.offsets.is_none();
        let number = |i: usize| {
            let packed = integers.codes[i * bits / 8] >> (i * bits % 8);
            let code = match (bits, signed) {
                (4, true) => f32::from((packed << 4) as i8 >> 4),
                (4, false) => f32::from(packed & 15),
                _ => f32::from(packed as i8),
            };
            let offset = integers.offsets.as_ref().map_or(0.0, |offsets| offsets[i / length]);
            integers.scales[i / length] * (code - offset)
        };
        (0..n).map(number).collect()
    }

    fn random(n: usize) -> Vec<f32> {
        let mut random = Random::new(8);
        (0..n).map(|_| random.signed() + 0.3).collect()
    }

    #[test]
    fn blocks_of_a_file_are_taken_over_as_they_are() {
        let values = random(4 * 64);
        for (dtype, bits) in [(DType::Q4_0, 4), (DType::Q8_0, 8), (DType::Q4_1, 4)] {
            let tensor = Tensor::quantize("x", dtype, &[4, 64], &values).unwrap();
            let integer = Integer { bits, block: 32 };
            for factor in [1.0, 0.25] {
                let kept = keep(&tensor, integer, factor).unwrap();
                let found = numbers(&kept, usize::from(bits), 32);
                for (found, value) in found.into_iter().zip(tensor.to_f32()) {
                    // Only offsets are rounded.
                    let bound = if dtype == DType::Q4_1 { 1e-3 } else { 0.0 };
                    assert!((found - factor * value).abs() <= bound, "{dtype}: {found} {value}");
                }
            }
            // A factor that scales cannot have, other blocks, other bits.
            assert!(keep(&tensor, integer, 1e-6).is_none());
            assert!(keep(&tensor, Integer { block: 64, ..integer }, 1.0).is_none());
            assert!(keep(&tensor, Integer { bits: 12 - bits, ..integer }, 1.0).is_none());
        }
        // A block of one value has no scale.
        let tensor = Tensor::quantize("x", DType::Q4_1, &[1, 32], &[-1.5; 32]).unwrap();
        let kept = keep(&tensor, Integer { bits: 4, block: 32 }, 1.0).unwrap();
        assert_eq!(numbers(&kept, 4, 32), [-1.5; 32]);
    }

    #[test]
    fn other_values_come_as_near_as_their_scale_allows() {
        let values: Vec<f16> = random(4 * 64).into_iter().map(f16::from_f32).collect();
        for (bits, block, bound) in [(8, 0, 0.004), (8, 16, 0.004), (4, 32, 0.06), (4, 48, 0.07)] {
            let integer = Integer { bits, block };
            let length = integer.length(64);
            let found = quantize(&values, &[1.0; 64], integer);
            assert_eq!(found.scales.len(), 4 * 64 / length);
            let numbers = numbers(&found, usize::from(bits), length);
            let square = |(a, b): (&f32, &f16)| (a - b.to_f32()).powi(2);
            let error = numbers.iter().zip(&values).map(square).sum::<f32>() / 256.0;
            assert!(error.sqrt() < bound, "{bits} bits, blocks of {length}: {}", error.sqrt());
        }
        let nothing = quantize(&[f16::ZERO; 32], &[1.0; 32], Integer { bits: 4, block: 32 });
        assert_eq!(numbers(&nothing, 4, 32), [0.0; 32]);
        let least = quantize(&[f16::from_bits(1); 32], &[1.0; 32], Integer { bits: 8, block: 0 });
        assert!(numbers(&least, 8, 32).iter().all(|v| v.is_finite()));
    }
}
