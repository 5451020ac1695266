//! Conformance of graphs that read whole texts: attention in both directions, pooling, learned
//! positions.

use crate::{
    Activation, Attention, Batch, ExecError, Executor, Graph, GraphBuilder, GraphError, Limits,
    Lookup, Op, Pooling, RopeLayout, Rows, Scope, SeqId, Span, Unit, ValueId, reference,
};
use baton_weights::Weights;

use super::cases::rope;
use super::conformance::Tolerance;
use super::{random_tokens, random_weights};

/// Tokens in the vocabulary.
const VOCAB: usize = 50;
/// Features of the hidden state of an attention's graph.
const HIDDEN: usize = 24;
/// Lengths of the texts of a batch: shorter than, as long as, and longer than pages and windows.
const TEXTS: [usize; 6] = [1, 40, 64, 65, 130, 7];

const LIMITS: Limits = Limits { context: 150, kv_tokens: 4096, batch_tokens: 400 };

/// What attentions differ in.
#[derive(Clone, Copy, Debug)]
struct Kind {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
}

/// Attention in both directions and pooling, each text alone and several in a batch; and that a text
/// cannot be given in parts.
pub fn whole_texts(unit: &dyn Unit, tolerance: Tolerance) {
    for (name, graph) in cases() {
        let weights = random_weights(&graph, 21);
        let mut executor = unit
            .compile(&graph, &weights, LIMITS)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let texts: Vec<Vec<u32>> =
            TEXTS.iter().zip(31..).map(|(&n, seed)| random_tokens(n, VOCAB, seed)).collect();
        let expected: Vec<Vec<f32>> =
            texts.iter().map(|text| alone(&name, &graph, &weights, text)).collect();
        // A pooled row is the same whichever of the text's rows are asked for.
        let pooled = graph.ty(graph.output()).rows() == crate::Dim::Rows;
        let rows = if pooled { Rows::Last } else { Rows::All };
        let spans = texts.iter().zip(0..).map(|(text, seq)| span(seq, text, rows));
        let batch = Batch { spans: spans.collect() };
        let found = executor.forward(&batch).unwrap_or_else(|error| panic!("{name}: {error}"));
        tolerance.check(&format!("{name}, all texts"), &found.values, &expected.concat());
        for (text, expected) in texts.iter().zip(&expected) {
            executor.free(SeqId(0));
            let batch = Batch { spans: vec![span(0, text, rows)] };
            let found = executor.forward(&batch).unwrap_or_else(|e| panic!("{name}: {e}"));
            let what = format!("{name}, {} tokens", text.len());
            tolerance.check(&what, &found.values, expected);
        }
        if graph.needs_whole_texts() {
            parts(&name, &mut *executor);
        }
    }
    too_few_positions(unit);
}

fn span(seq: u32, text: &[u32], rows: Rows) -> Span {
    Span { seq: SeqId(seq), tokens: text.to_vec(), rows }
}

/// What the reference makes of one text.
fn alone(name: &str, graph: &Graph, weights: &Weights, text: &[u32]) -> Vec<f32> {
    let pooled = graph.ty(graph.output()).rows() == crate::Dim::Rows;
    let rows = if pooled { Rows::Last } else { Rows::All };
    let run = || {
        let mut reference = reference::Interpreter::new(graph, weights, LIMITS)?;
        reference.forward(&Batch { spans: vec![span(0, text, rows)] })
    };
    run().unwrap_or_else(|error| panic!("{name} in the reference: {error}")).values
}

fn parts(name: &str, executor: &mut dyn Executor) {
    (0..TEXTS.len() as u32).for_each(|seq| executor.free(SeqId(seq)));
    executor.forward(&Batch { spans: vec![span(1, &[1, 2, 3], Rows::Last)] }).expect("it fits");
    let batch = Batch { spans: vec![span(0, &[1], Rows::Last), span(1, &[4], Rows::Last)] };
    let error = executor.forward(&batch).expect_err("the second span continues a text");
    assert!(matches!(error, ExecError::PartOfText { seq: SeqId(1), len: 3 }), "{name}: {error}");
    assert_eq!((executor.len(SeqId(0)), executor.len(SeqId(1))), (0, 3), "{name}");
    executor.truncate(SeqId(1), 0).expect("held");
    executor.forward(&batch).expect("both are whole now");
    assert!(executor.export_kv(SeqId(1), 0..1).is_err(), "{name}: there is no cache");
}

fn too_few_positions(unit: &dyn Unit) {
    let graph = encoder(100).expect("a sound model");
    let weights = random_weights(&graph, 1);
    assert!(unit.compile(&graph, &weights, LIMITS).is_err(), "150 tokens at 100 positions");
    assert!(unit.compile(&graph, &weights, Limits { context: 100, ..LIMITS }).is_ok());
}

fn cases() -> Vec<(String, Graph)> {
    let plain =
        Kind { heads: 2, kv_heads: 1, head_dim: 16, window: None, softcap: None, sinks: false };
    let mut kinds = vec![
        plain,
        Kind { softcap: Some(0.7), ..plain },
        Kind { sinks: true, ..plain },
        Kind { heads: 6, kv_heads: 2, head_dim: 20, window: Some(7), ..plain },
        Kind { heads: 8, kv_heads: 1, head_dim: 128, window: Some(20), ..plain },
    ];
    kinds.extend([1, 2, 63, 64, 65, 1000].map(|n| Kind { window: Some(n), kv_heads: 2, ..plain }));
    kinds.extend([32, 40, 64, 96].map(|head_dim| Kind {
        head_dim,
        heads: 3,
        kv_heads: 3,
        ..plain
    }));
    let mut cases = Vec::new();
    let mut add = |name: String, graph: Result<Graph, GraphError>| match graph {
        Ok(graph) => cases.push((name, graph)),
        Err(error) => panic!("{name}: {error}"),
    };
    for kind in kinds {
        add(format!("both directions, {kind:?}"), attention(kind));
    }
    for how in [Pooling::Mean, Pooling::First, Pooling::Last] {
        add(format!("pool {how:?}"), pool(how));
    }
    add("an encoder".into(), encoder(200));
    cases
}

fn embedded(b: &mut GraphBuilder) -> Result<ValueId, GraphError> {
    let table = b.weight("table", &[VOCAB, HIDDEN]);
    b.embedding("embed", table, 1.0)
}

fn attention(kind: Kind) -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("attention");
    let x = embedded(&mut b)?;
    let output = attend(&mut b, x, kind, true)?;
    b.finish(output)
}

fn attend(
    b: &mut GraphBuilder,
    x: ValueId,
    kind: Kind,
    rotate: bool,
) -> Result<ValueId, GraphError> {
    let Kind { heads, kv_heads, head_dim, window, softcap, sinks } = kind;
    let width = b.ty(x).features();
    let mut part = |name: &str, heads: usize| {
        let weight = b.weight(name, &[heads * head_dim, width]);
        let bias = Some(b.weight(&format!("{name}_b"), &[heads * head_dim]));
        b.linear(name, x, weight, bias)
    };
    let (mut q, mut k, v) = (part("q", heads)?, part("k", kv_heads)?, part("v", kv_heads)?);
    if rotate {
        let rope = rope(head_dim, head_dim / 4, RopeLayout::Half, 1.0);
        (q, k) = (b.rope("q_rope", q, rope.clone())?, b.rope("k_rope", k, rope)?);
    }
    let attention = Attention {
        scope: Scope::Text,
        heads,
        kv_heads,
        head_dim,
        scale: 2.0 * (head_dim as f32).powf(-0.5),
        window,
        softcap,
        sinks: sinks.then(|| b.weight("sinks", &[heads])),
    };
    b.attention("attention", [q, k, v], attention)
}

/// Pooling of what causal embeddings of single tokens are, through a product and a norm.
fn pool(how: Pooling) -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("pool");
    let x = embedded(&mut b)?;
    let pooled = b.pool("pool", x, how)?;
    let weight = b.weight("dense", &[33, HIDDEN]);
    let dense = b.linear("dense", pooled, weight, None)?;
    let unit = b.normalize("unit", dense)?;
    b.finish(unit)
}

/// One layer as BERT has it.
fn encoder(positions: usize) -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("encoder");
    let x = embedded(&mut b)?;
    let norm = |b: &mut GraphBuilder, name: &str, x: ValueId| {
        let (weight, bias) = (b.weight(name, &[HIDDEN]), b.weight(&format!("{name}_b"), &[HIDDEN]));
        b.layer_norm(name, x, weight, Some(bias), 1e-6)
    };
    let linear = |b: &mut GraphBuilder, name: &str, x: ValueId, out: usize| {
        let weight = b.weight(name, &[out, b.ty(x).features()]);
        let bias = b.weight(&format!("{name}_b"), &[out]);
        b.linear(name, x, weight, Some(bias))
    };
    let table = b.weight("positions", &[positions, HIDDEN]);
    let position = b.lookup("position", table, Lookup::Position)?;
    let table = b.weight("types", &[2, HIDDEN]);
    let segment = b.lookup("segment", table, Lookup::Row(0))?;
    let x = b.add("word_position", x, position)?;
    let x = b.add("word_position_segment", x, segment)?;
    let x = norm(&mut b, "embed_norm", x)?;
    let kind =
        Kind { heads: 3, kv_heads: 3, head_dim: 8, window: None, softcap: None, sinks: false };
    let y = attend(&mut b, x, kind, false)?;
    let y = linear(&mut b, "out", y, HIDDEN)?;
    let x = b.add("attention_residual", x, y)?;
    let x = norm(&mut b, "attention_norm", x)?;
    let y = linear(&mut b, "up", x, 70)?;
    let y = b.push("gelu", Op::Activation(Activation::Gelu), &[y])?;
    let y = linear(&mut b, "down", y, HIDDEN)?;
    let x = b.add("residual", x, y)?;
    let x = norm(&mut b, "norm", x)?;
    let pooled = b.pool("pool", x, Pooling::Mean)?;
    let unit = b.normalize("unit", pooled)?;
    b.finish(unit)
}
