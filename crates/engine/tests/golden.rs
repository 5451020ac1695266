//! Real models against an exact forward pass, in double precision over the same quantized weights.
//! `golden/make.py` has put the numbers into the files.

#[path = "common/models.rs"]
mod models;

use baton_engine::{LoadOptions, RelayOptions, UnitKind, compile_model};
use baton_graph::{Batch, Executor, Rows, SeqId};
use baton_models::Model;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    model: String,
    prompt_text: String,
    prompt_ids: Vec<u32>,
    first_step_top10: Vec<(u32, f32)>,
    output_ids: Vec<u32>,
    margins: Vec<f32>,
}

fn check(golden: &str, unit: UnitKind, prefill: Option<UnitKind>, steps: usize) {
    let golden: Golden = serde_json::from_str(golden).unwrap();
    let Some(path) = models::find(&golden.model) else { return };
    let relay = RelayOptions { crossover: 8, chunk: 16, ..RelayOptions::default() };
    let options =
        LoadOptions { unit, prefill, relay, context: Some(256), ..LoadOptions::default() };
    let mut executor = compile_model(&Model::open(path).unwrap(), &options).unwrap().executor;
    let logits = forced(&mut *executor, &golden, steps);
    for &(id, exact) in &golden.first_step_top10 {
        let got = logits[0][id as usize];
        assert!((got - exact).abs() <= 0.4, "logit of {id}: {got}, exactly {exact}");
    }
    for (step, row) in logits.iter().enumerate() {
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let (exact, margin) = (golden.output_ids[step] as usize, golden.margins[step]);
        assert!(best == exact || margin <= 0.3, "step {step}: {best}, not {exact} by {margin}");
    }
}

/// The logits from which each token of the exact answer was chosen.
fn forced(executor: &mut dyn Executor, golden: &Golden, steps: usize) -> Vec<Vec<f32>> {
    let seq = SeqId(0);
    let batch = Batch::one(seq, golden.prompt_ids.clone(), Rows::Last);
    let mut rows = vec![executor.forward(&batch).unwrap().row(0).to_vec()];
    for &id in &golden.output_ids[..steps - 1] {
        let logits = executor.forward(&Batch::one(seq, vec![id], Rows::Last)).unwrap();
        rows.push(logits.row(0).to_vec());
    }
    rows
}

const SMOLLM2: &str = include_str!("golden/smollm2_chat.json");
const GEMMA3: &str = include_str!("golden/gemma3_capital.json");

#[test]
fn smollm2_on_the_cpu_is_exact() {
    check(SMOLLM2, UnitKind::Cpu, None, 128);
}

#[test]
fn gemma3_on_the_cpu_is_exact() {
    check(GEMMA3, UnitKind::Cpu, None, 32);
}

#[test]
fn smollm2_on_the_reference_is_exact() {
    check(SMOLLM2, UnitKind::Reference, None, 6);
}

#[test]
fn gemma3_on_the_reference_is_exact() {
    check(GEMMA3, UnitKind::Reference, None, 6);
}

#[test]
fn the_baton_passes_from_the_reference_to_the_cpu() {
    check(SMOLLM2, UnitKind::Cpu, Some(UnitKind::Reference), 48);
    check(GEMMA3, UnitKind::Cpu, Some(UnitKind::Reference), 32);
}

#[test]
fn the_baton_passes_from_the_cpu_to_the_reference() {
    check(SMOLLM2, UnitKind::Reference, Some(UnitKind::Cpu), 6);
    check(GEMMA3, UnitKind::Reference, Some(UnitKind::Cpu), 6);
}

#[test]
fn prompts_are_tokenized_as_llama_cpp_does() {
    for (golden, add_special) in [(SMOLLM2, false), (GEMMA3, true)] {
        let golden: Golden = serde_json::from_str(golden).unwrap();
        let Some(path) = models::find(&golden.model) else { return };
        let text = baton_engine::ModelText::of(&Model::open(path).unwrap()).unwrap();
        let ids = text.tokenizer.encode(&golden.prompt_text, add_special).unwrap();
        assert_eq!(ids, golden.prompt_ids);
    }
}
