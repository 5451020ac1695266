use super::*;
use crate::testing::{Tiny, max_difference, random_tokens, random_weights};
use crate::{GraphBuilder, Span};

const A: SeqId = SeqId(3);
const B: SeqId = SeqId(4);

fn executor(tiny: &Tiny, limits: Limits) -> (Interpreter, Graph, Weights) {
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 9);
    (Interpreter::new(&graph, &weights, limits).unwrap(), graph, weights)
}

const LIMITS: Limits = Limits { context: 64, kv_tokens: 128, batch_tokens: 64 };

#[test]
fn a_linear_layer_is_a_dot_product_per_output() {
    let mut b = GraphBuilder::new("linear");
    let table = b.weight("table", &[2, 3]);
    let weight = b.weight("weight", &[2, 3]);
    let bias = b.weight("bias", &[2]);
    let x = b.embedding("x", table, 2.0).unwrap();
    let y = b.linear("y", x, weight, Some(bias)).unwrap();
    let graph = b.finish(y).unwrap();
    let mut weights = Weights::new();
    let mut insert = |name: &str, shape: &[usize], values: &[f32]| {
        let tensor = baton_weights::Tensor::from_f32(name, shape, values);
        weights.insert(name, baton_weights::Weight::One(tensor));
    };
    insert("table", &[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 0.0]);
    insert("weight", &[2, 3], &[1.0, 10.0, 100.0, -1.0, 0.0, 1.0]);
    insert("bias", &[2], &[0.5, -0.5]);
    let got = logits(&graph, &weights, &[0, 1]).unwrap();
    assert_eq!(got.values, [642.5, 3.5, 8.5, 1.5]);
}

#[test]
fn chunks_and_neighbours_do_not_change_the_answer() {
    for softcap in [None, Some(2.0)] {
        let tiny = Tiny { softcap, sinks: softcap.is_some(), ..Tiny::default() };
        let (mut executor, graph, weights) = executor(&tiny, LIMITS);
        let tokens = random_tokens(40, tiny.vocab, 5);
        let expected = logits(&graph, &weights, &tokens).unwrap();
        for chunk in [1, 7, 40] {
            executor.free(A);
            executor.free(B);
            let mut got = Vec::new();
            for part in tokens.chunks(chunk) {
                let other = Span { seq: B, tokens: vec![5], rows: Rows::Last };
                let span = Span { seq: A, tokens: part.to_vec(), rows: Rows::All };
                let out = executor.forward(&Batch { spans: vec![other, span] }).unwrap();
                got.extend_from_slice(&out.values[out.vocab..]);
            }
            assert!(max_difference(&got, &expected.values) < 1e-5, "chunks of {chunk}");
        }
    }
}

#[test]
fn exported_caches_continue_the_sequence_elsewhere() {
    let tiny = Tiny::default();
    let (mut executor, graph, weights) = executor(&tiny, LIMITS);
    let tokens = random_tokens(30, tiny.vocab, 6);
    let expected = logits(&graph, &weights, &tokens).unwrap();
    executor.forward(&Batch::one(A, tokens[..20].to_vec(), Rows::None)).unwrap();
    let parts = [executor.export_kv(A, 0..13).unwrap(), executor.export_kv(A, 13..20).unwrap()];
    executor.import_kv(B, 0, &parts[0]).unwrap();
    assert!(executor.import_kv(B, 12, &parts[1]).is_err(), "not at the end");
    executor.import_kv(B, 13, &parts[1]).unwrap();
    let got = executor.forward(&Batch::one(B, tokens[20..].to_vec(), Rows::Last)).unwrap();
    assert!(max_difference(got.row(0), expected.row(29)) < 5e-3, "f16 keys and values");
    let mut foreign = parts[0].clone();
    foreign.fingerprint[0] ^= 1;
    assert!(executor.import_kv(SeqId(9), 0, &foreign).is_err());
}

#[test]
fn copies_and_truncations_share_a_prefix() {
    let tiny = Tiny::default();
    let (mut executor, graph, weights) = executor(&tiny, LIMITS);
    let tokens = random_tokens(30, tiny.vocab, 6);
    let expected = logits(&graph, &weights, &tokens).unwrap();
    executor.forward(&Batch::one(A, tokens[..25].to_vec(), Rows::None)).unwrap();
    executor.copy(A, B, 11).unwrap();
    executor.truncate(A, 2).unwrap();
    let got = executor.forward(&Batch::one(B, tokens[11..].to_vec(), Rows::Last)).unwrap();
    assert!(max_difference(got.row(0), expected.row(29)) < 1e-5);
    assert_eq!((executor.len(A), executor.len(B), executor.usage().kv_tokens), (2, 30, 32));
}

#[test]
fn a_copy_of_nothing_is_nothing() {
    let (mut executor, ..) = executor(&Tiny::default(), LIMITS);
    executor.forward(&Batch::one(B, vec![1; 3], Rows::None)).unwrap();
    executor.copy(A, B, 0).unwrap();
    assert_eq!(executor.len(B), 0);
    executor.forward(&Batch::one(B, vec![1; 3], Rows::Last)).unwrap();
    assert_eq!(executor.len(B), 3);
}

#[test]
fn impossible_batches_are_errors_that_change_nothing() {
    let limits = Limits { context: 8, kv_tokens: 10, batch_tokens: 6 };
    let (mut executor, ..) = executor(&Tiny::default(), limits);
    let mut forward = |seq, n| executor.forward(&Batch::one(seq, vec![1; n], Rows::Last));
    forward(A, 6).unwrap();
    assert!(matches!(forward(A, 3), Err(ExecError::ContextFull { len: 6, new: 3, .. })));
    assert!(matches!(forward(B, 5), Err(ExecError::OutOfPages { needed: 1, free: 4, .. })));
    assert!(matches!(forward(B, 7), Err(ExecError::BatchTooLarge { .. })));
    assert!(matches!(forward(B, 0), Err(ExecError::Invalid(_))));
    let six = executor.export_kv(A, 0..6).unwrap();
    assert!(matches!(executor.import_kv(B, 0, &six), Err(ExecError::OutOfPages { .. })));
    let unknown = executor.forward(&Batch::one(A, vec![97], Rows::Last));
    assert!(matches!(unknown, Err(ExecError::UnknownToken { token: 97, vocab: 97 })));
    assert_eq!((executor.len(A), executor.len(B)), (6, 0));
}

#[test]
fn an_observer_sees_each_node_once_with_its_operands() {
    let tiny = Tiny::default();
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 2);
    let tokens = random_tokens(9, tiny.vocab, 6);
    let (mut names, mut last) = (Vec::new(), Vec::new());
    let mut observe = |node: &Node, operands: &[&[f32]], result: &[f32]| {
        names.push(node.name.clone());
        if node.op == Op::Add {
            let sums = operands[0].iter().zip(operands[1]).map(|(a, b)| a + b);
            assert!(sums.eq(result.iter().copied()), "{}", node.name);
        }
        last = result.to_vec();
    };
    let seen = observed(&graph, &weights, &tokens, &mut observe).unwrap();
    assert_eq!(last, seen.values);
    assert_eq!(seen.values, logits(&graph, &weights, &tokens).unwrap().values);
    assert!(graph.nodes().iter().map(|node| &node.name).eq(&names));
}

#[test]
fn misfits_name_the_node() {
    let mut b = GraphBuilder::new("misfit");
    let table = b.weight("table", &[10, 8]);
    let weight = b.weight("weight", &[4, 6]);
    let x = b.embedding("embed", table, 1.0).unwrap();
    let error = b.linear("blk.3.attn_q", x, weight, None).unwrap_err().to_string();
    assert_eq!(error, "node \"blk.3.attn_q\": linear: matrix weight [4, 6] on real[T, 8]");
    let graph = b.finish(x).unwrap();
    let error = Interpreter::new(&graph, &Weights::new(), LIMITS).unwrap_err();
    assert_eq!(error.to_string(), "tensor \"table\" is missing");
}
