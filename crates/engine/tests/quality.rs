//! The CPU unit against the reference interpreter on real models and real text. The example
//! `quality` does the same over the whole text.

#[path = "common/models.rs"]
mod models;

use baton_engine::{LoadOptions, ModelText, UnitKind, Windows, compare, compile_model};
use baton_models::Model;

const PROSE: &str = include_str!("../../../tests/data/prose.txt");

/// What is allowed. Measured is far less (see docs/performance.md).
const MOST_KL: f64 = 2e-3;
const LEAST_TOP1: f64 = 0.98;

/// Compares over the first `tokens` of the text, in windows of so many: of a few hundred tokens the share
/// of those that agree says little.
fn check(name: &str, tokens: usize, window: usize) {
    let Some(path) = models::find(name) else { return };
    let model = Model::open(path).unwrap();
    let text = ModelText::of(&model).unwrap().tokenizer;
    let first = text.bos().filter(|_| text.add_bos());
    let ids = text.encode(PROSE, false).unwrap();
    let load = |unit| {
        let options = LoadOptions { unit, context: Some(window), ..LoadOptions::default() };
        compile_model(&model, &options).unwrap().executor
    };
    let windows = Windows { len: window, first };
    let ids = &ids[..tokens - usize::from(first.is_some())];
    let (mut cpu, mut reference) = (load(UnitKind::Cpu), load(UnitKind::Reference));
    let result = compare(&mut *cpu, &mut *reference, ids, windows).unwrap();
    println!("{name}: {result:?}, perplexity {:.3}", result.evaluation.perplexity());
    assert!(result.mean_kl <= MOST_KL, "KL {}", result.mean_kl);
    assert!(result.top1_agreement >= LEAST_TOP1, "top-1 agreement {}", result.top1_agreement);
    let ratio = result.evaluation.perplexity() / result.reference.perplexity();
    assert!((0.98..1.02).contains(&ratio), "perplexity is {ratio} of the reference's");
}

#[test]
fn smollm2_is_near_the_reference() {
    check(models::SMOLLM2, 2048, 256);
}

#[test]
fn gemma3_is_near_the_reference() {
    check(models::GEMMA3, 960, 480);
}
