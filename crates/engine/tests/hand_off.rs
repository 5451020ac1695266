//! A cache that was handed over is the one that was written: for every type, shape, window and cut.

mod common;

use std::sync::Arc;

use baton_coreml::CoreMl;
use baton_cpu::{Cpu, CpuOptions, Isa, Pool};
use baton_graph::reference::Reference;
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, Executor, Graph, KvBlock, KvType, Limits, Rows, SeqId, Unit};
use proptest::prelude::*;

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);
const OTHER: SeqId = SeqId(3);
const LIMITS: Limits = Limits { context: 300, kv_tokens: 1000, batch_tokens: 64 };

/// Who holds a cache.
#[derive(Clone, Copy, Debug)]
enum Holder {
    Reference,
    /// The CPU, by one of its instruction sets.
    Cpu(KvType, usize),
    Gpu,
    /// Functions of a Core ML package, interpreted.
    Package,
}

impl Holder {
    fn unit(self) -> Box<dyn Unit> {
        match self {
            Holder::Reference => Box::new(Reference),
            Holder::Cpu(kv_type, isa) => {
                let all: Vec<Isa> = Isa::available().into_iter().collect();
                let (isa, threads) = (Some(all[isa % all.len()]), Some(1));
                let options = CpuOptions { isa, threads, kv_type, ..CpuOptions::default() };
                Box::new(Cpu::new(options).unwrap())
            }
            Holder::Gpu => Box::new(common::gpu()),
            Holder::Package => {
                Box::new(CoreMl::new(Arc::new(Pool::new(1, Isa::detect()).unwrap())))
            }
        }
    }

    /// What a head's keys or values may be off, as a share of their length; nothing is lost where halves are
    /// kept. Elsewhere heads are turned and their features rounded to a step of their block of 32, whose
    /// largest is at most 5.7 times its root mean square: half such a step for each is 0.35 of a head's length
    /// with 4 bits, with one at the end that 4 bits do not reach 0.4, and 0.022 with 8.
    fn loss(self) -> Option<f32> {
        match self {
            Holder::Cpu(KvType::Q8_0, _) => Some(0.025),
            Holder::Cpu(KvType::Q4_0, _) => Some(0.4),
            _ => None,
        }
    }
}

fn on_cpus() -> impl Strategy<Value = Holder> {
    let types = vec![KvType::F16, KvType::Q8_0, KvType::Q4_0];
    let cpu = (prop::sample::select(types), 0usize..4).prop_map(|(ty, isa)| Holder::Cpu(ty, isa));
    prop_oneof![1 => Just(Holder::Reference), 3 => cpu]
}

fn elsewhere() -> impl Strategy<Value = Holder> {
    prop_oneof![2 => Just(Holder::Gpu), 1 => Just(Holder::Package)]
}

fn shapes() -> impl Strategy<Value = Tiny> {
    let dims = prop_oneof![Just(8usize), Just(16), Just(32), Just(40), Just(64), Just(80)];
    let windows = prop_oneof![Just(None), (1usize..70).prop_map(Some)];
    (1usize..4, 1usize..4, 1usize..4, dims, windows).prop_map(
        |(layers, kv_heads, group, head_dim, window)| Tiny {
            layers,
            kv_heads,
            heads: kv_heads * group,
            head_dim,
            window,
            hidden: 32,
            ffn: 32,
            ..Tiny::default()
        },
    )
}

/// Ranges that make up `0..n`, cut at some of the places given.
fn pieces(n: usize, cuts: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (n + 1)).chain([0, n]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn compile(unit: &dyn Unit, graph: &Graph) -> Box<dyn Executor> {
    unit.compile(graph, &random_weights(graph, 3), LIMITS).unwrap()
}

fn fill(executor: &mut dyn Executor, seq: SeqId, tokens: &[u32]) {
    for chunk in tokens.chunks(LIMITS.batch_tokens) {
        executor.forward(&Batch::one(seq, chunk.to_vec(), Rows::None)).unwrap();
    }
}

/// Checks that `found` is what a holder makes of `expected`.
fn check(holder: Holder, found: &KvBlock, expected: &KvBlock) -> Result<(), TestCaseError> {
    let shape = |b: &KvBlock| (b.fingerprint, b.layers, b.kv_heads, b.tokens, b.head_dim);
    prop_assert_eq!(shape(found), shape(expected));
    let Some(most) = holder.loss() else {
        prop_assert_eq!(found, expected);
        return Ok(());
    };
    let length = |of: &mut dyn Iterator<Item = f32>| of.map(|x| x * x).sum::<f32>().sqrt();
    let dim = expected.head_dim;
    for (found, expected) in [(&found.keys, &expected.keys), (&found.values, &expected.values)] {
        for (found, expected) in found.chunks(dim).zip(expected.chunks(dim)) {
            let pairs = found.iter().zip(expected);
            let off = length(&mut pairs.map(|(a, b)| a.to_f32() - b.to_f32()));
            let whole = length(&mut expected.iter().map(|x| x.to_f32()));
            prop_assert!(off <= most * whole, "{found:?} instead of {expected:?}");
        }
    }
    Ok(())
}

/// Tokens, where their cache is cut on its way there and back, and whose they are.
#[derive(Clone, Debug)]
struct Text {
    tiny: Tiny,
    n: usize,
    out: Vec<usize>,
    back: Vec<usize>,
    seed: u64,
}

fn texts() -> impl Strategy<Value = Text> {
    let cuts = || prop::collection::vec(0usize..1000, 0..5);
    (shapes(), 1usize..200, cuts(), cuts(), 0u64..1000)
        .prop_map(|(tiny, n, out, back, seed)| Text { tiny, n, out, back, seed })
}

fn there_and_back(from: Holder, to: Holder, text: &Text) -> Result<(), TestCaseError> {
    let Text { tiny, n, out, back, seed } = text;
    let n = *n;
    let graph = tiny.graph().unwrap();
    let mut here = compile(&*from.unit(), &graph);
    let mut there = compile(&*to.unit(), &graph);
    let tokens = random_tokens(n, tiny.vocab, *seed);
    // Neighbours, so that pages of a sequence do not lie in order.
    for executor in [&mut here, &mut there] {
        fill(&mut **executor, OTHER, &tokens[..n / 3]);
    }
    fill(&mut *here, A, &tokens);
    let whole = here.export_kv(A, 0..n).unwrap();
    prop_assert_eq!(&KvBlock::from_bytes(&whole.to_bytes()).unwrap(), &whole);
    for range in pieces(n, out) {
        let block = here.export_kv(A, range.clone()).unwrap();
        there.import_kv(B, range.start, &block).unwrap();
        prop_assert_eq!(there.len(B), range.end);
    }
    let all = there.export_kv(B, 0..n).unwrap();
    check(to, &all, &whole)?;
    // Pieces are parts of the whole, wherever they begin.
    for range in pieces(n, back) {
        let part = there.export_kv(B, range.clone()).unwrap();
        for layer in 0..all.layers {
            for head in 0..all.kv_heads {
                let len = part.tokens * part.head_dim;
                let (at, of) = (part.offset(layer, head, 0), all.offset(layer, head, range.start));
                prop_assert_eq!(&part.keys[at..at + len], &all.keys[of..of + len]);
                prop_assert_eq!(&part.values[at..at + len], &all.values[of..of + len]);
            }
        }
    }
    // And home again, beside what is there.
    here.import_kv(B, 0, &all).unwrap();
    check(from, &here.export_kv(B, 0..n).unwrap(), &all)?;
    prop_assert_eq!(here.export_kv(A, 0..n).unwrap(), whole);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_out_comes_in_and_goes_out_again(from in on_cpus(), to in on_cpus(), text in texts()) {
        there_and_back(from, to, &text)?;
    }
}

proptest! {
    // Kernels are compiled for each shape, and packages lowered.
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn what_a_gpu_or_a_package_holds_does_too(
        other in elsewhere(),
        one in prop_oneof![on_cpus(), elsewhere()],
        is_first in any::<bool>(),
        text in texts(),
    ) {
        let (from, to) = if is_first { (other, one) } else { (one, other) };
        there_and_back(from, to, &text)?;
    }
}
