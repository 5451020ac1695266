//! Any text as the `config.json` of some sound weights: an error, or a graph that holds together.
//! The first byte chooses the weights.

#![no_main]

use baton_models::{BuildOptions, Model, Source};
use baton_weights::Checkpoint;
use libfuzzer_sys::fuzz_target;

macro_rules! weights {
    ($($name:literal),*) => {
        [$(include_bytes!(concat!("../../crates/models/tests/golden/", $name, "/model.safetensors"))
            .as_slice()),*]
    };
}

const WEIGHTS: [&[u8]; 5] = weights!["llama3", "gemma3", "qwen3-moe", "phi4-mini", "gpt-oss"];

fuzz_target!(|bytes: &[u8]| {
    let Some((first, text)) = bytes.split_first() else { return };
    let Ok(config) = serde_json::from_slice(text) else { return };
    let weights = bytes::Bytes::from_static(WEIGHTS[*first as usize % WEIGHTS.len()]);
    let Ok(files) = Checkpoint::from_bytes(weights, config) else { return };
    let Ok(source) = Source::from_checkpoint("".into(), files) else { return };
    let Ok(model) = Model::from_source(source) else { return };
    for context in [1, 64, 1 << 20] {
        if let Ok((graph, weights)) = model.build(&BuildOptions { context }) {
            for spec in graph.weights() {
                let weight = weights.get(&spec.name).expect("the graph names weights that exist");
                assert_eq!(weight.shape(), spec.shape);
            }
        }
    }
});
