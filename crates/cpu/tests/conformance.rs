//! The suite that every unit must pass, on every instruction set that this machine has.

use baton_cpu::{Cpu, CpuOptions, Isa};
use baton_graph::testing::conformance::{self, Tolerance};
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, Graph, KvType, Limits, Rows, SeqId, Unit, reference};
use baton_weights::{DType, Weights};

/// One unit for each instruction set, with the steps joined and apart.
fn units() -> Vec<Cpu> {
    let mut units = Vec::new();
    for isa in Isa::available() {
        for (threads, fuse) in [(2, true), (1, false)] {
            let (threads, isa, fuse) = (Some(threads), Some(isa), Some(fuse));
            let options = CpuOptions { threads, isa, fuse, ..CpuOptions::default() };
            units.push(Cpu::new(options).unwrap());
        }
    }
    units
}

#[test]
fn operations() {
    units().iter().for_each(|cpu| conformance::operations(cpu, Tolerance::F32));
}

#[test]
fn models() {
    units().iter().for_each(|cpu| conformance::models(cpu, Tolerance::F32, Tolerance::SAME));
}

#[test]
fn whole_texts() {
    units().iter().for_each(|cpu| conformance::whole_texts(cpu, Tolerance::F32));
}

#[test]
fn caches() {
    units().iter().for_each(|cpu| conformance::caches(cpu, Tolerance::F32, Tolerance::SAME));
}

#[test]
fn best_tokens() {
    units().iter().for_each(|cpu| conformance::best(cpu));
}

#[test]
fn failures() {
    units().iter().for_each(|cpu| conformance::failures(cpu, Tolerance::SAME));
}

#[test]
fn nonsense() {
    units().iter().for_each(|cpu| conformance::nonsense(cpu));
}

#[test]
fn quantized_caches() {
    let bits = [
        (KvType::Q8_0, Tolerance { nmse: 3e-4, worst: 0.05 }),
        (KvType::Q4_0, Tolerance { nmse: 5e-2, worst: 0.5 }),
    ];
    for (kv_type, tolerance) in bits {
        for isa in Isa::available() {
            let isa = Some(isa);
            let cpu = Cpu::new(CpuOptions { isa, kv_type, ..CpuOptions::default() }).unwrap();
            conformance::models(&cpu, tolerance, Tolerance::SAME);
        }
    }
}

/// Activations rounded to 8 bits, half a percent of noise before each product. What kernels make of the
/// rounded ones is tested more sharply, with the products.
const ROUNDED: Tolerance = Tolerance { nmse: 1e-3, worst: 0.05 };

#[test]
fn quantized_weights() {
    let blocks = [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1];
    for cpu in units() {
        // Sums in another order may round an activation to the next integer.
        let same = Tolerance { nmse: ROUNDED.nmse / 10.0, ..ROUNDED };
        conformance::quantized(&cpu, &blocks, ROUNDED, same);
        let same = Tolerance { nmse: Tolerance::F32.nmse / 10.0, ..Tolerance::F32 };
        conformance::quantized(&cpu, &[DType::F16, DType::BF16], Tolerance::F32, same);
    }
}

/// A model with sinks, of which a layer sees a window only, and a sequence of many parts.
struct Long {
    graph: Graph,
    weights: Weights,
    tokens: Vec<u32>,
    limits: Limits,
}

impl Long {
    fn new(window: usize) -> Long {
        let tiny = Tiny { window: Some(window), layers: 2, sinks: true, ..Tiny::default() };
        let graph = tiny.graph().unwrap();
        let weights = random_weights(&graph, 1);
        let tokens = random_tokens(700, tiny.vocab, 2);
        let limits = Limits { context: 800, kv_tokens: 800, batch_tokens: 512 };
        Long { graph, weights, tokens, limits }
    }
}

/// A token's logits have the same bits whatever it came with: after a long prompt in one piece, the rest of
/// one that was cached, guesses that were checked together, or single steps.
#[test]
fn a_text_may_be_cut_anywhere() {
    let Long { graph, weights, tokens, limits } = Long::new(300);
    for isa in Isa::available() {
        let options = CpuOptions { isa: Some(isa), ..CpuOptions::default() };
        let cpu = Cpu::new(options).unwrap();
        let logits = |cuts: &[usize]| {
            let mut executor = cpu.compile(&graph, &weights, limits).unwrap();
            let mut last = Vec::new();
            for end in cuts {
                let start = executor.len(SeqId(0));
                let batch = Batch::one(SeqId(0), tokens[start..*end].to_vec(), Rows::Last);
                last = executor.forward(&batch).unwrap().values;
            }
            last
        };
        let expected = logits(&[350, 700]);
        for cuts in [&[300, 600, 692, 700][..], &[511, 697, 698, 699, 700], &[255, 257, 699, 700]] {
            assert!(logits(cuts) == expected, "{isa}, cut at {cuts:?}");
        }
    }
}

/// A sequence so long that decoding splits it: the same bits on any number of threads, and what the
/// reference computes.
#[test]
fn long_contexts_do_not_depend_on_the_number_of_threads() {
    let Long { graph, weights, tokens, limits } = Long::new(600);
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    let mut all = Vec::new();
    for threads in [1, 2, 5] {
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let cpu = Cpu::new(options).unwrap();
        let mut executor = cpu.compile(&graph, &weights, limits).unwrap();
        let mut values = Vec::new();
        for end in [400, 690, 695, 699, 700] {
            let start = executor.len(SeqId(0));
            let batch = Batch::one(SeqId(0), tokens[start..end].to_vec(), Rows::Last);
            let logits = executor.forward(&batch).unwrap();
            let what = format!("{threads} threads, {end} tokens");
            Tolerance::F32.check(&what, logits.row(0), expected.row(end - 1));
            values.extend(logits.values);
        }
        all.push(values);
    }
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
}

#[test]
fn impossible_options_and_limits_are_errors() {
    for isa in [Isa::Neon, Isa::Avx512, Isa::Portable] {
        let options = CpuOptions { isa: Some(isa), threads: Some(0), ..CpuOptions::default() };
        assert_eq!(Cpu::new(options).is_ok(), Isa::available().contains(&isa));
    }
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let cpu = Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let fine = Limits { context: 10, kv_tokens: 10, batch_tokens: 10 };
    for limits in [
        Limits { context: 0, ..fine },
        Limits { kv_tokens: 0, ..fine },
        Limits { batch_tokens: 0, ..fine },
        Limits { batch_tokens: usize::MAX, ..fine },
        Limits { kv_tokens: usize::MAX, ..fine },
    ] {
        assert!(cpu.compile(&graph, &weights, limits).is_err(), "{limits:?}");
    }
    let unknown = CpuOptions { disabled_passes: vec!["no such pass".into()], ..Default::default() };
    assert!(Cpu::new(unknown).unwrap().compile(&graph, &weights, fine).is_err());
}

/// KV memory is taken as it is used, and counted.
#[test]
fn usage_tells_what_is_held() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let cpu = Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let limits = Limits { context: 1 << 20, kv_tokens: 1 << 20, batch_tokens: 100 };
    let mut executor = cpu.compile(&graph, &weights, limits).unwrap();
    let empty = executor.usage();
    assert_eq!((empty.kv_bytes, empty.kv_tokens, empty.kv_capacity), (0, 0, 1 << 20));
    assert_eq!(empty.weight_bytes, weights.stored_bytes());
    assert!(empty.scratch_bytes > 0);
    executor.forward(&Batch::one(SeqId(0), vec![1; 65], Rows::Last)).unwrap();
    let used = executor.usage();
    assert_eq!(used.kv_tokens, 128);
    assert!(used.kv_bytes >= 128 * graph.kv_bytes_per_token(KvType::F16), "{used:?}");
    executor.free(SeqId(0));
    assert_eq!(executor.usage().kv_tokens, 0);
}
