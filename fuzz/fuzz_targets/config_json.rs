//! Any text as the `config.json` of sound weights: an error, or a graph that holds together. The
//! weights are those of the architecture that the text names.

#![no_main]

use baton_models::{BuildOptions, Model, Source};
use baton_weights::Checkpoint;
use libfuzzer_sys::fuzz_target;

macro_rules! weights {
    ($name:literal) => {
        include_bytes!(concat!("../../crates/models/tests/golden/", $name, "/model.safetensors"))
    };
}

fn weights_for(model_type: &str) -> &'static [u8] {
    match model_type {
        "mistral" => weights!("mistral"),
        "qwen2" => weights!("qwen2"),
        "qwen3" => weights!("qwen3"),
        "qwen3_moe" => weights!("qwen3-moe"),
        "gemma2" => weights!("gemma2"),
        "gemma3" | "gemma3_text" => weights!("gemma3"),
        "phi3" => weights!("phi4-mini"),
        "smollm3" => weights!("smollm3"),
        "gpt_oss" => weights!("gpt-oss"),
        _ => weights!("llama3"),
    }
}

fuzz_target!(|text: &[u8]| {
    let Ok(config) = serde_json::from_slice::<serde_json::Value>(text) else { return };
    let weights = weights_for(config["model_type"].as_str().unwrap_or_default());
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
