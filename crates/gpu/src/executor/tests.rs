use std::time::Duration;

use baton_graph::Span;
use baton_graph::testing::{Random, Tiny, random_weights};

use super::*;
use crate::testing::gpu;

const A: SeqId = SeqId(0);
const B: SeqId = SeqId(1);

fn executor(context: usize) -> GpuExecutor {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context, kv_tokens: 4 * context, batch_tokens: context };
    let plan = Plan::new(&graph, &weights, &[]).unwrap();
    GpuExecutor::new(&gpu(false), &graph, plan, limits, usize::MAX).unwrap()
}

/// Runs a batch and gives the best token of its first row, and whether the next pass is under way.
fn run(executor: &mut GpuExecutor, seq: SeqId, tokens: Vec<u32>, rows: Rows) -> (u32, bool) {
    let logits = executor.forward(&Batch::one(seq, tokens, rows)).unwrap();
    let best = logits.best_of(0).map_or(0, |best| best.tokens[0].0);
    (best, executor.foresight.is_ahead())
}

#[test]
fn where_only_the_best_token_is_asked_for_the_second_pass_is_followed_by_one_of_its_own() {
    let mut executor = executor(300);
    let (mut token, ahead) = run(&mut executor, A, vec![3; 10], Rows::Best(1));
    assert!(!ahead, "nothing is known of the answer yet");
    for step in 0..40 {
        let ahead;
        (token, ahead) = run(&mut executor, A, vec![token], Rows::Best(1));
        assert!(ahead, "step {step}");
        assert_eq!(executor.len(A), 11 + step);
    }
    // Another token than the best: nothing is under way until the answer went on with the best.
    let other = (token + 1) % 90;
    let (token, ahead) = run(&mut executor, A, vec![other], Rows::Best(1));
    assert!(!ahead);
    assert!(run(&mut executor, A, vec![token], Rows::Best(1)).1);
}

#[test]
fn where_more_tokens_are_asked_for_it_takes_eight_best_in_a_row() {
    let mut executor = executor(300);
    let (mut token, _) = run(&mut executor, A, vec![3; 10], Rows::Best(40));
    for right in 1..20 {
        let ahead;
        (token, ahead) = run(&mut executor, A, vec![token], Rows::Best(40));
        assert_eq!(ahead, right >= 8, "{right} were the best");
    }
    // Fewer than are found are cut from what was found.
    let logits = executor.forward(&Batch::one(A, vec![token], Rows::Best(3))).unwrap();
    assert_eq!(logits.best[0].tokens.len(), 3);
    // More are not there.
    let token = logits.best[0].tokens[0].0;
    assert!(executor.foresight.is_ahead());
    let logits = executor.forward(&Batch::one(A, vec![token], Rows::Best(50))).unwrap();
    assert_eq!(logits.best[0].tokens.len(), 50);
}

#[test]
fn no_page_is_taken_for_what_nobody_asked_for() {
    let mut executor = executor(100);
    let (mut token, _) = run(&mut executor, A, vec![3; 60], Rows::Best(1));
    for held in 61..=100 {
        let used = executor.usage().kv_tokens;
        let ahead;
        (token, ahead) = run(&mut executor, A, vec![token], Rows::Best(1));
        assert_eq!((executor.len(A), ahead), (held, held != 64 && held != 100), "{held} tokens");
        assert_eq!(executor.usage().kv_tokens, used.max(held.next_multiple_of(PAGE)));
    }
}

#[test]
fn every_call_but_the_expected_one_forgets_it() {
    let mut executor = executor(300);
    let ready = |executor: &mut GpuExecutor| {
        executor.free(A);
        let (token, _) = run(executor, A, vec![3; 10], Rows::Best(1));
        let (token, ahead) = run(executor, A, vec![token], Rows::Best(1));
        assert!(ahead);
        token
    };
    let acts: [fn(&mut GpuExecutor); 6] = [
        |executor| executor.truncate(A, 10).unwrap(),
        |executor| executor.copy(A, B, 4).unwrap(),
        |executor| executor.free(B),
        |executor| {
            let block = executor.export_kv(A, 0..5).unwrap();
            executor.import_kv(B, 0, &block).unwrap();
        },
        |executor| assert!(!run(executor, B, vec![1], Rows::Best(1)).1),
        |executor| assert!(!run(executor, A, vec![1], Rows::Last).1),
    ];
    for act in acts {
        ready(&mut executor);
        executor.free(B);
        ready(&mut executor);
        act(&mut executor);
        assert!(!executor.foresight.is_ahead());
    }
    // What is refused or only looked at changes nothing.
    let token = ready(&mut executor);
    assert!(executor.forward(&Batch::one(A, vec![u32::MAX], Rows::Best(1))).is_err());
    executor.export_kv(A, 0..11).unwrap();
    assert!(executor.foresight.is_ahead());
    assert!(run(&mut executor, A, vec![token], Rows::Best(1)).1);
}

#[test]
fn the_longer_an_answer_goes_on_with_the_best_tokens_the_more_passes_come_together() {
    let mut executor = executor(300);
    let together = |executor: &mut GpuExecutor, time| {
        executor.foresight.together = time;
        executor.free(A);
        let (mut token, _) = run(executor, A, vec![3; 64], Rows::Best(1));
        let mut passes = Vec::new();
        for _ in 0..64 {
            (token, _) = run(executor, A, vec![token], Rows::Best(1));
            let flight = executor.foresight.flight.as_ref();
            passes.push(flight.map_or(0, |(flight, _)| flight.order.passes));
        }
        passes.dedup();
        passes
    };
    // The last pass of a page has no room behind it.
    assert_eq!(together(&mut executor, Duration::ZERO), [1, 0], "one pass takes longer");
    let passes = together(&mut executor, Duration::from_secs(1000));
    assert_eq!(passes, [1, 2, 3, 4, 6, 8, 11, 15, 9, 0]);
}

/// Sequences that calls are about.
const ALL: [SeqId; 3] = [SeqId(0), SeqId(1), SeqId(2)];

/// A call of any kind, most often one that goes on with the best tokens.
fn call(executor: &mut GpuExecutor, last: &mut Vec<(SeqId, u32)>, random: &mut Random) -> Logits {
    let seq = ALL[random.below(ALL.len())];
    let len = executor.len(seq);
    let tokens = |n: usize, random: &mut Random| (0..n).map(|_| random.below(90) as u32).collect();
    let is_full = last.iter().any(|&(seq, _)| executor.len(seq) == executor.limits().context);
    let spans: Vec<Span> = match random.below(40) {
        0 => {
            executor.truncate(seq, random.below(len + 1)).unwrap();
            return Logits::default();
        }
        1 => {
            let to = ALL[(seq.0 as usize + 1) % ALL.len()];
            executor.free(to);
            executor.copy(seq, to, random.below(len + 1)).unwrap();
            return Logits::default();
        }
        2 => {
            executor.free(seq);
            return Logits::default();
        }
        3 if len > 1 => {
            let block = executor.export_kv(seq, 0..len / 2).unwrap();
            executor.truncate(seq, 0).unwrap();
            executor.import_kv(seq, 0, &block).unwrap();
            return Logits::default();
        }
        4 => ALL.iter().map(|&seq| span(seq, tokens(1, random), Rows::Best(1))).collect(),
        5 => vec![span(seq, tokens(1 + random.below(9), random), Rows::Last)],
        6 => vec![span(seq, tokens(1 + random.below(9), random), Rows::Best(2))],
        7 => {
            assert!(executor.forward(&Batch::one(seq, vec![u32::MAX], Rows::Best(1))).is_err());
            return Logits::default();
        }
        kind if last.is_empty() || is_full => {
            vec![span(seq, tokens(1, random), Rows::Best(1 + kind % 2))]
        }
        kind => {
            let best = if kind == 8 { 3 } else { 1 };
            last.iter().map(|&(seq, id)| span(seq, vec![id], Rows::Best(best))).collect()
        }
    };
    for span in &spans {
        if executor.len(span.seq) + span.tokens.len() > executor.limits().context {
            executor.truncate(span.seq, 20).unwrap();
        }
    }
    let logits = executor.forward(&Batch { spans: spans.clone() }).unwrap();
    let best = logits.best.iter().map(|best| best.tokens[0].0);
    *last = spans.iter().map(|span| span.seq).zip(best).collect();
    logits
}

fn span(seq: SeqId, tokens: Vec<u32>, rows: Rows) -> Span {
    Span { seq, tokens, rows }
}

/// Whatever is asked for, and in whatever order.
#[test]
fn what_was_done_ahead_of_time_is_what_would_have_been_done_then() {
    let (mut ahead, mut alone) = (executor(150), executor(150));
    ahead.foresight.together = Duration::from_secs(1000);
    let (mut one, mut other) = (Random::new(1), Random::new(1));
    let (mut last, mut last_alone) = (Vec::new(), Vec::new());
    let (mut used, mut most) = (0, 0);
    for step in 0..2000 {
        let landed = ahead.foresight.is_ahead();
        let found = call(&mut ahead, &mut last, &mut one);
        let expected = call(&mut alone, &mut last_alone, &mut other);
        // So it never expects anything.
        alone.foresight = Foresight::default();
        assert_eq!(found, expected, "call {step}");
        used += usize::from(landed && !found.best.is_empty());
        let flight = ahead.foresight.flight.as_ref();
        most = most.max(flight.map_or(0, |(flight, _)| flight.order.passes));
        for seq in ALL {
            assert_eq!(ahead.len(seq), alone.len(seq), "call {step}");
            if step % 7 == 0 && ahead.len(seq) > 0 {
                let kept = |executor: &GpuExecutor| executor.export_kv(seq, 0..executor.len(seq));
                assert_eq!(kept(&ahead).unwrap(), kept(&alone).unwrap(), "call {step}");
            }
        }
        assert_eq!(ahead.usage(), alone.usage(), "call {step}");
    }
    assert!(used > 1000 && most > 4, "{used} calls, {most} passes together at most");
}
