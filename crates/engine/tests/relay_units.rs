//! Every pair of the CPU, the GPU and a Core ML package as prefill and decode unit: what they answer together is
//! what each would have answered alone, as far as they compute the same.

mod common;

use std::sync::Arc;

use baton_coreml::CoreMl;
use baton_cpu::{Cpu, CpuOptions, Isa, Pool};
use baton_engine::{Engine, ModelTraits, RelayUnit};
use baton_graph::testing::random_tokens;
use baton_graph::{Batch, Limits, Rows, SeqId, Unit};

use common::{VOCAB, answer, greedy, relay_options, sure_executor_of};

const SEQ: SeqId = SeqId(7);
const LIMITS: Limits = Limits { context: 128, kv_tokens: 128, batch_tokens: 64 };
/// How far logits of two units may lie apart, as a share of the largest: a package has weights of half
/// precision.
const TOLERANCE: f32 = 5e-3;

fn cpu() -> Box<dyn Unit> {
    Box::new(Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap())
}

fn gpu() -> Box<dyn Unit> {
    Box::new(common::gpu())
}

fn package() -> Box<dyn Unit> {
    Box::new(CoreMl::new(Arc::new(Pool::new(1, Isa::detect()).unwrap())))
}

/// The logits behind each token of `answer` but the last, which follows `prompt`, and those behind the prompt.
fn logits(unit: &dyn Unit, seed: u64, prompt: &[u32], answer: &[u32]) -> Vec<Vec<f32>> {
    let mut executor = sure_executor_of(unit, LIMITS, seed);
    let mut forward = |tokens: &[u32]| {
        executor.forward(&Batch::one(SEQ, tokens.to_vec(), Rows::Last)).unwrap().values
    };
    let first = forward(prompt);
    let others = answer[..answer.len() - 1].iter().map(|&token| forward(&[token]));
    std::iter::once(first).chain(others).collect()
}

#[test]
fn every_pair_of_cpu_gpu_and_package_answers_as_each_alone() {
    let units: [fn() -> Box<dyn Unit>; 3] = [cpu, gpu, package];
    for (i, prefill) in units.iter().enumerate() {
        for decode in units.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, unit)| unit) {
            let pair = RelayUnit {
                prefill: prefill(),
                decode: decode(),
                options: relay_options(4, 5 + i),
            };
            for seed in 0..2 {
                let prompt = random_tokens(40 + 17 * seed as usize, VOCAB, seed);
                let executor = sure_executor_of(&pair, LIMITS, seed);
                let engine = Engine::new(executor, ModelTraits::default());
                let found = answer(&mut engine.session(), &prompt, &greedy(24));
                assert_eq!(found.summary.metrics.handed_over_tokens, prompt.len() - 1);
                assert_eq!(found.tokens.len(), 24);
                let together = logits(&pair, seed, &prompt, &found.tokens);
                for alone in [prefill(), decode()] {
                    let (a, b) = (pair.prefill.name(), pair.decode.name());
                    let names = format!("{a} then {b} beside {}", alone.name());
                    let rows = logits(&*alone, seed, &prompt, &found.tokens);
                    for ((row, own), &token) in rows.iter().zip(&together).zip(&found.tokens) {
                        let most = row.iter().fold(0f32, |most, x| most.max(x.abs()));
                        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        let worst =
                            row.iter().zip(own).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
                        assert!(worst <= TOLERANCE * most, "{names}: {worst} of {most}");
                        assert!(
                            best - row[token as usize] <= 2.0 * worst,
                            "{names}: another token"
                        );
                    }
                }
            }
        }
    }
}
