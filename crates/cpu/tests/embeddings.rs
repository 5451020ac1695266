//! Every golden embedding model through the CPU unit: known vectors, computed by
//! sentence-transformers in f32.

use baton_cpu::{Cpu, CpuOptions, Isa};
use baton_graph::{Batch, Limits, Rows, SeqId, Span, Unit};
use baton_models::testing::embedding_goldens;
use baton_models::{BuildOptions, Model};

/// Largest difference of an element.
const TOLERANCE: f32 = 1e-4;
/// The same for models whose keys and values are cached, and so rounded to f16.
const CACHED: f32 = 1e-3;

#[test]
fn golden_embeddings_agree() {
    for isa in Isa::available() {
        let cpu = Cpu::new(CpuOptions { isa: Some(isa), ..CpuOptions::default() }).unwrap();
        for golden in embedding_goldens() {
            let model = Model::open(&golden.path).unwrap();
            let limits = Limits { context: 96, kv_tokens: 1000, batch_tokens: 1000 };
            let options = BuildOptions { context: limits.context };
            let (graph, weights) = model.build(&options).unwrap();
            let tolerance = if graph.states().is_empty() { TOLERANCE } else { CACHED };
            let mut executor = cpu.compile(&graph, &weights, limits).unwrap();
            let spans = golden.texts.iter().zip(0..).map(|(text, seq)| Span {
                seq: SeqId(seq),
                tokens: text.ids.clone(),
                rows: Rows::Last,
            });
            let found = executor.forward(&Batch { spans: spans.collect() }).unwrap();
            let mut worst = 0f32;
            for (i, text) in golden.texts.iter().enumerate() {
                let (difference, cosine) = text.compare(found.row(i));
                worst = worst.max(difference);
                assert!(cosine > 1.0 - tolerance, "{isa} {}: {cosine}", golden.name);
            }
            println!("{isa} {}: {worst:.1e}", golden.name);
            assert!(worst < tolerance, "{isa} {}: {worst:.1e}", golden.name);
        }
    }
}
