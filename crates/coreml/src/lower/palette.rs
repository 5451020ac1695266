//! Palettized weights: an index for each weight into a small table of values.
//!
//! The values are those of least squared error (Lloyd's k-means in one dimension). In half precision
//! there are at most 65536 different weights, so that it works on those with their numbers, however many
//! weights there are.

use half::f16;
use rayon::prelude::*;

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
/// Passes over the values; they settle earlier as a rule.
const PASSES: usize = 60;

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

/// Palettizes a matrix of `rows`.
pub(super) fn palettize(values: &[f32], rows: usize, palette: Palette) -> Palettized {
    let cols = values.len() / rows.max(1);
    let group = match palette.group {
        0 => rows,
        group if rows.is_multiple_of(group) => group,
        _ => rows,
    };
    let each: Vec<(Vec<f32>, Vec<u8>)> =
        values.par_chunks((group * cols).max(1)).map(|part| one(part, palette.bits)).collect();
    let groups = each.len();
    let (tables, indices): (Vec<_>, Vec<_>) = each.into_iter().unzip();
    Palettized { tables: tables.concat(), indices: pack(&indices.concat(), palette.bits), groups }
}

/// The table of some weights, in rising order, and the index of each of them.
fn one(values: &[f32], bits: u8) -> (Vec<f32>, Vec<u8>) {
    let entries = 1usize << bits;
    let mut keys: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
    keys.sort_unstable_by(f16::total_cmp);
    let mut distinct: Vec<(f32, f64)> = Vec::new();
    for key in keys {
        let value = key.to_f32();
        match distinct.last_mut() {
            Some((last, count)) if *last == value => *count += 1.0,
            _ => distinct.push((value, 1.0)),
        }
    }
    let mut table = match distinct.len() <= entries {
        true => distinct.iter().map(|(value, _)| *value).collect(),
        false => means(&distinct, entries),
    };
    table.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
    let last = table.last().copied().unwrap_or(0.0);
    table.resize(entries, last);
    let borders = borders(&table);
    let index =
        |&v: &f32| borders.partition_point(|&border| border < f16::from_f32(v).to_f32()) as u8;
    let indices = values.iter().map(index).collect();
    (table, indices)
}

/// Where one value of a table becomes the nearest instead of the one before.
fn borders(table: &[f32]) -> Vec<f32> {
    table.windows(2).map(|pair| pair[0] / 2.0 + pair[1] / 2.0).collect()
}

/// `n` values of least squared error for more than `n` different values with their numbers, in rising
/// order.
fn means(distinct: &[(f32, f64)], n: usize) -> Vec<f32> {
    // Sums up to each value, so that the mean of a run is a division.
    let mut sums = vec![(0.0, 0.0)];
    let (mut count, mut sum) = (0.0, 0.0);
    for &(value, times) in distinct {
        count += times;
        sum += times * f64::from(value);
        sums.push((count, sum));
    }
    // The best density of many table values is the cube root of the weights' own (Panter and Dite 1951).
    let width = |i: usize| match distinct.get(i + 1) {
        Some((next, _)) => f64::from(next - distinct[i].0),
        None => 0.0,
    };
    let mut total = 0.0;
    let reached: Vec<f64> = (0..distinct.len())
        .map(|i| {
            total += distinct[i].1.cbrt() * width(i).powf(2.0 / 3.0);
            total
        })
        .collect();
    let mut table: Vec<f32> = (0..n)
        .map(|i| {
            let wanted = total * (i as f64 + 0.5) / n as f64;
            distinct[reached.partition_point(|&r| r < wanted).min(distinct.len() - 1)].0
        })
        .collect();
    for _ in 0..PASSES {
        let mut ends: Vec<usize> = borders(&table)
            .iter()
            .map(|&border| distinct.partition_point(|&(value, _)| value <= border))
            .collect();
        ends.push(distinct.len());
        let (mut start, mut moved) = (0, false);
        for (value, end) in table.iter_mut().zip(ends) {
            if end > start {
                let (from, to) = (sums[start], sums[end]);
                let mean = ((to.1 - from.1) / (to.0 - from.0)) as f32;
                moved |= mean != *value;
                *value = mean;
                start = end;
            }
        }
        table.sort_unstable_by(f32::total_cmp);
        if !moved {
            break;
        }
    }
    table
}

/// Numbers of `bits` each without gaps.
fn pack(numbers: &[u8], bits: u8) -> Vec<u8> {
    let bits = usize::from(bits);
    let mut packed = vec![0u8; (numbers.len() * bits).div_ceil(8)];
    for (i, &number) in numbers.iter().enumerate() {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let pair = u16::from(number) << shift;
        packed[byte] |= pair as u8;
        if shift + bits > 8 {
            packed[byte + 1] |= (pair >> 8) as u8;
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::Random;

    use super::*;

    #[test]
    fn numbers_are_packed_over_byte_borders() {
        assert_eq!(pack(&[1, 2, 3, 4, 5, 6, 7, 0, 1], 3), [0xd1, 0x58, 0x1f, 0x01]);
        assert_eq!(pack(&[8, 7, 1, 15, 3], 4), [0x78, 0xf1, 0x03]);
        assert_eq!(pack(&[63, 1], 6), [0x7f, 0x00]);
    }

    /// The mean squared error of each weight's nearest table value.
    fn error(values: &[f32], bits: u8) -> f64 {
        let (table, indices) = one(values, bits);
        assert!(table.is_sorted() && table.len() == 1 << bits);
        let mut sum = 0.0;
        for (value, index) in values.iter().zip(indices) {
            let nearest = table.iter().map(|t| (t - value).abs()).fold(f32::INFINITY, f32::min);
            let difference = (table[usize::from(index)] - value).abs();
            assert!(difference <= nearest + 5e-3, "{value} got {difference}, not {nearest}");
            sum += f64::from(difference).powi(2);
        }
        sum / values.len() as f64
    }

    #[test]
    fn few_values_are_kept_as_they_are_and_many_come_near_the_best_table() {
        let few: Vec<f32> = (0..1000).map(|i| (i % 16) as f32 - 8.0).collect();
        assert_eq!(error(&few, 4), 0.0);
        // About normal: the sum of twelve uniform numbers, each of variance 1/3.
        let mut random = Random::new(3);
        let normal: Vec<f32> =
            (0..100_000).map(|_| (0..12).map(|_| random.signed()).sum::<f32>() / 2.0).collect();
        // The least errors for a normal distribution of variance 1 (Max 1960, table I).
        for (bits, least) in [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)] {
            let found = error(&normal, bits);
            assert!((found / least - 1.0).abs() < 0.05, "{bits} bits: {found}, at best {least}");
        }
    }

    #[test]
    fn groups_have_tables_of_their_own() {
        let values: Vec<f32> = (0..64).map(|i| (i / 16 * 100 + i % 4) as f32).collect();
        let palette = Palette { bits: 2, group: 2 };
        let found = palettize(&values, 4, palette);
        assert_eq!((found.groups, found.tables.len()), (2, 8));
        let whole = palettize(&values, 4, Palette { group: 3, ..palette });
        assert_eq!((whole.groups, whole.tables.len()), (1, 4));
    }
}
