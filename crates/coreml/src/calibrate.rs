//! How large a model's values get, found by running it.
//!
//! Half precision ends at 65504, and a square does from 256 on. Which values come near that is a matter
//! of the model's training and cannot be seen in its shape.

use baton_graph::reference::observed;
use baton_graph::{ExecError, Graph, Logits, Lookup, Node, Op};
use baton_weights::Weights;

use crate::lower::{Energies, Ranges};

/// Tokens of a sample.
const SAMPLE: usize = 64;

/// Tokens to calibrate with where there is no text: the first ones, among which are those that begin a
/// sequence, and some from all over the vocabulary.
pub(crate) fn sample(graph: &Graph) -> Vec<u32> {
    let vocab = graph.nodes().iter().find_map(|node| match node.op {
        Op::Embedding { table, lookup: Lookup::Token, .. } => {
            Some(graph.weights()[table.index()].shape[0])
        }
        _ => None,
    });
    let vocab = vocab.unwrap_or(1);
    let first = (0..8).map(|i| i % vocab);
    let spread = (0..SAMPLE - 8).map(|i| i * vocab / (SAMPLE - 8));
    first.chain(spread).map(|token| token as u32).collect()
}

/// What a model is seen to do over a text.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// How large its values get.
    pub ranges: Ranges,
    /// How large the inputs of its products are.
    pub energies: Energies,
    /// What it answers, a row for each token.
    pub logits: Logits,
}

/// Runs `graph` over `tokens` in single precision, by the reference, which reads weights as they lie in
/// their file: no more memory is needed than for the values of a few nodes and the logits. Energies are
/// those of the first `seen` tokens, so that the others can show what is chosen by them.
///
/// # Errors
/// If the graph cannot be run, or a weight is missing.
pub fn calibrate(
    graph: &Graph,
    weights: &Weights,
    tokens: &[u32],
    seen: usize,
) -> Result<Calibration, ExecError> {
    let (mut ranges, mut energies) = (Ranges::default(), Energies::new());
    let mut residual = 0f32;
    let mut observe = |node: &Node, operands: &[&[f32]], result: &[f32]| match &node.op {
        Op::RmsNorm(_) => {
            ranges.norms.insert(node.name.clone(), largest(operands[0]));
        }
        Op::Add | Op::Embedding { .. } => residual = residual.max(largest(result)),
        Op::Linear(linear) => {
            let features = graph.ty(node.inputs[0]).features();
            let rows = operands[0].len().min(seen * features);
            let energy = mean_squares(&operands[0][..rows], features);
            for part in &linear.parts {
                let name = &graph.weights()[part.weight.index()].name;
                match energies.get_mut(name) {
                    Some(held) => held.iter_mut().zip(&energy).for_each(|(held, e)| *held += e),
                    None => drop(energies.insert(name.clone(), energy.clone())),
                }
                // What was read stays in the file.
                if let Ok(tensor) = weights.tensor(name) {
                    tensor.release();
                }
            }
        }
        _ => {}
    };
    let logits = observed(graph, weights, tokens, &mut observe)?;
    ranges.residual = Some(residual);
    Ok(Calibration { ranges, energies, logits })
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |most, value| most.max(value.abs()))
}

/// The mean square of each column of rows of `features`.
fn mean_squares(values: &[f32], features: usize) -> Vec<f32> {
    let mut sums = vec![0f32; features];
    for row in values.chunks_exact(features.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * value);
    }
    let rows = (values.len() / features.max(1)).max(1) as f32;
    sums.iter_mut().for_each(|sum| *sum /= rows);
    sums
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_cpu::{Isa, Pool};
    use baton_graph::testing::{Tiny, random_weights};
    use baton_graph::{Limits, Unit};
    use baton_weights::{Tensor as WeightTensor, Weight};

    use super::*;
    use crate::CoreMl;
    use crate::interpret::Precision;

    #[test]
    fn energies_are_mean_squares_of_columns() {
        assert_eq!(mean_squares(&[1.0, 2.0, 3.0, -4.0], 2), [5.0, 10.0]);
        assert_eq!(mean_squares(&[], 2), [0.0; 2]);
    }

    #[test]
    fn a_model_whose_values_leave_half_precision_is_kept_within() {
        let tiny = Tiny::default();
        let graph = tiny.graph().unwrap();
        let mut weights = random_weights(&graph, 4);
        // Each layer adds some 100000 to the hidden state.
        for layer in 0..tiny.layers {
            let name = format!("{layer}.down");
            let tensor = weights.tensor(&name).unwrap();
            let values: Vec<f32> = tensor.to_f32().iter().map(|v| v * 60_000.0).collect();
            let tensor = WeightTensor::from_f32(&name, tensor.shape(), &values);
            weights.insert(&name, Weight::One(tensor));
        }
        let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 97).collect();
        let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
        let Calibration { ranges, energies, logits: expected } =
            calibrate(&graph, &weights, &tokens, tokens.len()).unwrap();
        assert!(ranges.residual.unwrap() > 65_504.0, "{ranges:?}");
        assert_eq!(ranges.norms.len(), 3 * tiny.layers + 1);
        // A number for each input of each of a layer's seven matrices, and of the head's.
        assert_eq!(energies.len(), 7 * tiny.layers + 1);
        for (name, energy) in &energies {
            let cols = weights.tensor(name).unwrap().cols();
            assert!(energy.len() == cols && energy.iter().all(|&e| e > 0.0), "{name}: {energy:?}");
        }
        let limits = Limits { context: 64, kv_tokens: 64, batch_tokens: 64 };
        let batch = baton_graph::Batch::one(baton_graph::SeqId(0), tokens, baton_graph::Rows::All);
        let unit = CoreMl::new(pool).with_precision(Precision::F16);
        let logits = |unit: &CoreMl| {
            let mut executor = unit.compile(&graph, &weights, limits).unwrap();
            executor.forward(&batch).unwrap().values
        };
        let nmse = |found: &[f32]| {
            let pairs = || found.iter().zip(&expected.values);
            let error: f32 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
            error / pairs().map(|(_, b)| b * b).sum::<f32>()
        };
        let kept = nmse(&logits(&unit));
        assert!(kept < 1e-3, "{kept}");
        let nothing = Ranges { residual: Some(1.0), ..Ranges::default() };
        let left = nmse(&logits(&unit.clone().with_ranges(nothing)));
        assert!(
            left.is_nan() || left > 1e-3,
            "without calibration it is {left}, so this test shows nothing"
        );
    }
}
