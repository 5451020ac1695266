use super::*;
use crate::reference::logits;
use crate::testing::{Tiny, max_difference, random_tokens, random_weights};
use crate::{Batch, Dim, Executor, Limits, Op, Rows, SeqId};

fn count(graph: &Graph, name: &str) -> usize {
    graph.nodes().iter().filter(|n| n.op.name() == name).count()
}

#[test]
fn fusing_stacks_products_and_keeps_the_answer() {
    let plain = Tiny::default().graph().unwrap();
    let weights = random_weights(&plain, 1);
    let tokens = random_tokens(20, plain.vocab(), 2);
    let expected = logits(&plain, &weights, &tokens).unwrap();
    let mut fused = plain.clone();
    run(&mut fused, &["output_rows"]).unwrap();
    assert_eq!(count(&plain, "linear"), 3 * 7 + 1);
    assert_eq!(count(&fused, "linear"), 3 * 4 + 1);
    assert_eq!(count(&fused, "slice"), 3 * 3);
    let got = logits(&fused, &weights, &tokens).unwrap();
    assert_eq!(got.rows, expected.rows);
    assert!(max_difference(&got.values, &expected.values) < 1e-5);
}

#[test]
fn output_rows_cuts_right_behind_the_last_attention() {
    let mut graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let tokens = random_tokens(20, graph.vocab(), 2);
    let expected = logits(&graph, &weights, &tokens).unwrap();
    run(&mut graph, &[]).unwrap();
    // The attention's result and the residual stream.
    assert_eq!(count(&graph, "select_rows"), 2);
    assert_eq!(graph.ty(graph.output()).rows(), Dim::Rows);
    let last = graph.nodes().iter().rposition(|n| matches!(n.op, Op::Attention(_))).unwrap();
    let behind = &graph.nodes()[last + 1..];
    assert!(behind.iter().all(|n| graph.ty(n.output).rows() == Dim::Rows));

    let limits = Limits { context: 20, kv_tokens: 20, batch_tokens: 20 };
    let mut executor = crate::reference::Interpreter::new(&graph, &weights, limits).unwrap();
    let got = executor.forward(&Batch::one(SeqId(0), tokens, Rows::Last)).unwrap();
    assert_eq!(got.rows.len(), 1);
    assert!(max_difference(got.row(0), expected.row(19)) < 1e-5);
}

#[test]
fn every_pass_can_be_switched_off_by_name() {
    let plain = Tiny::default().graph().unwrap();
    for pass in ALL {
        let (mut without, mut only) = (plain.clone(), plain.clone());
        run(&mut without, &[pass.name]).unwrap();
        let others: Vec<&str> = ALL.iter().map(|p| p.name).filter(|n| *n != pass.name).collect();
        run(&mut only, &others).unwrap();
        assert_ne!(only, plain, "{} does something", pass.name);
        assert_ne!(without, only);
    }
    let mut none = plain.clone();
    let all: Vec<&str> = ALL.iter().map(|p| p.name).collect();
    run(&mut none, &all).unwrap();
    assert_eq!(none, plain);
    let error = run(&mut none, &["fuse_everything"]).unwrap_err().to_string();
    assert!(error.contains("fuse_everything") && error.contains("fuse_qkv"), "{error}");
}

#[test]
fn dumps_name_every_node() {
    let mut graph = Tiny::default().graph().unwrap();
    run(&mut graph, &[]).unwrap();
    let (text, dot) = (graph.to_string(), graph.to_dot());
    for node in graph.nodes() {
        assert!(text.contains(&format!("  {}: real[", node.name)), "{text}");
        assert!(dot.contains(&format!("\"{}\" [label=", node.name)), "{dot}");
    }
    assert!(text.contains("1.qkv: real[T, 128] = linear(1.attn_norm) {1.q [64, 64]; 1.k [32, 64]"));
    assert!(dot.starts_with("digraph \"tiny\" {") && dot.ends_with("}\n"));
}
