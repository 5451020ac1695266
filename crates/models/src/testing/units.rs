//! The golden models run by a compute unit.

use baton_graph::{Batch, Limits, Logits, Rows, SeqId, Span, Unit};
use baton_weights::Weight;

use super::{embedding_goldens, goldens};
use crate::{BuildOptions, Model};

/// Runs every golden model whole and in pieces; `name` is the unit's in messages. Logits may differ by
/// a share of the largest one: `floats`, or `quantized` in models of which some weight is.
///
/// # Panics
/// If some differ by more, with a list of them.
pub fn golden_models_agree(unit: &dyn Unit, name: &str, floats: f32, quantized: f32) {
    let goldens = goldens();
    assert!(goldens.len() > 20, "there are models");
    let mut failures = Vec::new();
    for golden in &goldens {
        let model = Model::open(&golden.path).expect("the model opens");
        let options = BuildOptions { context: golden.context };
        let (graph, weights) = model.build(&options).expect("the model builds");
        let n = golden.ids.len();
        let limits = Limits { context: n, kv_tokens: n, batch_tokens: n };
        let mut executor = unit.compile(&graph, &weights, limits).expect("the unit runs it");
        let is_quantized = |weight: &Weight| match weight {
            Weight::One(tensor) => !tensor.dtype().is_float(),
            Weight::Stack(parts) => parts.iter().any(|part| !part.dtype().is_float()),
        };
        let is_quantized = weights.iter().any(|(_, weight)| is_quantized(weight));
        let largest = golden.logits.iter().flatten().fold(0f32, |max, x| max.max(x.abs()));
        let limit = largest * if is_quantized { quantized } else { floats };
        for chunk in [n, 33] {
            executor.free(SeqId(0));
            let mut all = Logits { vocab: graph.vocab(), ..Default::default() };
            for part in golden.ids.chunks(chunk) {
                let batch = Batch::one(SeqId(0), part.to_vec(), Rows::All);
                all.values.extend(executor.forward(&batch).expect("the batch fits").values);
            }
            let difference = golden.max_difference(&all);
            let what = format!("{name} {}, by {chunk}: {difference:.1e}", golden.name);
            println!("{what} of {largest:.1}");
            if difference > limit {
                failures.push(what);
            }
        }
    }
    assert!(failures.is_empty(), "too far off: {failures:#?}");
}

/// Runs every golden embedding model. Elements of vectors may differ by `tolerance`, or by `cached` in
/// models whose keys and values are cached.
///
/// # Panics
/// If one differs by more.
pub fn golden_embeddings_agree(unit: &dyn Unit, name: &str, tolerance: f32, cached: f32) {
    for golden in embedding_goldens() {
        let model = Model::open(&golden.path).expect("the model opens");
        let limits = Limits { context: 96, kv_tokens: 1000, batch_tokens: 1000 };
        let options = BuildOptions { context: limits.context };
        let (graph, weights) = model.build(&options).expect("the model builds");
        let tolerance = if graph.states().is_empty() { tolerance } else { cached };
        let mut executor = unit.compile(&graph, &weights, limits).expect("the unit runs it");
        let spans = golden.texts.iter().zip(0..).map(|(text, seq)| Span {
            seq: SeqId(seq),
            tokens: text.ids.clone(),
            rows: Rows::Last,
        });
        let batch = Batch { spans: spans.collect() };
        let found = executor.forward(&batch).expect("the batch fits");
        let mut worst = 0f32;
        for (i, text) in golden.texts.iter().enumerate() {
            let (difference, cosine) = text.compare(found.row(i));
            worst = worst.max(difference);
            assert!(cosine > 1.0 - tolerance, "{name} {}: {cosine}", golden.name);
        }
        println!("{name} {}: {worst:.1e}", golden.name);
        assert!(worst < tolerance, "{name} {}: {worst:.1e}", golden.name);
    }
}
