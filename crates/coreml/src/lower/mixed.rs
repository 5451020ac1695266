//! Palettes of different sizes for different matrices, to an average.

use std::collections::BTreeSet;

use baton_graph::{ExecError, Graph, Logits, Op, reference};
use baton_weights::{DType, Tensor, Weight, Weights};
use rayon::prelude::*;

use super::Energies;
use super::forms::{Form, Forms};
use super::means::{Histogram, error, means};
use super::palette::{PALETTE_BITS, Palette, rounded};
use super::weights::{column_weights, finite_halves};
use crate::quality::compare;
use crate::{Error, Result};

/// Groups of a matrix by which its errors are judged.
const SAMPLE: usize = 24;
/// Rows of a group where a matrix has one table.
const SAMPLE_ROWS: usize = 16;
/// Most and fewest tokens that a model is run over for each matrix.
const TOKENS: (usize, usize) = (32, 16);
/// Weights of a model that is run over the most tokens; a larger one is over fewer.
const MOST_WEIGHTS: usize = 300_000_000;

/// What a model answers to a text, by which the worth of its matrices is judged.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The text.
    pub tokens: &'a [u32],
    /// The logits of each token, of more than there are if need be.
    pub logits: &'a Logits,
}

/// What a matrix costs.
#[derive(Clone, Debug)]
struct Matrix {
    name: String,
    elements: usize,
    /// By [`PALETTE_BITS`]: how far the model's answers are from its own with the matrix in so many bits.
    errors: Vec<f64>,
}

/// Forms with about `average` bits of an index for each weight of `graph`'s products, tables left out.
///
/// The model is run over the text once for each matrix, with that one alone palettized, in the size at or below
/// the average: its error is the divergence of the answers from the model's own. With other sizes it is
/// taken to be in proportion to the squared error of the matrix's results, by the energies of their
/// features. All begin with that size; then those get more whose error is reduced the most by a
/// byte, until the average is reached.
///
/// # Errors
/// If a weight is missing or cannot be palettized, there is no such average, or the model cannot be run.
pub fn mixed_palettes(
    graph: &Graph,
    weights: &Weights,
    energies: &Energies,
    average: f32,
    group: usize,
    sample: Sample<'_>,
) -> Result<Forms> {
    let (least, most) = (PALETTE_BITS[0], PALETTE_BITS[PALETTE_BITS.len() - 1]);
    if !(f32::from(least)..=f32::from(most)).contains(&average) {
        return Err(Error::Unsupported {
            what: format!("an average of {average} bits"),
            instead: format!("there are {least} to {most}"),
        });
    }
    let mut names = BTreeSet::new();
    for node in graph.nodes() {
        match &node.op {
            Op::Linear(linear) => names.extend(linear.parts.iter().map(|part| part.weight)),
            Op::Moe(moe) => names.extend([moe.gate, moe.up, moe.down]),
            _ => {}
        }
    }
    let names: Vec<String> =
        names.into_iter().map(|id| graph.weights()[id.index()].name.clone()).collect();
    let mut matrices = names
        .into_par_iter()
        .map(|name| {
            let tensors = tensors(weights.get(&name)?);
            let errors = errors(&name, &tensors[0], energies, group)?;
            Ok(Matrix { name, elements: tensors.iter().map(Tensor::elements).sum(), errors })
        })
        .collect::<Result<Vec<_>>>()?;
    let at = size_below(f64::from(average));
    let palette = Palette { bits: PALETTE_BITS[at], group };
    let elements = matrices.iter().map(|matrix| matrix.elements).sum::<usize>().max(1);
    let tokens = (TOKENS.0 * MOST_WEIGHTS / elements).clamp(TOKENS.1, TOKENS.0);
    let tokens = &sample.tokens[..tokens.min(sample.tokens.len())];
    let expected = first_rows(sample.logits, tokens.len());
    for matrix in &mut matrices {
        let Matrix { name, errors, .. } = matrix;
        let mut changed = weights.clone();
        changed.insert(name.as_str(), palettized(name, weights.get(name)?, energies, palette)?);
        let found = reference::logits(graph, &changed, tokens).map_err(failed)?;
        let divergence = compare(tokens, 0, &found, &expected).divergence.max(0.0);
        let share = errors[at];
        if share > 0.0 {
            errors.iter_mut().for_each(|error| *error *= divergence / share);
        }
    }
    let chosen = choose(&matrices, f64::from(average));
    let form = |at: usize| Form::Palette(Palette { bits: PALETTE_BITS[at], group });
    let by_name = matrices.into_iter().zip(chosen).map(|(m, at)| (m.name, form(at))).collect();
    Ok(Forms { each: form(PALETTE_BITS.len() - 1), by_name })
}

fn failed(error: ExecError) -> Error {
    let (function, op) = ("the model".to_owned(), "for a palette of one matrix".to_owned());
    Error::Run { function, op, problem: error.to_string() }
}

/// The matrices that a weight stands for: one, or one for each expert.
fn tensors(weight: &Weight) -> Vec<Tensor> {
    match (weight, &weight.shape()[..]) {
        (Weight::One(tensor), [_, _]) => vec![tensor.clone()],
        (weight, shape) => (0..shape[0]).map(|i| weight.index(i)).collect(),
    }
}

/// The rows of the first `n` tokens.
fn first_rows(logits: &Logits, n: usize) -> Logits {
    let values = logits.values[..n * logits.vocab].to_vec();
    Logits { vocab: logits.vocab, rows: logits.rows[..n].to_vec(), values, ..Logits::default() }
}

/// A weight with its values replaced by those of its tables.
fn palettized(
    name: &str,
    weight: &Weight,
    energies: &Energies,
    palette: Palette,
) -> Result<Weight> {
    let rounded = |tensor: Tensor| {
        let columns = column_weights(energies, name, tensor.cols());
        let halves = finite_halves(name, &tensor, 0..tensor.rows(), 1.0)?;
        let halves = rounded(&halves, &columns, palette);
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        Ok(Tensor::new(name, DType::F16, tensor.shape(), bytes.into())?)
    };
    let mut tensors = tensors(weight).into_iter().map(rounded).collect::<Result<Vec<_>>>()?;
    Ok(match weight.shape().len() {
        2 => Weight::One(tensors.swap_remove(0)),
        _ => Weight::Stack(tensors),
    })
}

/// The squared errors of a matrix's results with palettes of each size, judged by some of its groups.
fn errors(name: &str, tensor: &Tensor, energies: &Energies, group: usize) -> Result<Vec<f64>> {
    let columns = column_weights(energies, name, tensor.cols());
    let rows = tensor.rows();
    let each = match (Palette { bits: 0, group }).shared_rows(rows) {
        shared if shared == rows => rows.min(SAMPLE_ROWS),
        shared => shared,
    };
    let groups = rows / each;
    let taken = groups.min(SAMPLE);
    let mut sums = vec![0.0; PALETTE_BITS.len()];
    let mut histogram = Histogram::new();
    for i in 0..taken {
        let start = i * groups / taken * each;
        let values = finite_halves(name, tensor, start..start + each, 1.0)?;
        let distinct = histogram.distinct(&values, &columns);
        for (sum, bits) in sums.iter_mut().zip(PALETTE_BITS) {
            *sum += error(&distinct, &means(&distinct, 1 << bits));
        }
    }
    tensor.release();
    Ok(sums)
}

/// The largest size at or below an average, an index into [`PALETTE_BITS`].
fn size_below(average: f64) -> usize {
    PALETTE_BITS.iter().rposition(|&bits| f64::from(bits) <= average).unwrap_or(0)
}

/// An index into [`PALETTE_BITS`] for each matrix.
fn choose(matrices: &[Matrix], average: f64) -> Vec<usize> {
    let elements: usize = matrices.iter().map(|matrix| matrix.elements).sum();
    let least = size_below(average);
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
        let tokens: Vec<u32> = (0..16).collect();
        let logits = reference::logits(&graph, &weights, &tokens).unwrap();
        let sample = Sample { tokens: &tokens[..12], logits: &logits };
        let mixed =
            |average| mixed_palettes(&graph, &weights, &Energies::new(), average, 8, sample);
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
