use baton_graph::reference::Reference;
use baton_graph::testing::{Tiny, random_weights};
use baton_graph::{Limits, Rows, Unit};

use super::*;

pub(super) fn sequences(kv_tokens: usize) -> Sequences {
    let graph = Tiny { layers: 1, ..Tiny::default() }.graph().unwrap();
    let limits = Limits { context: 64, kv_tokens, batch_tokens: 64 };
    Sequences::new(Reference.compile(&graph, &random_weights(&graph, 1), limits).unwrap())
}

/// Acquires, evaluates what is missing and releases; the sequence and how much was reused.
pub(super) fn visit(s: &mut Sequences, own: Option<SeqId>, prompt: &[u32]) -> (SeqId, usize) {
    let seq = s.acquire(own, prompt).unwrap();
    let reused = s.tokens(seq).len();
    s.extend(Batch::one(seq, prompt[reused..].to_vec(), Rows::Last)).unwrap();
    s.release(seq);
    assert_eq!(s.executor().len(seq), prompt.len());
    (seq, reused)
}

#[test]
fn a_session_goes_on_in_its_sequence() {
    let mut s = sequences(64);
    let (seq, reused) = visit(&mut s, None, &[1, 2, 3, 4]);
    assert_eq!(reused, 0);
    assert_eq!(visit(&mut s, Some(seq), &[1, 2, 3, 4, 5]), (seq, 4));
    assert_eq!(visit(&mut s, Some(seq), &[1, 2, 3, 9]), (seq, 3));
    assert_eq!(visit(&mut s, Some(seq), &[1, 2, 3, 9]), (seq, 3), "never all of it");
}

#[test]
fn a_session_that_turns_to_something_else_leaves_its_cache_behind() {
    let mut s = sequences(64);
    let (old, _) = visit(&mut s, None, &[1, 2, 3, 4, 5, 6]);
    let (new, reused) = visit(&mut s, Some(old), &[1, 9, 8]);
    assert_eq!(reused, 1);
    assert_ne!(new, old);
    let (back, reused) = visit(&mut s, Some(new), &[1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((back, reused), (old, 6));
}

#[test]
fn a_sequence_in_use_is_shared_not_taken() {
    let mut s = sequences(64);
    let running = s.acquire(None, &[1, 2, 3, 4]).unwrap();
    s.extend(Batch::one(running, vec![1, 2, 3, 4], Rows::Last)).unwrap();
    let (other, reused) = visit(&mut s, None, &[1, 2, 3, 4, 5]);
    assert_eq!(reused, 4);
    assert_ne!(other, running);
    assert_eq!(s.tokens(running), [1, 2, 3, 4]);
}

#[test]
fn the_least_missed_goes_first() {
    let mut s = sequences(12);
    let (a, _) = visit(&mut s, None, &[1, 2, 3, 4]);
    let (b, _) = visit(&mut s, None, &[5, 6, 7, 8]);
    let (c, _) = visit(&mut s, None, &[9, 10, 11, 12]);
    s.orphan(b);
    s.orphan(c);
    visit(&mut s, None, &[13, 14]);
    assert_eq!(s.tokens(b), [0u32; 0], "the older of those without an owner");
    assert_eq!((s.tokens(a).len(), s.tokens(c).len()), (4, 4));
}

#[test]
fn sequences_without_owner_are_bounded() {
    let mut s = sequences(64 * 64);
    for i in 0..(MAX_ORPHANS as u32 + 10) {
        let (seq, _) = visit(&mut s, None, &[i, i]);
        s.orphan(seq);
    }
    assert_eq!(s.entries.len(), MAX_ORPHANS);
    s.clear();
    assert_eq!(s.executor().usage().kv_tokens, 0);
}

#[test]
fn an_abandoned_empty_sequence_leaves_nothing() {
    let mut s = sequences(64);
    let seq = s.acquire(None, &[1, 2]).unwrap();
    s.orphan(seq);
    assert!(s.entries.is_empty());
}
