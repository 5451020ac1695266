//! One of the layers that a function repeats.

use std::ops::Range;

use super::Placed;

/// Fewer operations are no layer.
const LEAST: usize = 8;
/// No layer has more.
const LONGEST: usize = 1000;
/// So many of the operations at least are the same in the next layer.
const ALIKE: f64 = 0.9;
/// Operations that are shown of a function without layers.
const MOST: usize = 400;

/// The operations of the second of a function's layers, and how many layers there are; the first
/// operations of a function that repeats nothing.
pub(super) fn layer(ops: &[Placed]) -> (Range<usize>, usize) {
    let same = |i: usize, j: usize| ops[i].kind == ops[j].kind && ops[i].shape == ops[j].shape;
    for period in LEAST..=(ops.len() / 2).min(LONGEST) {
        let alike = (0..ops.len() - period).filter(|&i| same(i, i + period)).count();
        // What comes before and after all layers repeats nothing.
        let whole = (ops.len() - period).saturating_sub(period.min(ops.len() / 4));
        if whole == 0 || (alike as f64) < ALIKE * whole as f64 {
            continue;
        }
        // The first operation from which on a whole layer is like the next.
        let mut run = 0;
        for at in 0..ops.len() - period {
            run = if same(at, at + period) { run + 1 } else { 0 };
            if run == period {
                let first = at + 1 - period;
                return (first + period..first + 2 * period, (ops.len() - first) / period);
            }
        }
    }
    (0..ops.len().min(MOST), 1)
}
