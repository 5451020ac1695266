//! How large a model's values get, found by running it.
//!
//! Half precision ends at 65504, and a square does from 256 on. Which values come near that is a matter
//! of the model's training and cannot be seen in its shape.

use std::collections::HashMap;
use std::sync::Arc;

use baton_cpu::Pool;
use baton_graph::{Graph, Lookup, Op};
use baton_weights::Weights;

use crate::Result;
use crate::blob::{Blobs, in_memory};
use crate::host::Host;
use crate::interpret::{Interpreter, Precision, States, Tensor};
use crate::lower::{Lowering, MilLowering, NORM_DEFAULT, Ranges, label, prefill_name};
use crate::package::Package;

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

/// The largest magnitudes of `graph`'s values over `tokens`, in single precision.
///
/// # Errors
/// If the graph cannot be lowered or run.
pub fn calibrate(
    graph: &Graph,
    weights: &Weights,
    tokens: &[u32],
    pool: &Arc<Pool>,
) -> Result<Ranges> {
    let columns = tokens.len();
    let lowering = MilLowering { prefill: vec![(columns, 0)], ..MilLowering::default() };
    let mut blobs = in_memory();
    let model = lowering.lower(graph, weights, &mut blobs)?;
    let package = Package::new(model, Some(Blobs::from_bytes(blobs.finish()?.into_inner())?))?;
    let interpreter = Interpreter::new(&package, Precision::F32, pool.clone())?;
    let host = Host::new(graph, weights, 1.0)?;
    let mut largest: HashMap<String, f32> = HashMap::new();
    let mut observe = |_: &str, name: &str, tensor: &Tensor| {
        let values = tensor.as_floats().unwrap_or(&[]);
        let most = values.iter().fold(0f32, |most, value| most.max(value.abs()));
        let held = largest.entry(name.to_owned()).or_default();
        *held = held.max(most);
    };
    let inputs = host.inputs(tokens, 0, columns, 0);
    let mut residual = inputs
        .iter()
        .filter(|(name, _)| name.starts_with("embedded"))
        .filter_map(|(_, tensor)| tensor.as_floats())
        .flatten()
        .fold(0f32, |most, value| most.max(value.abs()));
    let inputs: Vec<(&str, Tensor)> =
        inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let mut states = States::default();
    interpreter.run_observed(&prefill_name(columns, 0), &inputs, &mut states, &mut observe)?;
    let mut ranges = Ranges::default();
    for node in graph.nodes() {
        let label = label(&node.name);
        match node.op {
            Op::RmsNorm(_) => {
                if let Some(square) = largest.get(&format!("{label}_square")) {
                    ranges.norms.insert(node.name.clone(), square.sqrt() / NORM_DEFAULT);
                }
            }
            Op::Add => residual = residual.max(largest.get(&label).copied().unwrap_or(0.0)),
            _ => {}
        }
    }
    // The norm behind the last layer is in the head, which was not run.
    for node in graph.nodes() {
        if let Op::RmsNorm(_) = node.op {
            ranges.norms.entry(node.name.clone()).or_insert(residual);
        }
    }
    ranges.residual = Some(residual);
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use baton_cpu::Isa;
    use baton_graph::testing::{Tiny, random_weights};
    use baton_graph::{Limits, Unit, reference};
    use baton_weights::{Tensor as WeightTensor, Weight};

    use super::*;
    use crate::CoreMl;

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
        let ranges = calibrate(&graph, &weights, &tokens, &pool).unwrap();
        assert!(ranges.residual.unwrap() > 65_504.0, "{ranges:?}");
        assert_eq!(ranges.norms.len(), 3 * tiny.layers + 1);
        let expected = reference::logits(&graph, &weights, &tokens).unwrap();
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
