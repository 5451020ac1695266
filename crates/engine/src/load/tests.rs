use baton_cpu::{Cpu, CpuOptions};
use baton_graph::testing::{Tiny, random_weights};
use baton_graph::{Batch, Rows, SeqId, Unit};

use super::*;

#[test]
fn the_plan_has_every_term() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context: 100, kv_tokens: 200, batch_tokens: 10 };
    let plan = memory_plan(&graph, &weights, &limits, &LoadOptions::default()).unwrap();
    let elements: usize = graph.weights().iter().map(|w| w.shape.iter().product::<usize>()).sum();
    assert_eq!((plan.weights, plan.copied), (4 * elements as u64, 0));
    // Three layers, keys and values of two heads of 16 in f16.
    assert_eq!(plan.kv, 200 * 3 * 2 * 2 * 16 * 2);
    // Gate, up and their product are the widest: 3 times 96 features.
    // Logits come for one token and 15 guesses.
    assert_eq!(plan.scratch, 10 * 2 * 4 * 3 * 96 + 16 * 4 * 97);
    // A second unit has a cache of its own, of singles.
    let two = LoadOptions { prefill: Some(UnitKind::Reference), ..LoadOptions::default() };
    assert_eq!(memory_plan(&graph, &weights, &limits, &two).unwrap().kv, 3 * plan.kv);
    let same = LoadOptions { prefill: Some(UnitKind::Cpu), ..LoadOptions::default() };
    assert_eq!(memory_plan(&graph, &weights, &limits, &same).unwrap(), plan);
}

#[test]
fn the_plan_knows_what_each_unit_keeps_for_itself() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context: 100, kv_tokens: 200, batch_tokens: 10 };
    let plan = |unit| {
        let options = LoadOptions { unit, ..LoadOptions::default() };
        memory_plan(&graph, &weights, &limits, &options).unwrap()
    };
    let cpu = plan(UnitKind::Cpu);
    let all: usize = graph.weights().iter().map(|w| w.shape.iter().product::<usize>()).sum();
    // Halves of all weights; the embedding is also the output matrix here.
    let coreml = plan(UnitKind::CoreMl);
    assert_eq!((coreml.copied, coreml.kv), (2 * all as u64, cpu.kv));
    // A copy of all, and the cache, wherever the GPU has its memory.
    let gpu = plan(UnitKind::Gpu);
    let holds = gpu.copied + gpu.kv + gpu.scratch + gpu.apart;
    assert_eq!(holds, cpu.weights + cpu.kv + cpu.scratch, "{gpu:?}");
    assert!(gpu.apart == 0 || (gpu.copied, gpu.kv) == (0, 0), "{gpu:?}");
    // Neither is forgotten beside the CPU.
    let both = LoadOptions { prefill: Some(UnitKind::CoreMl), ..LoadOptions::default() };
    let both = memory_plan(&graph, &weights, &limits, &both).unwrap();
    assert_eq!((both.copied, both.kv), (coreml.copied, 2 * cpu.kv));
}

#[test]
fn what_cannot_be_allocated_is_refused_and_what_is_mapped_is_not() {
    let plan =
        MemoryPlan { weights: 100, kv: 50, scratch: 10, available: Some(60), ..Default::default() };
    assert!(check_memory(&plan).is_ok(), "weights need not all be in memory");
    let short = MemoryPlan { available: Some(59), ..plan };
    assert!(matches!(check_memory(&short), Err(Error::Memory { plan }) if plan == short));
    assert!(check_memory(&MemoryPlan { available: None, ..short }).is_ok());
    let copied = MemoryPlan { copied: 1, ..plan };
    assert!(matches!(check_memory(&copied), Err(Error::Memory { .. })));
}

#[test]
fn the_plan_is_what_is_taken() {
    let graph = Tiny { head_dim: 64, ..Tiny::default() }.graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context: 256, kv_tokens: 1024, batch_tokens: 256 };
    let cpu = Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let mut executor = cpu.compile(&graph, &weights, limits).unwrap();
    // Storage may be taken as it is needed: fill it.
    for seq in 0..4 {
        executor.forward(&Batch::one(SeqId(seq), vec![1; 256], Rows::Last)).unwrap();
    }
    let plan = memory_plan(&graph, &weights, &limits, &LoadOptions::default()).unwrap();
    let usage = executor.usage();
    assert_eq!(plan.weights, usage.weight_bytes as u64);
    let ratio = plan.kv as f64 / usage.kv_bytes as f64;
    assert!((0.95..=1.05).contains(&ratio), "KV cache: {plan:?}, {usage:?}");
    let ratio = plan.scratch as f64 / usage.scratch_bytes as f64;
    assert!((0.5..=2.0).contains(&ratio), "scratch: {plan:?}, {usage:?}");
}
