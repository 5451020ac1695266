//! The best tokens in the place of all logits, and steps that go on with what was the best.

use crate::{Batch, Executor, Limits, Logits, Rows, SeqId, Span, Unit};

use super::conformance::{A, B, C, compile};
use super::{Random, Tiny, random_tokens, random_weights};

/// Rows asked for by their best tokens, alone and in batches, and what comes of it when an answer goes on
/// with the best token or with anything else.
pub fn best(unit: &dyn Unit) {
    let tiny = Tiny::default();
    let graph = tiny.graph().expect("a sound model");
    let weights = random_weights(&graph, 9);
    let tokens = random_tokens(140, tiny.vocab, 16);
    let new = || compile(unit, "best tokens", &graph, &weights);
    rows(&mut *new(), &tokens);
    up_to_the_limit(unit, &tokens);
    for seed in 0..2 {
        whatever_comes_between([&mut *new(), &mut *new()], &tokens, &mut Random::new(seed));
    }
}

/// What the host makes of a row: the `k` best, and the logarithm of the sum of exponentials.
fn of(row: &[f32], k: usize) -> (Vec<(u32, f32)>, f64) {
    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(k);
    (all, row.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln())
}

/// The best tokens of each row, whichever way the executor gives them.
fn best_of(logits: &Logits, k: usize) -> Vec<(Vec<(u32, f32)>, f64)> {
    match &logits.best[..] {
        [] => (0..logits.rows.len()).map(|row| of(logits.row(row), k)).collect(),
        best => best.iter().map(|best| (best.tokens.clone(), best.log_sum_exp)).collect(),
    }
}

fn span(seq: SeqId, tokens: &[u32], rows: Rows) -> Span {
    Span { seq, tokens: tokens.to_vec(), rows }
}

fn rows(executor: &mut dyn Executor, tokens: &[u32]) {
    for k in [1, 2, 40, 64, 97, 200, 0] {
        let mut run = |rows: Rows| {
            [A, B, C].into_iter().for_each(|seq| executor.free(seq));
            let spans = vec![
                span(A, &tokens[..40], rows),
                span(B, &tokens[..3], Rows::None),
                span(C, &tokens[7..8], rows),
            ];
            executor.forward(&Batch { spans }).expect("the batch fits")
        };
        let all = run(Rows::Last);
        let found = run(Rows::Best(k));
        assert_eq!(found.rows, all.rows, "the best {k}");
        assert!(found.best.is_empty() != found.values.is_empty(), "one of both");
        for (row, (found, sum)) in best_of(&found, k).into_iter().enumerate() {
            let (expected, expected_sum) = of(all.row(row), k);
            let ids = |tokens: &[(u32, f32)]| tokens.iter().map(|t| t.0).collect::<Vec<_>>();
            assert_eq!(ids(&found), ids(&expected), "the best {k} of row {row}");
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found.1 - expected.1).abs() < 1e-5, "{found:?}, not {expected:?}");
            }
            assert!((sum - expected_sum).abs() < 1e-4, "{sum}, not {expected_sum}");
        }
    }
}

/// An answer that goes on with the best token to the end of the context, in a cache without any room
/// beside it, is what it is otherwise, and then there is no room as ever.
fn up_to_the_limit(unit: &dyn Unit, tokens: &[u32]) {
    let tiny = Tiny::default();
    let graph = tiny.graph().expect("a sound model");
    let weights = random_weights(&graph, 9);
    let limits = Limits { context: 100, kv_tokens: 128, batch_tokens: 64 };
    let mut texts = [Rows::Last, Rows::Best(1)].map(|rows| {
        let mut executor = unit.compile(&graph, &weights, limits).expect("a sound model");
        let mut text = tokens[..50].to_vec();
        let mut new = 50;
        while text.len() <= limits.context {
            let batch = Batch { spans: vec![span(A, &text[text.len() - new..], rows)] };
            let logits = executor.forward(&batch).expect("it fits");
            assert_eq!(executor.len(A), text.len());
            text.push(best_of(&logits, 1)[0].0[0].0);
            new = 1;
        }
        let error = executor.forward(&Batch { spans: vec![span(A, &text[100..], rows)] });
        assert!(error.is_err() && executor.len(A) == 100, "the context is full");
        text
    });
    let [expected, found] = &mut texts;
    assert_eq!(found, expected, "a text written by its best tokens");
}

/// Two executors do the same, of which one is asked for best tokens and the other for all logits. Most of
/// the time they go on with the best token, and every now and then they do something else.
fn whatever_comes_between(executors: [&mut dyn Executor; 2], tokens: &[u32], random: &mut Random) {
    let [asked, plain] = executors;
    let mut next: Vec<(SeqId, u32)> = vec![(A, 5), (B, 6)];
    for step in 0..120 {
        let what = format!("step {step}");
        if next.iter().any(|&(seq, _)| plain.len(seq) > 180) || next.is_empty() {
            next = vec![(A, 5), (B, 6)];
            both(asked, plain, |executor| [A, B, C].into_iter().for_each(|seq| executor.free(seq)));
        }
        let (seq, token) = next[random.below(next.len())];
        let len = plain.len(seq);
        match random.below(16) {
            // It goes on otherwise than with the best.
            0 => next[0].1 = (next[0].1 + 1) % 90,
            1 => both(asked, plain, |e| e.truncate(seq, len - len.min(3)).expect("held")),
            2 if seq != C => {
                both(asked, plain, |e| e.copy(seq, C, len).expect("held"));
                next.retain(|&(seq, _)| seq != C);
                next.push((C, token));
            }
            3 if next.len() > 1 => {
                next.retain(|&(other, _)| other != seq);
                both(asked, plain, |e| e.free(seq));
            }
            4 => next.reverse(),
            5 if len > 0 => {
                let [block, expected] =
                    [&*asked, &*plain].map(|e| e.export_kv(seq, len / 2..len).expect("held"));
                assert_eq!(block, expected, "{what}");
                both(asked, plain, |e| {
                    e.truncate(seq, len / 2).expect("held");
                    e.import_kv(seq, len / 2, &block).expect("it fits");
                });
            }
            6 => {
                // Several tokens of one sequence alone.
                let new = &tokens[..1 + random.below(12)];
                both(asked, plain, |e| {
                    e.forward(&Batch { spans: vec![span(seq, new, Rows::All)] }).expect("it fits");
                });
            }
            7 => {
                let batch = Batch { spans: vec![span(seq, &[u32::MAX], Rows::Best(1))] };
                both(asked, plain, |e| assert!(e.forward(&batch).is_err(), "{what}"));
            }
            _ => {}
        }
        let k = 1 + random.below(2) * 9;
        let run = |executor: &mut dyn Executor, rows: Rows| {
            let spans = next.iter().map(|&(seq, token)| span(seq, &[token], rows)).collect();
            best_of(&executor.forward(&Batch { spans }).expect("it fits"), k)
        };
        let (found, expected) = (run(asked, Rows::Best(k)), run(plain, Rows::Last));
        for ((seq, token), (found, expected)) in next.iter_mut().zip(found.iter().zip(&expected)) {
            let ids = |(tokens, _): &(Vec<(u32, f32)>, f64)| tokens.iter().map(|t| t.0).collect();
            let (found, expected): (Vec<u32>, Vec<u32>) = (ids(found), ids(expected));
            assert_eq!(found, expected, "{what}: sequence {seq}");
            assert_eq!(asked.len(*seq), plain.len(*seq), "{what}");
            *token = found[0];
        }
        assert_eq!(asked.usage().kv_tokens, plain.usage().kv_tokens, "{what}");
    }
}

fn both(one: &mut dyn Executor, other: &mut dyn Executor, mut act: impl FnMut(&mut dyn Executor)) {
    act(one);
    act(other);
}
