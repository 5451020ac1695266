//! Every golden model through the CPU unit: known logits, computed by transformers in f32.

use baton_cpu::{Cpu, CpuOptions, Isa};
use baton_graph::{Batch, Limits, Rows, SeqId, Unit};
use baton_models::testing::goldens;
use baton_models::{BuildOptions, Model};
use baton_weights::Weight;

/// Largest difference by the size of the largest logit: keys and values are rounded to f16, and where
/// weights are quantized activations to 8 bits, which in models of 32 features is coarse.
const FLOATS: f32 = 2e-3;
const QUANTIZED: f32 = 0.05;

#[test]
fn golden_models_agree() {
    let goldens = goldens();
    assert!(goldens.len() > 20, "there are models");
    let mut failures = Vec::new();
    for isa in Isa::available() {
        let cpu = Cpu::new(CpuOptions { isa: Some(isa), ..CpuOptions::default() }).unwrap();
        for golden in &goldens {
            let model = Model::open(&golden.path).unwrap();
            let options = BuildOptions { context: golden.context };
            let (graph, weights) = model.build(&options).unwrap();
            let n = golden.ids.len();
            let limits = Limits { context: n, kv_tokens: n, batch_tokens: n };
            let mut executor = cpu.compile(&graph, &weights, limits).unwrap();
            let is_quantized = |weight: &Weight| match weight {
                Weight::One(tensor) => !tensor.dtype().is_float(),
                Weight::Stack(parts) => parts.iter().any(|part| !part.dtype().is_float()),
            };
            let quantized = weights.iter().any(|(_, weight)| is_quantized(weight));
            let largest = golden.logits.iter().flatten().fold(0f32, |max, x| max.max(x.abs()));
            let limit = largest * if quantized { QUANTIZED } else { FLOATS };
            for chunk in [n, 33] {
                executor.free(SeqId(0));
                let mut all = baton_graph::Logits { vocab: graph.vocab(), ..Default::default() };
                for part in golden.ids.chunks(chunk) {
                    let batch = Batch::one(SeqId(0), part.to_vec(), Rows::All);
                    all.values.extend(executor.forward(&batch).unwrap().values);
                }
                let difference = golden.max_difference(&all);
                let what = format!("{isa} {}, by {chunk}: {difference:.1e}", golden.name);
                println!("{what} of {largest:.1}");
                if difference > limit {
                    failures.push(what);
                }
            }
        }
    }
    assert!(failures.is_empty(), "too far off: {failures:#?}");
}
