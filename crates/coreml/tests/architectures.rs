//! Checkpoints of every architecture, lowered and interpreted, against what transformers computed.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision};
use baton_coreml::lower::{Lowering, MilLowering};
use baton_coreml::{Blobs, CoreMl, Package, PackageExecutor, calibrate, in_memory};
use baton_cpu::{Isa, Pool};
use baton_graph::{Batch, Executor, Limits, Logits, Rows, SeqId, Unit};
use baton_models::testing::{Golden, goldens};
use baton_models::{BuildOptions, Model};

/// How far logits may be from the known ones, as a part of the largest. Weights and what crosses a function's
/// border are in half precision always.
fn tolerance(precision: Precision, architecture: &str) -> f32 {
    match (precision, architecture) {
        (Precision::F32, "gpt-oss") => 3e-3,
        (Precision::F32, _) => 2e-3,
        (_, "gpt-oss") => 1e-2,
        (_, _) => 4e-3,
    }
}

/// A line for a log, and whether the logits are too far from the known ones.
fn compare(
    golden: &Golden,
    logits: &Logits,
    precision: Precision,
    architecture: &str,
) -> (String, bool) {
    let worst = golden.max_difference(logits) / golden.largest();
    let line = format!("{:40} {precision:?} {worst:.1e}", golden.name);
    println!("{line}");
    (line, worst > tolerance(precision, architecture))
}

#[test]
fn every_architecture_agrees_with_transformers() {
    let unit = CoreMl::new(Arc::new(Pool::new(2, Isa::detect()).unwrap()));
    let (mut passed, mut failures) = (BTreeSet::new(), Vec::new());
    for golden in goldens() {
        let model = Model::open(&golden.path).unwrap();
        let (graph, weights) = model.build(&BuildOptions { context: golden.context }).unwrap();
        let n = golden.ids.len();
        let limits = Limits { context: golden.context, kv_tokens: n, batch_tokens: n };
        let mut executor = unit.compile(&graph, &weights, limits).unwrap();
        let batch = Batch::one(SeqId(0), golden.ids.clone(), Rows::All);
        let logits = executor.forward(&batch).unwrap();
        let (line, far) = compare(&golden, &logits, Precision::F32, model.architecture());
        failures.extend(far.then_some(line));
        passed.insert(model.architecture().to_owned());
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    for architecture in [
        "Llama",
        "Qwen2",
        "Qwen3",
        "Gemma 2",
        "Gemma 3",
        "Phi-3",
        "SmolLM3",
        "Qwen3-MoE",
        "gpt-oss",
    ] {
        assert!(passed.contains(architecture), "{architecture} is not among {passed:?}");
    }
}

#[test]
fn every_function_of_every_architecture_agrees_in_half_precision() {
    let pool = Arc::new(Pool::new(2, Isa::detect()).unwrap());
    let mut failures = Vec::new();
    for golden in goldens() {
        let model = Model::open(&golden.path).unwrap();
        let (graph, weights) = model.build(&BuildOptions { context: golden.context }).unwrap();
        let n = golden.ids.len();
        let sample = &golden.ids[..n.min(64)];
        let ranges = calibrate(&graph, &weights, sample, 0).unwrap().ranges;
        let prefill = vec![(8, 0), (8, golden.context)];
        let decode = Some(golden.context);
        let lowering = MilLowering { prefill, decode, ranges, ..MilLowering::default() };
        let mut blobs = in_memory();
        let program = lowering.lower(&graph, &weights, &mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        let package = Package::new(program, Some(blobs)).unwrap();
        let limits = Limits { context: golden.context, kv_tokens: golden.context, batch_tokens: n };
        for precision in [Precision::F16, Precision::F16Steps] {
            let interpreter = Interpreter::new(&package, precision, pool.clone()).unwrap();
            let ready = vec![(&package, interpreter)];
            let mut executor = PackageExecutor::new(&graph, &weights, ready, limits).unwrap();
            // The first half by chunks, the second token by token through the states.
            let mut all = Logits { vocab: graph.vocab(), ..Logits::default() };
            let (first, second) = golden.ids.split_at(n / 2);
            for tokens in std::iter::once(first).chain(second.chunks(1)) {
                let batch = Batch::one(SeqId(0), tokens.to_vec(), Rows::All);
                let logits = executor.forward(&batch).unwrap();
                all.rows.extend(logits.rows);
                all.values.extend(logits.values);
            }
            let (line, far) = compare(&golden, &all, precision, model.architecture());
            failures.extend(far.then_some(line));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
