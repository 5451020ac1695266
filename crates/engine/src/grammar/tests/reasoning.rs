//! Constraints that begin after the reasoning.

use super::*;

fn reasoning(open: Option<&str>, close: &str) -> Reasoning {
    Reasoning { open: open.map(str::to_owned), close: vec![close.to_owned()] }
}

fn think(open: Option<&str>) -> Reasoning {
    reasoning(open, "</think>")
}

/// What may follow after `tokens` of an answer to `a+`, with a constraint that begins after
/// `</think>`.
fn after(compiler: &GrammarCompiler, tokens: &[u32]) -> Constraint {
    let mut constraint = compiler.compile(&regex("a+!"), Some(&think(None))).unwrap();
    for &token in tokens {
        assert!(constraint.mask().unwrap().allows(token), "{token} in {tokens:?}");
        constraint.accept(token).unwrap();
    }
    constraint
}

#[test]
fn a_constraint_may_begin_after_the_reasoning() {
    let words =
        ["</think>", "</", "think", ">\n", ">a", "\n\n", "x</think>b", "</think>\n", "     "];
    let [whole, open, think, close, beyond, lines, far, line, spaces] =
        [259, 260, 261, 262, 263, 264, 265, 266, 267];
    let compiler = compiler_of(&tokenizer(&words));
    let free = after(&compiler, &[]).mask().unwrap().clone();
    assert!(!free.allows(END) && !free.allows(STOP), "the answer comes first");
    assert!(!free.allows(far), "it would begin the answer without asking");
    assert_eq!(free.count(), free.len() - 3);
    // The text comes as one token, in tokens, and with white space.
    for tokens in [
        &[byte(b'x'), whole][..],
        &[open, think, byte(b'>')],
        &[open, open, think, close],
        &[whole, lines],
        &[line, byte(b' ')],
        &[byte(b'<'), line],
    ] {
        let mut constraint = after(&compiler, tokens);
        assert!(!constraint.finished());
        let mask = constraint.mask().unwrap();
        assert!(mask.allows(byte(b'a')) && !mask.allows(byte(b'x')), "{tokens:?}");
        assert!(!mask.allows(END) && !mask.allows(spaces), "{tokens:?}");
        assert_eq!(follow(&mut constraint, "aa!"), (3, true));
        assert!(constraint.finished());
    }
    // A token that completes it must not go on with something else.
    assert!(after(&compiler, &[]).mask().unwrap().allows(beyond));
    assert!(!after(&compiler, &[open, think]).mask().unwrap().allows(beyond));
    assert!(after(&compiler, &[think]).mask().unwrap().allows(beyond));
    // White space has an end, and there is none within the answer.
    let mut constraint = after(&compiler, &[line, lines]);
    assert!(constraint.mask().unwrap().allows(byte(b' ')));
    constraint.accept(byte(b' ')).unwrap();
    assert!(!constraint.mask().unwrap().allows(byte(b' ')));
    assert!(!after(&compiler, &[whole, byte(b'a')]).mask().unwrap().allows(byte(b' ')));
}

#[test]
fn white_space_that_the_grammar_begins_with_belongs_to_it() {
    let tokenizer = tokenizer(&["\n\n"]);
    let compiler = compiler_of(&tokenizer);
    let mut constraint =
        compiler.compile(&regex("\n\n\n\nb"), Some(&reasoning(None, "x"))).unwrap();
    for token in [byte(b'x'), 259, 259, byte(b'b')] {
        assert!(constraint.mask().unwrap().allows(token), "{token}");
        constraint.accept(token).unwrap();
    }
    assert!(constraint.finished());
}

#[test]
fn the_model_may_reason_or_not() {
    let tokenizer = tokenizer(&["<think>", "<th", "ink>", "</think>", "<think>x"]);
    let [whole, first, second, close, beyond] = [259, 260, 261, 262, 263];
    let compiler = compiler_of(&tokenizer);
    let begin = || compiler.compile(&regex("(a|<b)+!"), Some(&think(Some("<think>")))).unwrap();
    let mask = begin().mask().unwrap().clone();
    let allowed: Vec<u32> = (0..mask.len() as u32).filter(|&id| mask.allows(id)).collect();
    assert_eq!(allowed, [byte(b'<'), byte(b'a'), whole, first], "not {beyond}");
    // The answer at once.
    assert_eq!(follow(&mut begin(), "a<ba!"), (5, true));
    assert_eq!(follow(&mut begin(), "<b!"), (3, true));
    // The reasoning first.
    for opening in [&[whole][..], &[first, second]] {
        let mut constraint = begin();
        for &token in opening.iter().chain(&[byte(b'?'), close]) {
            assert!(constraint.mask().unwrap().allows(token), "{token} of {opening:?}");
            assert!(!constraint.mask().unwrap().allows(END));
            constraint.accept(token).unwrap();
        }
        assert_eq!(follow(&mut constraint, "a!"), (2, true));
    }
    let mut constraint = begin();
    constraint.accept(first).unwrap();
    assert!(!constraint.mask().unwrap().allows(byte(b'a')), "what was begun goes on");
}

#[test]
fn the_reasoning_may_end_with_texts_one_after_the_other() {
    let words = ["<c>", "final", " <as>json", "<m>", "inal<m>"];
    let [channel, name, form, message, both] = [259, 260, 261, 262, 263];
    let compiler = compiler_of(&tokenizer(&words));
    let close = ["<c>final", "", "<m>"].map(str::to_owned).to_vec();
    let reasoning = Reasoning { open: None, close };
    for tokens in [
        &[byte(b'x'), message, channel, name, message][..],
        &[channel, byte(b'x'), message, channel, name, form, message],
        &[channel, byte(b'f'), both],
    ] {
        let mut constraint = compiler.compile(&regex("a+!"), Some(&reasoning)).unwrap();
        for &token in tokens {
            let mask = constraint.mask().unwrap();
            assert!(mask.allows(token) && !mask.allows(END), "{token} of {tokens:?}");
            constraint.accept(token).unwrap();
        }
        assert!(!constraint.mask().unwrap().allows(byte(b'x')), "{tokens:?}");
        assert_eq!(follow(&mut constraint, "aa!"), (3, true));
    }
}
