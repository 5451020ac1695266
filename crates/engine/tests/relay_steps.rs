//! Whatever is done to a relay, in whatever order: it is as one unit.

mod common;

use std::sync::atomic::Ordering;

use baton_graph::reference::Reference;
use baton_graph::testing::random_tokens;
use baton_graph::{Batch, Executor, Limits, Rows, SeqId};
use proptest::prelude::*;

use common::{Counts, VOCAB, executor_of, probed, relay_options};

/// Something that is done to both a relay and one unit alone.
#[derive(Clone, Debug)]
enum Step {
    /// How many tokens, which rows, and whether they are announced.
    Forward {
        seq: u32,
        n: usize,
        rows: Rows,
        announced: bool,
    },
    Truncate {
        seq: u32,
        share: usize,
    },
    Copy {
        from: u32,
        to: u32,
        share: usize,
    },
    Free {
        seq: u32,
    },
    /// Out of one sequence, to the end of another.
    Carry {
        from: u32,
        to: u32,
        share: usize,
    },
    /// The prefill unit fails after so many passes.
    Fail {
        passes: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rows = prop_oneof![Just(Rows::None), Just(Rows::Last), Just(Rows::All)];
    let forward = (0u32..4, 1usize..50, rows, any::<bool>())
        .prop_map(|(seq, n, rows, announced)| Step::Forward { seq, n, rows, announced });
    let copy = |from, to, share| Step::Copy { from, to, share };
    let carry = |from, to, share| Step::Carry { from, to, share };
    let step = prop_oneof![
        8 => forward,
        2 => (0u32..4, 0usize..=10).prop_map(|(seq, share)| Step::Truncate { seq, share }),
        2 => (0u32..4, 0u32..4, 0usize..=10).prop_map(move |(a, b, n)| copy(a, b, n)),
        1 => (0u32..4).prop_map(|seq| Step::Free { seq }),
        1 => (0u32..4, 0u32..4, 0usize..=10).prop_map(move |(a, b, n)| carry(a, b, n)),
        1 => (0usize..4).prop_map(|passes| Step::Fail { passes }),
    ];
    prop::collection::vec(step, 1..30)
}

/// Takes a step; what came of it, if it went well.
fn take(executor: &mut dyn Executor, step: &Step, tokens: &[u32]) -> Option<Vec<f32>> {
    let part = |executor: &dyn Executor, seq, share| executor.len(SeqId(seq)) * share / 10;
    match *step {
        Step::Forward { seq, n, rows, announced } => {
            if announced {
                executor.prepare(SeqId(seq), n);
            }
            let batch = Batch::one(SeqId(seq), tokens[..n].to_vec(), rows);
            executor.forward(&batch).ok().map(|logits| logits.values)
        }
        Step::Truncate { seq, share } => {
            let len = part(executor, seq, share);
            executor.truncate(SeqId(seq), len).ok().map(|()| Vec::new())
        }
        Step::Copy { from, to, share } => {
            let len = part(executor, from, share);
            executor.copy(SeqId(from), SeqId(to), len).ok().map(|()| Vec::new())
        }
        Step::Free { seq } => {
            executor.free(SeqId(seq));
            Some(Vec::new())
        }
        Step::Carry { from, to, share } => {
            let block = executor.export_kv(SeqId(from), 0..part(executor, from, share)).ok()?;
            let at = executor.len(SeqId(to));
            executor.import_kv(SeqId(to), at, &block).ok().map(|()| Vec::new())
        }
        Step::Fail { .. } => Some(Vec::new()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done_a_relay_is_as_one_unit(steps in steps(), crossover in 1usize..20, chunk in 1usize..20) {
        let limits = Limits { context: 120, kv_tokens: 260, batch_tokens: 64 };
        let (prefill, decode) = (Counts::new(), Counts::new());
        let mut relay = executor_of(&probed(&prefill, &decode, relay_options(crossover, chunk)), limits);
        let mut single = executor_of(&Reference, limits);
        for (at, step) in steps.iter().enumerate() {
            if let Step::Fail { passes } = *step {
                prefill.succeed.store(passes, Ordering::SeqCst);
            }
            let tokens = random_tokens(50, VOCAB, at as u64);
            let (found, expected) = (take(&mut *relay, step, &tokens), take(&mut *single, step, &tokens));
            // A relay may find later that there is no room, but not earlier.
            prop_assert!(found.is_some() || expected.is_none(), "step {at}: {step:?}");
            if found.is_some() && expected.is_none() {
                return Ok(());
            }
            for seq in 0..4 {
                prop_assert_eq!(relay.len(SeqId(seq)), single.len(SeqId(seq)), "step {}", at);
            }
            let (found, expected) = (found.unwrap_or_default(), expected.unwrap_or_default());
            prop_assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!((found - expected).abs() < 2e-2, "step {at}: {found} {expected}");
            }
        }
    }
}
