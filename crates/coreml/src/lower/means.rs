//! Few values in place of many: weighted k-means in one dimension, over numbers in half precision.
//!
//! There are at most 65536 different ones, so that all work is on those, each with what the numbers
//! equal to it weigh, however many there are.

use half::f16;

/// Passes over the values; they settle earlier as a rule.
const PASSES: usize = 60;
/// The most values that are divided in the best way instead of from a good guess: the effort grows with
/// them, and what is gained by it shrinks.
const MOST_DIVIDED: usize = 16;
/// Runs of neighbours that are kept together when values are divided in the best way.
const RUNS: usize = 512;

/// What the numbers of each value weigh. It is large, so that it is made once and used again and again.
#[derive(Debug)]
pub(super) struct Histogram {
    /// By [`place`].
    weights: Vec<f64>,
    /// The lowest and the highest place that has a weight.
    ends: (usize, usize),
    /// The index of each place in a table.
    indices: Vec<u8>,
}

/// Different values in rising order with their weights, which are positive.
pub(super) type Distinct = Vec<(f32, f64)>;

const PLACES: usize = 1 << 16;

/// The place of a number among all in half precision, in rising order. Both zeros are one.
fn place(value: f16) -> usize {
    let bits = value.to_bits();
    usize::from(match bits {
        0x8000 => 0x8000,
        _ if bits & 0x8000 != 0 => !bits,
        _ => bits | 0x8000,
    })
}

/// The number at a place.
fn number(place: usize) -> f32 {
    let bits = place as u16;
    f16::from_bits(if bits & 0x8000 != 0 { bits & 0x7fff } else { !bits }).to_f32()
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { weights: vec![0.0; PLACES], ends: (PLACES, 0), indices: vec![0; PLACES] }
    }

    /// The different values of a matrix whose columns have these weights.
    pub fn distinct(&mut self, values: &[f16], columns: &[f32]) -> Distinct {
        for row in values.chunks_exact(columns.len().max(1)) {
            for (&value, &weight) in row.iter().zip(columns) {
                self.weights[place(value)] += f64::from(weight);
            }
        }
        let (mut low, mut high) = (PLACES, 0);
        let mut distinct = Vec::new();
        for (place, weight) in self.weights.iter_mut().enumerate() {
            if *weight > 0.0 {
                distinct.push((number(place), std::mem::take(weight)));
                (low, high) = (low.min(place), place);
            }
        }
        self.ends = (low, high);
        distinct
    }

    /// The index of each value's nearest entry in a table in rising order. The values are those that
    /// [`Histogram::distinct`] was last given.
    pub fn indices(&mut self, values: &[f16], table: &[f32]) -> Vec<u8> {
        let (low, high) = self.ends;
        let borders = borders(table);
        let mut index = 0;
        for place in low..=high.min(PLACES - 1) {
            let value = number(place);
            while borders.get(index).is_some_and(|&border| border < value) {
                index += 1;
            }
            self.indices[place] = index as u8;
        }
        values.iter().map(|&value| self.indices[place(value)]).collect()
    }
}

/// Where one value of a table becomes the nearest instead of the one before.
fn borders(table: &[f32]) -> Vec<f32> {
    table.windows(2).map(|pair| pair[0] / 2.0 + pair[1] / 2.0).collect()
}

/// `n` values in half precision of least squared error for the values given, in rising order. The last
/// one is repeated if there are fewer.
pub(super) fn means(distinct: &Distinct, n: usize) -> Vec<f32> {
    let mut table: Vec<f32> = match distinct.len() <= n {
        true => distinct.iter().map(|(value, _)| *value).collect(),
        false => Means::new(distinct).table(n),
    };
    table.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
    let last = table.last().copied().unwrap_or(0.0);
    table.resize(n, last);
    table
}

/// The sum of the weighted squares of what lies between each value and the nearest of a table.
pub(super) fn error(distinct: &Distinct, table: &[f32]) -> f64 {
    let borders = borders(table);
    let (mut index, mut sum) = (0, 0.0);
    for &(value, weight) in distinct {
        while borders.get(index).is_some_and(|&border| border < value) {
            index += 1;
        }
        sum += weight * f64::from(value - table[index]).powi(2);
    }
    sum
}

/// Weights, first and second moments of all values up to each.
struct Means<'a> {
    distinct: &'a [(f32, f64)],
    sums: Vec<[f64; 3]>,
}

impl Means<'_> {
    fn new(distinct: &[(f32, f64)]) -> Means<'_> {
        let mut sums = vec![[0.0; 3]];
        let [mut s0, mut s1, mut s2] = [0.0; 3];
        for &(value, weight) in distinct {
            let value = f64::from(value);
            s0 += weight;
            s1 += weight * value;
            s2 += weight * value * value;
            sums.push([s0, s1, s2]);
        }
        Means { distinct, sums }
    }

    /// The moments of the values `start..end`.
    fn moments(&self, start: usize, end: usize) -> [f64; 3] {
        let (from, to) = (self.sums[start], self.sums[end]);
        [to[0] - from[0], to[1] - from[1], to[2] - from[2]]
    }

    fn mean(&self, start: usize, end: usize) -> f32 {
        let [weight, sum, _] = self.moments(start, end);
        (sum / weight) as f32
    }

    /// The squared error of the values `start..end` from their mean.
    fn cost(&self, start: usize, end: usize) -> f64 {
        let [weight, sum, squares] = self.moments(start, end);
        if weight > 0.0 { squares - sum * sum / weight } else { 0.0 }
    }

    /// `n` values, fewer than there are.
    fn table(&self, n: usize) -> Vec<f32> {
        let mut table: Vec<f32> = if n <= MOST_DIVIDED {
            let runs = self.quantiles(RUNS.max(4 * n)).collect::<Vec<_>>();
            let ends = self.divided(&runs, n);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            starts.zip(&ends).map(|(start, &end)| self.mean(start, end)).collect()
        } else {
            let middles: Vec<usize> = self.quantiles(2 * n).collect();
            // Ends of halves of as many runs: every second one is the middle of a run.
            middles.iter().step_by(2).map(|&i| self.distinct[i - 1].0).collect()
        };
        self.settle(&mut table);
        table
    }

    /// The ends of at most `n` runs of values, in each of which a table that is as good as can be has
    /// about as many entries as in the others: the best density of a table's entries is the cube root of
    /// the values' own (Panter and Dite 1951). The last end is that of all values.
    fn quantiles(&self, n: usize) -> impl Iterator<Item = usize> {
        let width = |i: usize| match self.distinct.get(i + 1) {
            Some((next, _)) => f64::from(next - self.distinct[i].0),
            None => 0.0,
        };
        let mut total = 0.0;
        let reached: Vec<f64> = (0..self.distinct.len())
            .map(|i| {
                let width = width(i).cbrt();
                total += self.distinct[i].1.cbrt() * width * width;
                total
            })
            .collect();
        let last = self.distinct.len();
        let mut before = 0;
        (1..=n).filter_map(move |i| {
            let wanted = total * i as f64 / n as f64;
            let end = match i == n {
                true => last,
                false => (reached.partition_point(|&r| r < wanted) + 1).min(last),
            };
            let found = (end > before).then_some(end);
            before = end.max(before);
            found
        })
    }

    /// The ends of the `n` clusters of least error that can be made of whole runs (of more than `n`), by
    /// dynamic programming. The best start of a cluster does not fall as its end rises, so that each
    /// half of the ends has its own half of the starts to look at.
    fn divided(&self, runs: &[usize], n: usize) -> Vec<usize> {
        let m = runs.len();
        let at = |i: usize| if i == 0 { 0 } else { runs[i - 1] };
        let mut best: Vec<f64> = (0..=m).map(|end| self.cost(0, at(end))).collect();
        let mut starts: Vec<Vec<usize>> = Vec::new();
        for _ in 1..n.min(m) {
            let (mut next, mut from) = (vec![0.0; m + 1], vec![0; m + 1]);
            let mut open = vec![(0, m, 0, m)];
            while let Some((low, high, first, last)) = open.pop() {
                let end = low + (high - low) / 2;
                let candidates = (first..=last.min(end))
                    .map(|start| (best[start] + self.cost(at(start), at(end)), start));
                let (error, start) = candidates
                    .min_by(|a, b| a.0.total_cmp(&b.0))
                    .expect("the first start is not behind the end");
                (next[end], from[end]) = (error, start);
                if end > low {
                    open.push((low, end - 1, first, start));
                }
                if end < high {
                    open.push((end + 1, high, start, last));
                }
            }
            best = next;
            starts.push(from);
        }
        let mut ends = vec![m];
        for from in starts.iter().rev() {
            ends.push(from[ends[ends.len() - 1]]);
        }
        ends.reverse();
        let mut ends: Vec<usize> = ends.into_iter().map(at).filter(|&end| end > 0).collect();
        ends.dedup();
        ends
    }

    /// Moves each value of a table to the mean of those nearest to it, until none moves (Lloyd 1982).
    fn settle(&self, table: &mut [f32]) {
        for _ in 0..PASSES {
            let borders = borders(table);
            let end_of =
                |&border: &f32| self.distinct.partition_point(|(value, _)| *value <= border);
            let ends: Vec<usize> =
                borders.iter().map(end_of).chain([self.distinct.len()]).collect();
            let (mut start, mut moved) = (0, false);
            for (value, end) in table.iter_mut().zip(ends) {
                if end > start {
                    let mean = self.mean(start, end);
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
    }
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::Random;

    use super::*;

    fn halves(values: impl IntoIterator<Item = f32>) -> Vec<f16> {
        values.into_iter().map(f16::from_f32).collect()
    }

    #[test]
    fn places_rise_with_numbers() {
        let numbers = [-65_504.0, -1.0, -6e-8, 0.0, 6e-8, 0.5, 65_504.0];
        let places = halves(numbers).into_iter().map(place);
        assert!(places.clone().is_sorted());
        assert!(places.map(number).zip(numbers).all(|(a, b)| (a - b).abs() < 1e-7));
        assert_eq!(place(f16::from_f32(-0.0)), place(f16::ZERO));
    }

    #[test]
    fn few_values_are_kept_and_many_get_the_best_table() {
        let mut histogram = Histogram::new();
        let few = halves((0..1000).map(|i| (i % 16) as f32 - 8.0));
        let distinct = histogram.distinct(&few, &[1.0; 1000]);
        let table = means(&distinct, 16);
        assert_eq!((distinct.len(), error(&distinct, &table)), (16, 0.0));
        let indices = histogram.indices(&few, &table);
        assert!(indices.iter().enumerate().all(|(i, &index)| usize::from(index) == i % 16));
        // Normal, of variance 1 (Box and Muller 1958).
        let mut random = Random::new(3);
        let mut normal = || {
            let (radius, angle) = (random.signed().abs(), random.signed());
            (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f32::consts::PI * angle).cos()
        };
        let normal = halves((0..100_000).map(|_| normal()));
        let distinct = histogram.distinct(&normal, &[1.0; 100_000]);
        // The least errors for a normal distribution of variance 1 (Max 1960, table I).
        for (n, least) in [(2, 0.3634), (4, 0.1175), (8, 0.03454), (16, 0.009497), (32, 0.002499)] {
            let table = means(&distinct, n);
            assert!(table.len() == n && table.is_sorted());
            let found = error(&distinct, &table) / 1e5;
            assert!((found / least - 1.0).abs() < 0.03, "{n} values: {found}, at best {least}");
            // Indices name the nearest entry.
            let near = |(value, index): (&f16, u8)| {
                let value = value.to_f32();
                let nearest = table.iter().map(|t| (t - value).abs()).fold(f32::INFINITY, f32::min);
                (table[usize::from(index)] - value).abs() <= nearest
            };
            assert!(normal.iter().zip(histogram.indices(&normal, &table)).all(near));
        }
    }

    #[test]
    fn few_entries_are_divided_as_trying_all_ways_would() {
        let mut random = Random::new(5);
        for _ in 0..20 {
            let values = halves((0..12).map(|_| random.signed()));
            let columns: Vec<f32> = (0..12).map(|_| random.signed().abs() + 0.01).collect();
            let distinct = Histogram::new().distinct(&values, &columns);
            let sums = Means::new(&distinct);
            let m = distinct.len();
            let ways = (1..m).flat_map(|a| (a + 1..m).map(move |b| [0, a, b, m]));
            let costs = ways.map(|w| w.windows(2).map(|w| sums.cost(w[0], w[1])).sum::<f64>());
            let least = costs.fold(f64::INFINITY, f64::min);
            // Entries are rounded to half precision.
            let found = error(&distinct, &means(&distinct, 3));
            assert!(found <= least * 1.001 + 1e-6, "{found}, at best {least}");
        }
    }

    #[test]
    fn weights_draw_a_table_to_them() {
        let values = halves([0.0, 1.0, 0.0, 1.0]);
        let distinct = Histogram::new().distinct(&values, &[1.0, 3.0]);
        assert_eq!(distinct, [(0.0, 2.0), (1.0, 6.0)]);
        assert_eq!(means(&distinct, 1), [0.75]);
    }
}
