use baton_graph::testing::{Tiny, random_weights};

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
    (best, executor.foresight.flight.is_some())
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
    assert!(executor.foresight.flight.is_some());
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
        assert!(executor.foresight.flight.is_none());
    }
    // What is refused or only looked at changes nothing.
    let token = ready(&mut executor);
    assert!(executor.forward(&Batch::one(A, vec![u32::MAX], Rows::Best(1))).is_err());
    executor.export_kv(A, 0..11).unwrap();
    assert!(executor.foresight.flight.is_some());
    assert!(run(&mut executor, A, vec![token], Rows::Best(1)).1);
}
