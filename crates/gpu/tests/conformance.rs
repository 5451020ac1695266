//! The suite that every unit must pass, on the machine's adapter, with all that it offers and with
//! the kernels that need nothing of it.

use std::sync::OnceLock;

use baton_gpu::{GpuUnit, Options};
use baton_graph::testing::conformance::{self, Tolerance};
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{
    Batch, GraphBuilder, KvType, Limits, RmsNorm, Rows, SeqId, Span, Unit, reference,
};
use baton_weights::DType;

/// The machine's GPU, opened once for each kind of kernels.
fn units() -> &'static [GpuUnit; 2] {
    static UNITS: OnceLock<[GpuUnit; 2]> = OnceLock::new();
    UNITS.get_or_init(|| {
        [false, true].map(|plain| {
            let options = Options { plain, ..Options::from_env() };
            GpuUnit::open(&options).unwrap_or_else(|error| panic!("{error}"))
        })
    })
}

/// Cooperative matrices take the activations of many tokens in half precision.
const HALVES: Tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };

/// How far results may lie from the reference.
fn exact(gpu: &GpuUnit) -> Tolerance {
    match gpu.gpu().features().cooperative {
        Some(_) => HALVES,
        None => Tolerance::F32,
    }
}

/// How far ways may differ that compute the same.
fn same(gpu: &GpuUnit) -> Tolerance {
    match gpu.gpu().features().cooperative {
        Some(_) => HALVES,
        None => Tolerance::REORDERED,
    }
}

#[test]
fn operations() {
    units().iter().for_each(|gpu| conformance::operations(gpu, exact(gpu)));
}

#[test]
fn models() {
    units().iter().for_each(|gpu| conformance::models(gpu, exact(gpu), same(gpu)));
}

#[test]
fn whole_texts() {
    units().iter().for_each(|gpu| conformance::whole_texts(gpu, exact(gpu)));
}

#[test]
fn caches() {
    units().iter().for_each(|gpu| conformance::caches(gpu, exact(gpu), same(gpu)));
}

#[test]
fn best_tokens() {
    units().iter().for_each(|gpu| conformance::best(gpu));
}

#[test]
fn failures() {
    units().iter().for_each(|gpu| conformance::failures(gpu, same(gpu)));
}

#[test]
fn nonsense() {
    units().iter().for_each(|gpu| conformance::nonsense(gpu));
}

/// Between ways of computing with quantized weights: activations of few tokens are rounded to 8 bits,
/// those of many are not.
const ROUNDED: Tolerance = Tolerance { nmse: 1e-3, worst: 0.1 };

#[test]
fn quantized_weights() {
    let [gpu, plain] = units();
    let blocks = [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1];
    conformance::quantized(gpu, &blocks, ROUNDED, ROUNDED);
    // Every type has its own test with the products.
    conformance::quantized(plain, &[DType::Q4_1], ROUNDED, ROUNDED);
    for gpu in [gpu, plain] {
        conformance::quantized(gpu, &[DType::BF16], exact(gpu), same(gpu));
    }
}

/// Batches that are cut into several passes, in the midst of sequences.
#[test]
fn long_batches_take_several_passes() {
    for gpu in units() {
        let gpu = gpu.clone().with_pass_tokens(29);
        conformance::models(&gpu, exact(&gpu), same(&gpu));
    }
}

/// A past of so many pages that decoding splits it into parts of several pages, and layers that see a
/// window of it.
#[test]
fn a_long_past_is_what_it_is_in_the_reference() {
    let tiny = Tiny { window: Some(300), layers: 2, sinks: true, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 1);
    let tokens = random_tokens(4500, tiny.vocab, 2);
    let limits = Limits { context: 4600, kv_tokens: 4600, batch_tokens: 1024 };
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    for gpu in units() {
        let mut executor = gpu.compile(&graph, &weights, limits).unwrap();
        for end in [1024, 2048, 3000, 4000, 4490, 4495, 4499, 4500] {
            let start = executor.len(SeqId(0));
            let batch = Batch::one(SeqId(0), tokens[start..end].to_vec(), Rows::Last);
            let logits = executor.forward(&batch).unwrap();
            exact(gpu).check(&format!("{end} tokens"), logits.row(0), expected.row(end - 1));
        }
    }
}

/// So many sequences at once that workgroups of decoding take several heads each, and fewer.
#[test]
fn each_of_many_sequences_is_what_it_is_in_the_reference() {
    let tiny = Tiny { heads: 8, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context: 64, kv_tokens: 56 * 64, batch_tokens: 300 };
    let texts: Vec<Vec<u32>> =
        (0..56).map(|seq| random_tokens(3 + seq % 5, tiny.vocab, seq as u64)).collect();
    let span = |seq: usize, tokens: &[u32], rows| Span {
        seq: SeqId(seq as u32),
        tokens: tokens.to_vec(),
        rows,
    };
    for gpu in units() {
        let mut executor = gpu.compile(&graph, &weights, limits).unwrap();
        let prompt = |(seq, text): (usize, &Vec<u32>)| span(seq, &text[..2], Rows::None);
        executor.forward(&Batch { spans: texts.iter().enumerate().map(prompt).collect() }).unwrap();
        for together in [16, 56] {
            let at = |seq: usize| if together == 16 || seq >= 16 { 2 } else { 3 };
            let next = |seq| span(seq, &texts[seq][at(seq)..=at(seq)], Rows::Last);
            // The first ones are one token ahead then, unless their text has ended.
            let sequences: Vec<usize> =
                (0..together).filter(|&seq| at(seq) < texts[seq].len()).collect();
            let spans = sequences.iter().map(|&seq| next(seq)).collect();
            let logits = executor.forward(&Batch { spans }).unwrap();
            for (row, &seq) in sequences.iter().enumerate() {
                let expected = reference::logits(&graph, &weights, &texts[seq]).unwrap();
                let context = format!("sequence {seq} of {together}");
                exact(gpu).check(&context, logits.row(row), expected.row(at(seq)));
            }
        }
    }
}

#[test]
fn impossible_limits_are_errors() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let gpu = &units()[0];
    let fine = Limits { context: 10, kv_tokens: 10, batch_tokens: 10 };
    for limits in [
        Limits { context: 0, ..fine },
        Limits { kv_tokens: 0, ..fine },
        Limits { batch_tokens: 0, ..fine },
        Limits { batch_tokens: usize::MAX, ..fine },
        Limits { kv_tokens: usize::MAX, ..fine },
        // More than can be bound, or than there is memory for.
        Limits { kv_tokens: 1 << 26, ..fine },
    ] {
        let error = gpu.compile(&graph, &weights, limits).err();
        assert!(error.is_some_and(|error| error.to_string().len() > 20), "{limits:?}");
    }
    assert!(gpu.compile(&graph, &weights, fine).is_ok(), "nothing is broken by what failed");
    let unknown = gpu.clone().without_passes(&["no such pass"]);
    assert!(unknown.compile(&graph, &weights, fine).is_err());
}

#[test]
fn usage_tells_what_is_held() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context: 1000, kv_tokens: 1000, batch_tokens: 100 };
    let mut executor = units()[0].compile(&graph, &weights, limits).unwrap();
    let empty = executor.usage();
    assert_eq!((empty.kv_tokens, empty.kv_capacity), (0, 1024));
    assert!(empty.kv_bytes >= 1024 * graph.kv_bytes_per_token(KvType::F16), "{empty:?}");
    assert!(empty.scratch_bytes > 0 && empty.weight_bytes > 0, "{empty:?}");
    executor.forward(&Batch::one(SeqId(0), vec![1; 65], Rows::Last)).unwrap();
    assert_eq!(executor.usage().kv_tokens, 128);
    executor.free(SeqId(0));
    assert_eq!(executor.usage(), empty);
}

/// What happens when the device goes away in the midst of a conversation.
#[test]
fn a_device_that_is_gone_is_an_error_and_nothing_was_appended() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context: 100, kv_tokens: 100, batch_tokens: 100 };
    let gpu = GpuUnit::open(&Options::from_env()).unwrap();
    let mut executor = gpu.compile(&graph, &weights, limits).unwrap();
    executor.forward(&Batch::one(SeqId(0), vec![1; 9], Rows::Last)).unwrap();
    gpu.gpu().device().destroy();
    for _ in 0..2 {
        let error = executor.forward(&Batch::one(SeqId(0), vec![2], Rows::Last)).unwrap_err();
        assert!(error.to_string().contains("GPU"), "{error}");
        assert_eq!(executor.len(SeqId(0)), 9);
    }
    assert!(executor.export_kv(SeqId(0), 0..9).is_err());
    assert!(gpu.compile(&graph, &weights, limits).is_err());
}

/// Runs of features that take more invocations than the suite's, and more than one turn.
#[test]
fn wide_rows_are_normalised() {
    for width in [1030, 2500, 5000] {
        let mut b = GraphBuilder::new("wide");
        let table = b.weight("table", &[50, width]);
        let x = b.embedding("embed", table, 30.0).unwrap();
        let (gain, bias) = (b.weight("gain", &[width]), b.weight("bias", &[width]));
        let x = b.layer_norm("layer_norm", x, gain, Some(bias), 1e-5).unwrap();
        let weight = Some(b.weight("rms_gain", &[width]));
        let norm = RmsNorm { weight, weight_offset: 1.0, eps: 1e-5, group: width };
        let x = b.rms_norm("rms_norm", x, norm).unwrap();
        let graph = b.finish(x).unwrap();
        let weights = random_weights(&graph, 1);
        let tokens = random_tokens(5, 50, 2);
        let expected = reference::logits(&graph, &weights, &tokens).unwrap();
        let limits = Limits { context: 5, kv_tokens: 5, batch_tokens: 5 };
        let mut executor = units()[1].compile(&graph, &weights, limits).unwrap();
        let found = executor.forward(&Batch::one(SeqId(0), tokens, Rows::All)).unwrap();
        Tolerance::F32.check(&format!("rows of {width}"), &found.values, &expected.values);
    }
}
