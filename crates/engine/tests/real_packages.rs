//! The whole relay on a real model: prompts by a package, answers by the CPU.
//!
//! The model is SmolLM2 with its weights in half precision, as the package has them. With quantized ones the CPU
//! rounds what it multiplies them with to 8 bits, which a package does not: the text of either is then as
//! good as the other's, and not always the same.

mod common;
#[path = "common/models.rs"]
mod models;

use std::time::Instant;

use baton_engine::{Engine, LoadOptions, ModelText, Prompt, RelayOptions, UnitKind};
use baton_models::{Model, Source};
use baton_weights::{DType, GgufFile, Tensor, quantize_blocks};

const PROSE: &str = include_str!("../../../tests/data/prose.txt");

/// A model with its matrices in half precision.
fn in_halves(name: &str) -> Option<Model> {
    let file = GgufFile::open(models::find(name)?).unwrap();
    let tensors = file.tensors().iter().map(|info| {
        let tensor = file.tensor(info.name()).unwrap();
        if tensor.shape().len() < 2 {
            return tensor;
        }
        let halves = quantize_blocks(DType::F16, &tensor.to_f32()).unwrap();
        Tensor::new(info.name(), DType::F16, tensor.shape(), halves.into()).unwrap()
    });
    let file = GgufFile::from_tensors(file.metadata().clone(), tensors.collect()).unwrap();
    Some(Model::from_source(Source::Gguf(file)).unwrap())
}

#[test]
fn prompts_read_by_a_package_are_answered_as_by_the_cpu_alone() {
    let Some(model) = in_halves(models::SMOLLM2) else { return };
    let ids = ModelText::of(&model).unwrap().tokenizer.encode(PROSE, false).unwrap();
    let relay = RelayOptions { crossover: 1, ..RelayOptions::default() };
    let load = |prefill| {
        let options = LoadOptions {
            prefill,
            relay,
            context: Some(448),
            threads: Some(2),
            ..Default::default()
        };
        Engine::from_model(&model, &options, Instant::now()).unwrap()
    };
    let [alone, relay] = [None, Some(UnitKind::CoreMl)].map(load);
    let options = common::greedy(64);
    for len in [5, 40, 300] {
        let prompt = &ids[100..100 + len];
        let answer = |engine: &Engine| {
            let mut session = engine.session();
            common::collect(session.generate(Prompt::from(prompt), &options).unwrap())
        };
        let (expected, found) = (answer(&alone), answer(&relay));
        assert_eq!(found.tokens, expected.tokens, "behind {len} tokens");
        assert_eq!(expected.tokens.len(), 64);
        assert_eq!(found.summary.metrics.handed_over_tokens, found.prefilled() - 1);
    }
}
