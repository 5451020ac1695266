//! What every compute unit must pass: one suite that compares a unit with the reference interpreter.
//!
//! Each function panics at the first disagreement and says which case it is. A unit's tests call
//! all of them, once for each of its variants.

use crate::{Batch, Executor, Graph, Limits, Logits, Rows, SeqId, Span, Unit, reference};
use baton_weights::{DType, Tensor, Weight, Weights};

pub use super::best::best;
use super::cases::{operation_cases, tiny_cases};
pub use super::texts::whole_texts;
use super::{Tiny, random_tokens, random_weights};

/// How far a unit's results may lie from the reference.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Squared error over all elements by the squared size of the expected ones.
    pub nmse: f64,
    /// Largest error of one element by the size of the largest expected one.
    pub worst: f32,
}

impl Tolerance {
    /// For units that compute in f32 and keep the KV cache in f16.
    pub const F32: Tolerance = Tolerance { nmse: 1e-6, worst: 4e-3 };
    /// For units that round activations coarsely, to 8 bits or f16.
    pub const COARSE: Tolerance = Tolerance { nmse: 2e-3, worst: 0.1 };
    /// Between two ways that one unit computes the same.
    pub const SAME: Tolerance = Tolerance { nmse: 1e-10, worst: 5e-5 };
    /// The same for units that add up in another order for few tokens than for many, so that an
    /// element of the KV cache may be rounded to the next f16.
    pub const REORDERED: Tolerance = Tolerance { nmse: 1e-8, worst: 5e-4 };

    /// Panics with `what` if `found` is too far from `expected` or is NaN.
    #[track_caller]
    pub fn check(&self, what: &str, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len(), "{what}: number of elements");
        let (mut error, mut size) = (0f64, 0f64);
        let (mut worst, mut largest, mut at) = (0f32, 0f32, 0);
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            let difference = (f - e).abs();
            assert!(!difference.is_nan(), "{what}: element {i} is {f}, not {e}");
            error += f64::from(difference) * f64::from(difference);
            size += f64::from(*e) * f64::from(*e);
            largest = largest.max(e.abs());
            if difference > worst {
                (worst, at) = (difference, i);
            }
        }
        let nmse = error / size.max(f64::MIN_POSITIVE);
        assert!(
            nmse <= self.nmse && worst <= self.worst * largest,
            "{what}: NMSE {nmse:.1e}, at worst element {at} is {} and should be {} (largest {largest})",
            found[at],
            expected[at]
        );
    }
}

pub(super) const A: SeqId = SeqId(1);
pub(super) const B: SeqId = SeqId(2);
pub(super) const C: SeqId = SeqId(70_000);

fn limits(context: usize) -> Limits {
    Limits { context, kv_tokens: 4 * context, batch_tokens: context }
}

/// Logits of all of `tokens`, fed to a fresh sequence in chunks.
fn chunked(executor: &mut dyn Executor, tokens: &[u32], chunk: usize) -> Vec<f32> {
    executor.free(A);
    let mut all = Vec::new();
    for part in tokens.chunks(chunk) {
        all.extend(forward(executor, &[(A, part, Rows::All)]).values);
    }
    all
}

fn forward(executor: &mut dyn Executor, spans: &[(SeqId, &[u32], Rows)]) -> Logits {
    let span =
        |&(seq, tokens, rows): &(SeqId, &[u32], Rows)| Span { seq, tokens: tokens.to_vec(), rows };
    let batch = Batch { spans: spans.iter().map(span).collect() };
    let logits = executor.forward(&batch).expect("the batch fits");
    assert_eq!(logits.values.len(), logits.rows.len() * logits.vocab);
    assert_eq!(logits.rows.len(), batch.wanted_rows().len());
    logits
}

pub(super) fn compile(
    unit: &dyn Unit,
    name: &str,
    graph: &Graph,
    weights: &Weights,
) -> Box<dyn Executor> {
    let compiled = unit.compile(graph, weights, limits(200));
    compiled.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Each operation by itself in all its kinds, shapes and edges.
pub fn operations(unit: &dyn Unit, tolerance: Tolerance) {
    operations_but(unit, tolerance, &[]);
}

/// As [`operations`], without those whose names begin with one of `unknown`: a unit that lacks some must
/// refuse them.
pub fn operations_but(unit: &dyn Unit, tolerance: Tolerance, unknown: &[&str]) {
    for (name, graph) in operation_cases() {
        if unknown.iter().any(|start| name.starts_with(start)) {
            let weights = random_weights(&graph, 3);
            assert!(unit.compile(&graph, &weights, limits(200)).is_err(), "{name} is not refused");
            continue;
        }
        let weights = random_weights(&graph, 3);
        let tokens = random_tokens(150, 40, 11);
        let expected = expect(&name, &graph, &weights, &tokens);
        let mut executor = compile(unit, &name, &graph, &weights);
        for chunk in [150, 1] {
            // One by one only as far as it takes to leave the first page of any size in use.
            let tokens = if chunk == 1 { &tokens[..70] } else { &tokens[..] };
            let found = chunked(&mut *executor, tokens, chunk);
            let what = format!("{name}, {} tokens by {chunk}", tokens.len());
            tolerance.check(&what, &found, &expected[..found.len()]);
        }
    }
}

fn expect(name: &str, graph: &Graph, weights: &Weights, tokens: &[u32]) -> Vec<f32> {
    let logits = reference::logits(graph, weights, tokens);
    logits.unwrap_or_else(|error| panic!("{name} in the reference: {error}")).values
}

/// Whole models; prompts cut into chunks of any size; neighbours in the batch. The last two give the
/// same as the first, to within `same`.
pub fn models(unit: &dyn Unit, tolerance: Tolerance, same: Tolerance) {
    for (name, tiny) in tiny_cases() {
        let graph = tiny.graph().expect("a sound model");
        let weights = random_weights(&graph, 4);
        let tokens = random_tokens(140, tiny.vocab, 12);
        let expected = expect(name, &graph, &weights, &tokens);
        let mut executor = compile(unit, name, &graph, &weights);
        let whole = chunked(&mut *executor, &tokens, 512);
        tolerance.check(name, &whole, &expected);
        for chunk in [1, 31, 32, 33] {
            let found = chunked(&mut *executor, &tokens, chunk);
            same.check(&format!("{name} by {chunk}"), &found, &whole);
        }
        ragged(name, &mut *executor, &tokens, &whole, same);
    }
}

/// Sequences at different positions in one batch give what each gives alone.
fn ragged(name: &str, executor: &mut dyn Executor, tokens: &[u32], alone: &[f32], same: Tolerance) {
    let vocab = alone.len() / tokens.len();
    let row = |i: usize| &alone[i * vocab..(i + 1) * vocab];
    [A, B, C].into_iter().for_each(|seq| executor.free(seq));
    let what = format!("{name}, a ragged batch");
    let mut held = [0usize; 3];
    for step in [[1, 40, 0], [1, 1, 33], [67, 1, 1], [1, 30, 1], [1, 1, 60]] {
        let mut spans = Vec::new();
        for ((seq, held), new) in [A, B, C].into_iter().zip(&mut held).zip(step) {
            if new > 0 {
                let rows = if new == 40 { Rows::None } else { Rows::Last };
                spans.push((seq, &tokens[*held..*held + new], rows));
                *held += new;
            }
        }
        let logits = forward(executor, &spans);
        for (at, (seq, _, rows)) in spans.iter().enumerate() {
            let held = held[[A, B, C].iter().position(|s| s == seq).expect("one of them")];
            assert_eq!(executor.len(*seq), held, "{what}");
            match logits.last_of(at) {
                Some(found) => same.check(&what, found, row(held - 1)),
                None => assert_eq!(*rows, Rows::None, "{what}"),
            }
        }
    }
    [A, B, C].into_iter().for_each(|seq| executor.free(seq));
}

/// Prefixes shared by copies, forgotten positions, and caches handed to and from the reference. Tokens
/// behind what is shared or handed over give the same as in one pass, to within `same`.
pub fn caches(unit: &dyn Unit, tolerance: Tolerance, same: Tolerance) {
    let tiny = Tiny::default();
    let graph = tiny.graph().expect("a sound model");
    let weights = random_weights(&graph, 5);
    let tokens = random_tokens(140, tiny.vocab, 13);
    let mut executor = compile(unit, "caches", &graph, &weights);
    let alone = chunked(&mut *executor, &tokens, 512);
    let vocab = tiny.vocab;
    let rest = |from: usize| &alone[from * vocab..];
    for shared in [1, 63, 64, 65, 100, 128, 139] {
        executor.copy(A, B, shared).expect("held");
        executor.copy(A, C, shared).expect("held");
        // One copy goes another way before the other goes on.
        forward(&mut *executor, &[(C, &[7, 8, 9], Rows::None)]);
        let found = forward(&mut *executor, &[(B, &tokens[shared..], Rows::All)]);
        let what = format!("a copy of {shared} tokens");
        same.check(&what, &found.values, rest(shared));
        executor.truncate(B, shared / 2).expect("held");
        let found = forward(&mut *executor, &[(B, &tokens[shared / 2..], Rows::All)]);
        same.check(&what, &found.values, rest(shared / 2));
    }
    executor.free(B);
    executor.free(C);
    assert_eq!((executor.len(B), executor.len(A)), (0, 140));
    let used = executor.usage();
    assert!(used.kv_tokens >= 140 && used.kv_tokens <= used.kv_capacity, "{used:?}");
    blocks(unit, [tolerance, same], &graph, &weights, &tokens, &alone);
}

fn blocks(
    unit: &dyn Unit,
    [tolerance, same]: [Tolerance; 2],
    graph: &Graph,
    weights: &Weights,
    tokens: &[u32],
    alone: &[f32],
) {
    let vocab = graph.vocab();
    let mut here = compile(unit, "blocks", graph, weights);
    let mut there = compile(&reference::Reference, "blocks", graph, weights);
    forward(&mut *here, &[(A, tokens, Rows::None)]);
    let whole = here.export_kv(A, 0..tokens.len()).expect("held");
    // Every short range at the start, and those around where pages may end.
    let starts = (0..8).chain(60..68);
    for start in starts {
        for end in start..start + 7 {
            let block = here.export_kv(A, start..end).expect("held");
            assert_eq!(block.tokens, end - start);
            for layer in 0..block.layers {
                for head in 0..block.kv_heads {
                    let n = block.tokens * block.head_dim;
                    let (from, to) =
                        (whole.offset(layer, head, start), block.offset(layer, head, 0));
                    assert_eq!(block.keys[to..to + n], whole.keys[from..from + n]);
                    assert_eq!(block.values[to..to + n], whole.values[from..from + n]);
                }
            }
        }
    }
    // The unit's cache continues in the reference, the reference's in the unit, in two pieces.
    for cut in [1, 10, 63, 64, 65, 130] {
        let pieces = [here.export_kv(A, 0..cut), here.export_kv(A, cut..139)];
        let (mut at, what) = (0, format!("a cache handed over in pieces cut at {cut}"));
        there.free(B);
        here.free(B);
        for piece in pieces.map(|piece| piece.expect("held")) {
            there.import_kv(B, at, &piece).expect("fits");
            let back = there.export_kv(B, at..at + piece.tokens).expect("held");
            assert_eq!(back, piece, "{what}: to the reference and back");
            here.import_kv(B, at, &back).expect("fits");
            at += piece.tokens;
        }
        assert_eq!(here.export_kv(B, 0..139).expect("held"), here.export_kv(A, 0..139).unwrap());
        let last = &tokens[139..];
        let found = forward(&mut *here, &[(B, last, Rows::Last)]);
        same.check(&what, &found.values, &alone[139 * vocab..]);
        let found = forward(&mut *there, &[(B, last, Rows::Last)]);
        tolerance.check(&what, &found.values, &alone[139 * vocab..]);
    }
}

/// Requests that cannot be met are errors, and change nothing: what comes next is the same, to within
/// `same`.
pub fn failures(unit: &dyn Unit, same: Tolerance) {
    let tiny = Tiny::default();
    let graph = tiny.graph().expect("a sound model");
    let weights = random_weights(&graph, 6);
    let limits = Limits { context: 100, kv_tokens: 128, batch_tokens: 90 };
    let mut executor = unit.compile(&graph, &weights, limits).expect("a sound model");
    let tokens = random_tokens(100, tiny.vocab, 14);
    let expected = forward(&mut *executor, &[(A, &tokens[..64], Rows::Last)]);
    let before = executor.export_kv(A, 0..64).expect("held");
    let block = executor.export_kv(A, 0..50).expect("held");
    let foreign = crate::KvBlock { fingerprint: [9; 32], ..block.clone() };
    let span = |seq, n: usize, token: u32| Span { seq, tokens: vec![token; n], rows: Rows::Last };
    let batches: [(&str, Vec<Span>); 7] = [
        ("an empty span", vec![span(A, 1, 1), span(B, 0, 1)]),
        ("a sequence twice", vec![span(A, 1, 1), span(A, 1, 1)]),
        ("a token too large", vec![span(B, 2, 1), span(A, 2, 97)]),
        ("the largest token", vec![span(A, 1, u32::MAX)]),
        ("a batch too large", vec![span(B, 91, 1)]),
        ("a context too long", vec![span(B, 1, 1), span(A, 37, 1)]),
        ("more than there is storage for", vec![span(B, 65, 1), span(A, 1, 1)]),
    ];
    for (what, spans) in batches {
        assert!(executor.forward(&Batch { spans }).is_err(), "{what}");
        assert_eq!((executor.len(A), executor.len(B)), (64, 0), "{what}");
    }
    let range = std::ops::Range { start: 3, end: 2 };
    assert!(executor.export_kv(A, range).is_err() && executor.export_kv(A, 0..65).is_err());
    assert!(executor.export_kv(A, 0..usize::MAX).is_err());
    assert!(executor.truncate(A, 65).is_err() && executor.truncate(B, 1).is_err());
    assert!(executor.copy(A, B, 65).is_err() && executor.copy(A, A, 1).is_err());
    assert!(
        executor.import_kv(A, 63, &block).is_err() && executor.import_kv(B, 1, &block).is_err()
    );
    assert!(executor.import_kv(A, 64, &block).is_err(), "longer than the context");
    assert!(executor.import_kv(B, 0, &foreign).is_err());
    executor.free(B);
    assert_eq!((executor.len(A), executor.len(B)), (64, 0));
    assert_eq!(executor.export_kv(A, 0..64).expect("held"), before);
    // And all goes on as before: the last token again, then no rows at all.
    executor.truncate(A, 63).expect("held");
    let found = forward(&mut *executor, &[(A, &tokens[63..64], Rows::Last)]);
    same.check("after errors", &found.values, &expected.values);
    assert!(forward(&mut *executor, &[(A, &tokens[64..66], Rows::None)]).values.is_empty());
    assert!(executor.forward(&Batch::default()).expect("nothing to do").values.is_empty());
    missing_weights(unit, &graph);
}

fn missing_weights(unit: &dyn Unit, graph: &Graph) {
    let limits = limits(100);
    assert!(unit.compile(graph, &Weights::new(), limits).is_err(), "no weights");
    let mut weights = random_weights(graph, 6);
    weights.insert("norm", Weight::One(Tensor::from_f32("norm", &[3], &[1.0; 3])));
    assert!(unit.compile(graph, &weights, limits).is_err(), "a weight of another shape");
}

/// Activations that are infinite or NaN end in results, whatever they are, and stay in their
/// sequence.
pub fn nonsense(unit: &dyn Unit) {
    let tiny = Tiny { softcap: Some(5.0), sinks: true, ..Tiny::default() };
    let graph = tiny.graph().expect("a sound model");
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45] {
        let mut weights = random_weights(&graph, 7);
        let shape = [tiny.vocab, tiny.hidden];
        let mut table = weights.tensor("embed").expect("it is there").to_f32();
        table[5 * tiny.hidden + 3] = value;
        weights.insert("embed", Weight::One(Tensor::from_f32("embed", &shape, &table)));
        let mut executor = compile(unit, "nonsense", &graph, &weights);
        let spans = [(A, &[1, 2, 5, 3][..], Rows::Last), (B, &[1, 2, 6], Rows::Last)];
        let found = forward(&mut *executor, &spans);
        let alone = forward(&mut *executor, &[(C, &[1, 2, 6], Rows::Last)]);
        // The other sequence does not see it, but for the head's row of that token.
        for i in (0..tiny.vocab).filter(|&i| i != 5) {
            let difference = (found.row(1)[i] - alone.row(0)[i]).abs();
            assert!(difference < 1e-3, "{value} next door: logit {i} off by {difference}");
        }
    }
}

/// A model and mixtures of experts whose matrices are stored in each of `dtypes`, which the weights
/// crate can encode. In chunks they give the same as whole, to within `same`.
pub fn quantized(unit: &dyn Unit, dtypes: &[DType], tolerance: Tolerance, same: Tolerance) {
    let tiny = Tiny { layers: 2, ffn: 160, ..Tiny::default() };
    let model = ("a model".to_owned(), tiny.graph().expect("a sound model"));
    let mixtures = operation_cases().into_iter().filter(|(name, _)| name.starts_with("moe"));
    for (case, graph) in std::iter::once(model).chain(mixtures) {
        quantized_case(unit, dtypes, [tolerance, same], &case, &graph);
    }
}

fn quantized_case(
    unit: &dyn Unit,
    dtypes: &[DType],
    [tolerance, same]: [Tolerance; 2],
    case: &str,
    graph: &Graph,
) {
    for &dtype in dtypes {
        let plain = random_weights(graph, 8);
        let mut weights = Weights::new();
        for (name, weight) in plain.iter() {
            let Weight::One(tensor) = weight else { unreachable!("made above") };
            // Vectors stay as they are, and a router that decides otherwise computes something else.
            let plain = tensor.shape().len() == 1 || name == "router" || name.ends_with("_b");
            let dtype = if plain { DType::F32 } else { dtype };
            let tensor = Tensor::quantize(name, dtype, tensor.shape(), &tensor.to_f32());
            weights.insert(name, Weight::One(tensor.expect("there is an encoder")));
        }
        let name = format!("{case} in {dtype}");
        let tokens = random_tokens(140, 40, 15);
        let expected = expect(&name, graph, &weights, &tokens);
        let mut executor = compile(unit, &name, graph, &weights);
        let whole = chunked(&mut *executor, &tokens, 512);
        tolerance.check(&name, &whole, &expected);
        for chunk in [1, 33] {
            let found = chunked(&mut *executor, &tokens, chunk);
            same.check(&format!("{name} by {chunk}"), &found, &whole);
        }
    }
}
