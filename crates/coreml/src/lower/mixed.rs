//! Palettes of different sizes for different matrices, to an average.

use std::collections::BTreeMap;

use baton_graph::{Graph, Op};
use baton_weights::{Tensor, Weights};
use rayon::prelude::*;

use super::Energies;
use super::forms::{Form, Forms};
use super::means::{Histogram, error, means};
use super::palette::{PALETTE_BITS, Palette};
use super::weights::{column_weights, finite_halves};
use crate::{Error, Result};

/// Groups of a matrix by which its errors are judged.
const SAMPLE: usize = 24;
/// Rows of a group where a matrix has one table.
const SAMPLE_ROWS: usize = 16;

/// What a matrix costs.
#[derive(Clone, Debug)]
struct Matrix {
    name: String,
    elements: usize,
    /// By [`PALETTE_BITS`]: the part of its results' energy that is error.
    errors: Vec<f64>,
}

/// Forms with about `average` bits of an index for each weight of `graph`'s products, tables left out.
/// Every matrix begins with the size at or below the average; then those get more whose error is reduced the
/// most by a byte more, until the average is reached. So none is worse than it would be with that size
/// everywhere. The error of a matrix is that of its results, by the energies of
/// their features, in proportion to the results' own energy.
///
/// # Errors
/// If a weight is missing or cannot be palettized, or there is no such average.
pub fn mixed_palettes(
    graph: &Graph,
    weights: &Weights,
    energies: &Energies,
    average: f32,
    group: usize,
) -> Result<Forms> {
    let (least, most) = (PALETTE_BITS[0], PALETTE_BITS[PALETTE_BITS.len() - 1]);
    if !(f32::from(least)..=f32::from(most)).contains(&average) {
        return Err(Error::Unsupported {
            what: format!("an average of {average} bits"),
            instead: format!("there are {least} to {most}"),
        });
    }
    let mut names = BTreeMap::new();
    for node in graph.nodes() {
        let Op::Linear(linear) = &node.op else { continue };
        for part in &linear.parts {
            let name = &graph.weights()[part.weight.index()].name;
            names.insert(name.clone(), weights.tensor(name)?);
        }
    }
    let matrices: Vec<(String, &Tensor)> = names.into_iter().collect();
    let matrices = matrices
        .into_par_iter()
        .map(|(name, tensor)| {
            let errors = errors(&name, tensor, energies, group)?;
            Ok(Matrix { name, elements: tensor.elements(), errors })
        })
        .collect::<Result<Vec<_>>>()?;
    let chosen = choose(&matrices, f64::from(average));
    let form = |at: usize| Form::Palette(Palette { bits: PALETTE_BITS[at], group });
    let by_name = matrices.into_iter().zip(chosen).map(|(m, at)| (m.name, form(at))).collect();
    Ok(Forms { each: form(PALETTE_BITS.len() - 1), by_name })
}

/// The errors of a matrix with palettes of each size, judged by some of its groups.
fn errors(name: &str, tensor: &Tensor, energies: &Energies, group: usize) -> Result<Vec<f64>> {
    let columns = column_weights(energies, name, tensor.cols());
    let rows = tensor.rows();
    let each = match (Palette { bits: 0, group }).shared_rows(rows) {
        shared if shared == rows => rows.min(SAMPLE_ROWS),
        shared => shared,
    };
    let groups = rows / each;
    let taken = groups.min(SAMPLE);
    let (mut energy, mut sums) = (0.0, vec![0.0; PALETTE_BITS.len()]);
    let mut histogram = Histogram::new();
    for i in 0..taken {
        let start = i * groups / taken * each;
        let values = finite_halves(name, tensor, start..start + each, 1.0)?;
        let distinct = histogram.distinct(&values, &columns);
        energy += error(&distinct, &[0.0]);
        for (sum, bits) in sums.iter_mut().zip(PALETTE_BITS) {
            *sum += error(&distinct, &means(&distinct, 1 << bits));
        }
    }
    tensor.release();
    if energy > 0.0 {
        sums.iter_mut().for_each(|sum| *sum /= energy);
    }
    Ok(sums)
}

/// An index into [`PALETTE_BITS`] for each matrix.
fn choose(matrices: &[Matrix], average: f64) -> Vec<usize> {
    let elements: usize = matrices.iter().map(|matrix| matrix.elements).sum();
    let least = PALETTE_BITS.iter().rposition(|&bits| f64::from(bits) <= average).unwrap_or(0);
    let mut free = elements as f64 * (average - f64::from(PALETTE_BITS[least]));
    let mut chosen = vec![least; matrices.len()];
    loop {
        // More bits for a matrix, if there is room for them, and what a bit of them takes away.
        let step = |i: usize| {
            let (matrix, from) = (&matrices[i], chosen[i]);
            let to_more = from + 1..PALETTE_BITS.len();
            let steps = to_more.map(move |to| {
                let more =
                    matrix.elements as f64 * f64::from(PALETTE_BITS[to] - PALETTE_BITS[from]);
                ((matrix.errors[from] - matrix.errors[to]) / more, more, to)
            });
            steps.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(gain, more, to)| (gain, more, i, to))
        };
        let steps = (0..matrices.len()).filter_map(step).filter(|(_, more, ..)| *more <= free);
        let Some((_, more, i, to)) = steps.max_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        free -= more;
        chosen[i] = to;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::{Tiny, random_weights};

    use super::*;

    fn bits(matrices: &[Matrix], average: f64) -> Vec<u8> {
        choose(matrices, average).into_iter().map(|at| PALETTE_BITS[at]).collect()
    }

    #[test]
    fn bits_go_where_they_take_away_most() {
        let matrix = |elements, by: f64| {
            let error = |&bits: &u8| by * 0.25f64.powi(i32::from(bits));
            Matrix {
                name: String::new(),
                elements,
                errors: PALETTE_BITS.iter().map(error).collect(),
            }
        };
        // The same error in a tenth of the bytes.
        let found = bits(&[matrix(1000, 1.0), matrix(100, 1.0), matrix(1000, 16.0)], 5.2);
        assert!(found[1] > found[0] && found[2] > found[0], "{found:?}");
        let total = found[0] as usize * 1000 + found[1] as usize * 100 + found[2] as usize * 1000;
        assert!(10 * total <= 52 * 2100, "{found:?}");
        assert_eq!(bits(&[matrix(1000, 1.0), matrix(1000, 1.0)], 4.0), [4, 4]);
        assert_eq!(bits(&[matrix(10, 1.0)], 8.0), [8]);
        assert_eq!(bits(&[matrix(10, 1.0)], 1.0), [1]);
    }

    #[test]
    fn every_matrix_gets_bits_and_averages_out_of_reach_are_errors() {
        let graph = Tiny::default().graph().unwrap();
        let weights = random_weights(&graph, 4);
        let mixed = |average| mixed_palettes(&graph, &weights, &Energies::new(), average, 8);
        let forms = mixed(3.5).unwrap();
        let (mut held, mut elements) = (0, 0);
        for (name, form) in &forms.by_name {
            let n = weights.tensor(name).unwrap().elements();
            held += usize::from(form.bits()) * n;
            elements += n;
        }
        let average = held as f32 / elements as f32;
        assert!((3.0..=3.5).contains(&average), "{average}");
        for wrong in [0.5, 8.5, f32::NAN] {
            assert!(mixed(wrong).unwrap_err().to_string().contains("1 to 8"), "{wrong}");
        }
    }
}
