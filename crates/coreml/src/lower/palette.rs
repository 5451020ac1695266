//! Palettized weights: an index for each weight into a small table of values.
//!
//! The values are those of least squared error, where the error of a weight counts as much as the energy
//! of the feature that it is multiplied with: so the error of a product's result is least, if features
//! are independent.

use half::f16;
use rayon::prelude::*;

use super::means::{Histogram, means};

/// How weights are palettized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    /// Bits of an index: 1, 2, 3, 4, 6 or 8.
    pub bits: u8,
    /// Output channels that share a table; all of a matrix, where its channels are no multiple.
    pub group: usize,
}

/// Bits that an index can have.
pub const PALETTE_BITS: [u8; 6] = [1, 2, 3, 4, 6, 8];

/// A palettized matrix.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Palettized {
    /// The tables of all groups, one behind the other, `1 << bits` values each.
    pub tables: Vec<f32>,
    /// An index for each weight, packed, the first in the lowest bits.
    pub indices: Vec<u8>,
    /// Number of groups.
    pub groups: usize,
}

impl Palette {
    /// Rows of a matrix that share a table.
    pub(super) fn shared_rows(&self, rows: usize) -> usize {
        match self.group {
            group if group > 0 && rows.is_multiple_of(group) => group,
            _ => rows.max(1),
        }
    }
}

/// Palettizes rows of finite numbers. `columns` is what an error in each column counts.
pub(super) fn palettize(values: &[f16], columns: &[f32], palette: Palette) -> Palettized {
    let cols = columns.len().max(1);
    let group = palette.shared_rows(values.len() / cols);
    let each: Vec<(Vec<f32>, Vec<u8>)> = values
        .par_chunks((group * cols).max(1))
        .map_init(Histogram::new, |histogram, part| {
            let table = means(&histogram.distinct(part, columns), 1 << palette.bits);
            let indices = histogram.indices(part, &table);
            (table, indices)
        })
        .collect();
    let groups = each.len();
    let (tables, indices): (Vec<_>, Vec<_>) = each.into_iter().unzip();
    Palettized { tables: tables.concat(), indices: pack(&indices.concat(), palette.bits), groups }
}

/// The values that palettized rows stand for.
pub(super) fn rounded(values: &[f16], columns: &[f32], palette: Palette) -> Vec<f16> {
    let cols = columns.len().max(1);
    let group = palette.shared_rows(values.len() / cols);
    let parts =
        values.par_chunks((group * cols).max(1)).map_init(Histogram::new, |histogram, part| {
            let table = means(&histogram.distinct(part, columns), 1 << palette.bits);
            let indices = histogram.indices(part, &table);
            indices.iter().map(|&i| f16::from_f32(table[usize::from(i)])).collect::<Vec<_>>()
        });
    parts.collect::<Vec<_>>().concat()
}

/// The lowest `bits` of each number without gaps, the first in the lowest bits.
pub(super) fn pack(numbers: &[u8], bits: u8) -> Vec<u8> {
    let bits = usize::from(bits);
    let mut packed = vec![0u8; (numbers.len() * bits).div_ceil(8)];
    for (i, &number) in numbers.iter().enumerate() {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let pair = (u16::from(number) & ((1 << bits) - 1)) << shift;
        packed[byte] |= pair as u8;
        if shift + bits > 8 {
            packed[byte + 1] |= (pair >> 8) as u8;
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_over_byte_borders() {
        assert_eq!(pack(&[1, 2, 3, 4, 5, 6, 7, 0, 1], 3), [0xd1, 0x58, 0x1f, 0x01]);
        assert_eq!(pack(&[8, 7, 1, 15, 3], 4), [0x78, 0xf1, 0x03]);
        assert_eq!(pack(&[63, 1], 6), [0x7f, 0x00]);
        // Negative numbers keep their lowest bits.
        assert_eq!(pack(&[-8i8 as u8, 7, 1, -1i8 as u8, 3], 4), [0x78, 0xf1, 0x03]);
    }

    #[test]
    fn groups_have_tables_of_their_own() {
        let values: Vec<f16> =
            (0..64).map(|i| f16::from_f32((i / 16 * 100 + i % 4) as f32)).collect();
        let palette = Palette { bits: 2, group: 2 };
        let found = palettize(&values, &[1.0; 16], palette);
        assert_eq!((found.groups, found.tables.len()), (2, 8));
        let whole = palettize(&values, &[1.0; 16], Palette { group: 3, ..palette });
        assert_eq!((whole.groups, whole.tables.len()), (1, 4));
    }
}
