//! Real models, against the CPU unit: logits, and caches handed over both ways. The models are fetched
//! by the test script; without them these tests say so and pass.

use std::path::PathBuf;

use baton_cpu::{Cpu, CpuOptions};
use baton_gpu::{GpuUnit, Options};
use baton_graph::testing::conformance::Tolerance;
use baton_graph::{Batch, Executor, Limits, Rows, SeqId, Unit};
use baton_models::{BuildOptions, Model};

const SEQ: SeqId = SeqId(0);
const LIMITS: Limits = Limits { context: 64, kv_tokens: 64, batch_tokens: 64 };
/// Both units round activations to 8 bits, and the CPU those that stand out to 12.
const ROUNDED: Tolerance = Tolerance { nmse: 1e-2, worst: 0.1 };

fn model(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("BATON_TEST_DATA") else {
        eprintln!("skipped: BATON_TEST_DATA is not set; scripts/test.sh fetches the data");
        return None;
    };
    Some(PathBuf::from(folder).join("models").join(name))
}

fn forward(executor: &mut dyn Executor, tokens: &[u32]) -> Vec<f32> {
    executor.forward(&Batch::one(SEQ, tokens.to_vec(), Rows::Last)).unwrap().values
}

fn best(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.unwrap() as u32
}

/// Reads `prompt` on one unit, writes some tokens, hands the cache over to the other and back, and
/// compares all logits.
fn relay(name: &str, prompt: &[u32]) {
    let Some(path) = model(name) else { return };
    let model = Model::open(&path).unwrap();
    let (graph, weights) = model.build(&BuildOptions { context: LIMITS.context }).unwrap();
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let gpu = GpuUnit::open(&Options::from_env()).unwrap_or_else(|error| panic!("{error}"));
    let mut cpu = cpu.compile(&graph, &weights, LIMITS).unwrap();
    let mut gpu = gpu.compile(&graph, &weights, LIMITS).unwrap();
    let mut tokens = prompt.to_vec();
    let mut expected = forward(&mut *cpu, &tokens);
    ROUNDED.check(&format!("{name}, the prompt"), &forward(&mut *gpu, &tokens), &expected);
    for step in 0..6 {
        // Alternately the other unit's cache of everything so far.
        let n = tokens.len();
        let (from, to) = if step % 2 == 0 { (&mut gpu, &mut cpu) } else { (&mut cpu, &mut gpu) };
        let block = from.export_kv(SEQ, 0..n).unwrap();
        to.free(SEQ);
        to.import_kv(SEQ, 0, &block).unwrap();
        assert_eq!(to.export_kv(SEQ, 0..n).unwrap(), block, "{name}: there and back");
        tokens.push(best(&expected));
        expected = forward(&mut *cpu, &tokens[n..]);
        ROUNDED.check(&format!("{name}, token {n}"), &forward(&mut *gpu, &tokens[n..]), &expected);
    }
}

#[test]
fn smollm2_goes_on_where_the_other_unit_was() {
    relay("SmolLM2-135M-Instruct.Q4_1.gguf", &[1, 504, 3575, 282, 4649, 314, 7042, 28, 284]);
}

#[test]
fn gemma_goes_on_where_the_other_unit_was() {
    relay("gemma-3-270m-q4_k_m.gguf", &[2, 818, 5279, 529, 7001, 563, 9079, 236764, 532]);
}
