//! Any bytes as a GGUF model: an error, or a graph that holds together.

#![no_main]

use baton_models::{BuildOptions, Model, Source};
use baton_weights::GgufFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = GgufFile::from_bytes(bytes.to_vec()) else { return };
    let Ok(model) = Model::from_source(Source::Gguf(file)) else { return };
    model.quantization();
    for context in [1, 64, 1 << 20] {
        if let Ok((graph, weights)) = model.build(&BuildOptions { context }) {
            for spec in graph.weights() {
                let weight = weights.get(&spec.name).expect("the graph names weights that exist");
                assert_eq!(weight.shape(), spec.shape);
            }
        }
    }
});
