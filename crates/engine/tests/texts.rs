//! Prompts and answers as text: stop strings, whole characters, control tokens.

mod common;

use baton_engine::{Event, FinishReason, GenerateOptions, Sampling};

use common::{VOCAB, collect, greedy, limits, text_engine, wild};

/// Wild tokens, none of which ends the answer.
fn going_on(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { ignore_end: true, ..wild(max_tokens) }
}

fn run(options: &GenerateOptions) -> common::Answer {
    let engine = text_engine(limits(256));
    let mut session = engine.session();
    collect(session.generate("in the beginning", options).unwrap())
}

#[test]
fn the_text_is_that_of_the_tokens() {
    let answer = run(&going_on(60));
    assert_eq!(answer.text, common::tokenizer().decode(&answer.tokens, true));
    let kinds = answer.text.chars().collect::<std::collections::HashSet<_>>().len();
    assert!(kinds > 20, "{}", answer.text);
}

#[test]
fn control_tokens_are_not_shown() {
    let answer = run(&going_on(200));
    assert!(answer.tokens.iter().any(|id| matches!(id, 256 | 257 | 261..=263)));
    assert!(!answer.text.contains("<|"), "{}", answer.text);
}

#[test]
fn a_stop_string_ends_the_answer_and_is_no_part_of_it() {
    let whole = run(&going_on(60)).text;
    let starts: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
    for (i, &at) in starts.iter().enumerate().step_by(5) {
        for chars in [1, 3, 7] {
            let Some(&end) = starts.get(i + chars) else { continue };
            let stop = &whole[at..end];
            let options = GenerateOptions { stop: vec![stop.into()], ..going_on(60) };
            let answer = run(&options);
            assert_eq!(answer.summary.reason, FinishReason::Stop(stop.into()));
            assert_eq!(answer.text, whole[..whole.find(stop).unwrap()]);
        }
    }
}

#[test]
fn text_held_back_for_a_stop_string_comes_at_the_end() {
    let whole = run(&going_on(60)).text;
    let last = whole.chars().next_back().unwrap();
    let options = GenerateOptions { stop: vec![format!("{last}\u{1}never")], ..going_on(60) };
    let answer = run(&options);
    assert_eq!(answer.text, whole);
    assert_eq!(answer.summary.reason, FinishReason::Length);
}

#[test]
fn a_character_cut_off_by_the_limit_is_one_replacement_at_most() {
    for n in 1..60 {
        let text = run(&going_on(n)).text;
        let pieces = common::tokenizer().decode(&run(&going_on(n)).tokens, true);
        assert_eq!(text, pieces);
    }
}

#[test]
fn events_of_text_follow_their_tokens() {
    let engine = text_engine(limits(256));
    let mut session = engine.session();
    let mut tokens = 0;
    for event in session.generate("in", &going_on(30)).unwrap() {
        match event.unwrap() {
            Event::Token(_) => tokens += 1,
            Event::Text(_) => assert!(tokens > 0),
            _ => {}
        }
    }
    assert!(tokens > 0);
}

#[test]
fn control_tokens_are_text_where_wanted() {
    let engine = text_engine(limits(64));
    const CONTROL: u32 = 261;
    let forbidden = (0..VOCAB as u32).filter(|&id| id != CONTROL);
    let logit_bias = forbidden.map(|id| (id, f32::NEG_INFINITY)).collect();
    let sampling = Sampling { logit_bias, ..Sampling::greedy() };
    let hidden = GenerateOptions { sampling, ..greedy(2) };
    let shown = GenerateOptions { show: vec![CONTROL], ..hidden.clone() };
    let text = |options| engine.session().generate("go", options).unwrap().finish().unwrap().0;
    let name = engine.tokenizer().unwrap().token(CONTROL).unwrap();
    assert_eq!(text(&hidden), "");
    assert_eq!(text(&shown), name.repeat(2));
}
