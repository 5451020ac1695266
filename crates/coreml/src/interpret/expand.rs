//! Weights that a program says in fewer bits: integers with scales, indices with tables.

use half::f16;
use rayon::prelude::*;

use super::tensor::{repeated, strides};
use crate::mil::{DataType, Op, TensorType};

/// The ways to say them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expansion {
    /// `scale * (data - offset)`, a scale for each block.
    ShiftScale,
    /// The entry of each index in its group's table `(groups..., entries, 1)`.
    LookUp,
}

/// Elements that a task expands.
const AT_ONCE: usize = 1 << 14;

impl Expansion {
    /// That of an operation, if it is one.
    pub fn of(op: &Op) -> Option<Expansion> {
        match op.kind.as_str() {
            "constexpr_blockwise_shift_scale" => Some(Expansion::ShiftScale),
            "constexpr_lut_to_dense" => Some(Expansion::LookUp),
            _ => None,
        }
    }

    /// The names of what it expands, of what it does so by, and of what may be left out.
    pub fn operands(self) -> [&'static str; 3] {
        match self {
            Expansion::ShiftScale => ["data", "scale", "offset"],
            Expansion::LookUp => ["indices", "lut", "offset"],
        }
    }

    /// The bytes of a tensor of `ty`, half or single precision, row by row: no more memory is needed than
    /// for them. None if the elements are of a type that is not read.
    pub fn expand(
        self,
        ty: &TensorType,
        data: (&TensorType, &[u8]),
        (by_type, by): (&TensorType, &[f32]),
        offset: Option<&[f32]>,
    ) -> Option<Vec<u8>> {
        let shape = &ty.shape[..];
        let n = ty.elements()?;
        let width = ty.dtype.bits() / 8;
        let mut bytes = repeated(0, n.checked_mul(width)?).ok()?;
        let (Some((&rows, inner)), true) = (shape.split_first(), n > 0) else {
            return Some(bytes);
        };
        let (blocks, entries) = match self {
            Expansion::ShiftScale => (&by_type.shape[..], 1),
            Expansion::LookUp => (&by_type.shape[..shape.len()], by_type.shape[shape.len()]),
        };
        // A row's blocks are those of the first, some further on.
        let covering = covering(inner, &blocks[1..]);
        let (each, step) = (rows / blocks[0].max(1), blocks[1..].iter().product::<usize>());
        let cols = covering.len();
        let reader = Reader::of(data.0.dtype)?;
        let at_once = (AT_ONCE / cols).max(1);
        bytes.par_chunks_mut(at_once * cols * width).enumerate().for_each(|(i, bytes)| {
            for (k, bytes) in bytes.chunks_exact_mut(cols * width).enumerate() {
                let row = i * at_once + k;
                let first = row / each.max(1) * step;
                for (col, to) in bytes.chunks_exact_mut(width).enumerate() {
                    let block = first + covering[col];
                    let element = reader.number(data.1, row * cols + col);
                    let value = match self {
                        Expansion::ShiftScale => {
                            by[block] * (element - offset.map_or(0.0, |offset| offset[block]))
                        }
                        Expansion::LookUp => by[block * entries + element as usize],
                    };
                    match width {
                        2 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                        _ => to.copy_from_slice(&value.to_le_bytes()),
                    }
                }
            }
        });
        Some(bytes)
    }
}

/// For each element of `shape` in order, which element of the coarser `blocks` covers it.
fn covering(shape: &[usize], blocks: &[usize]) -> Vec<usize> {
    let mut covering = vec![0];
    let steps = strides(blocks);
    for (i, &dim) in shape.iter().enumerate() {
        let each = dim / blocks[i].max(1);
        let mut next = Vec::with_capacity(covering.len() * dim);
        for base in covering {
            next.extend((0..dim).map(|at| base + at / each.max(1) * steps[i]));
        }
        covering = next;
    }
    covering
}

/// Reads elements of a type as numbers.
#[derive(Clone, Copy, Debug)]
enum Reader {
    Unsigned(usize),
    Int4,
    Int8,
    Float16,
    Float32,
}

impl Reader {
    fn of(dtype: DataType) -> Option<Reader> {
        Some(match dtype {
            DataType::UInt1
            | DataType::UInt2
            | DataType::UInt3
            | DataType::UInt4
            | DataType::UInt6
            | DataType::UInt8 => Reader::Unsigned(dtype.bits()),
            DataType::Int4 => Reader::Int4,
            DataType::Int8 => Reader::Int8,
            DataType::Float16 => Reader::Float16,
            DataType::Float32 => Reader::Float32,
            _ => return None,
        })
    }

    fn number(self, bytes: &[u8], i: usize) -> f32 {
        match self {
            Reader::Unsigned(bits) => f32::from(unpack(bytes, bits, i)),
            Reader::Int4 => f32::from((unpack(bytes, 4, i) << 4) as i8 >> 4),
            Reader::Int8 => f32::from(bytes[i] as i8),
            Reader::Float16 => f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
            Reader::Float32 => f32::from_le_bytes([0, 1, 2, 3].map(|k| bytes[4 * i + k])),
        }
    }
}

/// Element `i` of a tensor of any type that is computed with in constant expressions.
pub(super) fn numbers(dtype: DataType, bytes: &[u8], n: usize) -> Option<Vec<f32>> {
    let reader = Reader::of(dtype)?;
    Some((0..n).map(|i| reader.number(bytes, i)).collect())
}

/// Number `i` of `bits` (at most 8) each without gaps, the first in the lowest bits.
fn unpack(bytes: &[u8], bits: usize, i: usize) -> u8 {
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    let next = if shift + bits > 8 { bytes[byte + 1] } else { 0 };
    let pair = u16::from_le_bytes([bytes[byte], next]);
    (pair >> shift) as u8 & ((1u16 << bits) - 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_run_over_byte_borders() {
        let bytes = [0xd1, 0x58, 0x1f, 0x01];
        let three: Vec<u8> = (0..9).map(|i| unpack(&bytes, 3, i)).collect();
        assert_eq!(three, [1, 2, 3, 4, 5, 6, 7, 0, 1]);
        let four = numbers(DataType::UInt4, &[0x78, 0xf1, 0x03], 5).unwrap();
        assert_eq!(four, [8.0, 7.0, 1.0, 15.0, 3.0]);
        let signed = numbers(DataType::Int4, &[0x78, 0xf1, 0x03], 5).unwrap();
        assert_eq!(signed, [-8.0, 7.0, 1.0, -1.0, 3.0]);
    }

    #[test]
    fn scales_and_tables_cover_their_blocks() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
        let floats = |bytes: Vec<u8>| numbers(DataType::Float32, &bytes, bytes.len() / 4).unwrap();
        let expand = |expansion: Expansion,
                      shape: &[usize],
                      data: (DataType, &[u8]),
                      by: (&[usize], &[f32]),
                      offset| {
            let (data_type, by_type) = (ty(data.0, shape), ty(DataType::Float32, by.0));
            let out = ty(DataType::Float32, shape);
            floats(expansion.expand(&out, (&data_type, data.1), (&by_type, by.1), offset).unwrap())
        };
        let data = (DataType::UInt8, &[0, 1, 2, 3, 4, 5, 6, 7][..]);
        let scales = (&[2, 2][..], &[1.0, 10.0, 100.0, 1000.0][..]);
        let scaled = expand(Expansion::ShiftScale, &[2, 4], data, scales, Some(&[1.0; 4][..]));
        assert_eq!(scaled, [-1.0, 0.0, 10.0, 20.0, 300.0, 400.0, 5000.0, 6000.0]);
        let tables = (&[2, 1, 2, 1][..], &[1.0, 2.0, 3.0, 4.0][..]);
        let found = expand(Expansion::LookUp, &[4, 1], (DataType::UInt1, &[0b0110]), tables, None);
        assert_eq!(found, [1.0, 2.0, 4.0, 3.0]);
        let nothing = expand(
            Expansion::LookUp,
            &[0, 3],
            (DataType::UInt1, &[]),
            (&[1, 1, 2, 1], &[1.0, 2.0]),
            None,
        );
        assert!(nothing.is_empty());
    }
}
