//! Sessions over the reference interpreter: reuse, limits, cancelling, sharing.

mod common;

use baton_engine::{
    CancelToken, Engine, Error, Event, FinishReason, GenerateOptions, ModelTraits, Sampling,
};
use baton_graph::testing::random_tokens;
use baton_graph::{Limits, SeqId};

use common::{VOCAB, answer, collect, engine, greedy, limits};

fn prompt(n: usize, seed: u64) -> Vec<u32> {
    random_tokens(n, VOCAB, seed)
}

/// The answer of an engine that has seen nothing else.
fn cold(tokens: &[u32], n: usize) -> Vec<u32> {
    answer(&mut engine(limits(128)).session(), tokens, &greedy(n)).tokens
}

#[test]
fn greedy_is_the_same_warm_and_cold() {
    let engine = engine(limits(128));
    let mut session = engine.session();
    let base = prompt(40, 1);
    let first = answer(&mut session, &base, &greedy(12));
    assert_eq!(first.tokens, cold(&base, 12));
    assert_eq!((first.reused(), first.prefilled()), (0, 40));

    let again = answer(&mut session, &base, &greedy(12));
    assert_eq!(again.tokens, first.tokens);
    assert_eq!((again.reused(), again.prefilled()), (39, 1), "one token is always evaluated");

    let longer: Vec<u32> = base.iter().chain(&first.tokens).copied().chain(prompt(5, 2)).collect();
    let continued = answer(&mut session, &longer, &greedy(12));
    assert_eq!(continued.tokens, cold(&longer, 12));
    assert_eq!(continued.reused(), 51, "the last token of the answer was never evaluated");

    let shorter = &base[..25];
    let cut = answer(&mut session, shorter, &greedy(12));
    assert_eq!(cut.tokens, cold(shorter, 12));
    assert_eq!(cut.reused(), 24);

    let mut other = base.clone();
    other[30] = (other[30] + 1) % VOCAB as u32;
    let diverged = answer(&mut session, &other, &greedy(12));
    assert_eq!(diverged.tokens, cold(&other, 12));
}

#[test]
fn any_batch_size_gives_the_same_answer() {
    let tokens = prompt(37, 3);
    let expected = cold(&tokens, 10);
    for batch_tokens in [1, 7, 36, 37, 64] {
        let engine = engine(Limits { batch_tokens, ..limits(128) });
        assert_eq!(answer(&mut engine.session(), &tokens, &greedy(10)).tokens, expected);
    }
}

#[test]
fn the_events_come_in_order() {
    let engine = engine(limits(64));
    let mut session = engine.session();
    let events: Vec<Event> =
        session.generate(prompt(35, 1), &greedy(2)).unwrap().map(Result::unwrap).collect();
    let done: Vec<usize> = events
        .iter()
        .filter_map(|e| match e {
            Event::Prefill { done, total: 35 } => Some(*done),
            _ => None,
        })
        .collect();
    assert_eq!(done, [16, 32, 35]);
    assert!(matches!(
        events[3..],
        [Event::Token(_), Event::Token(_), Event::Done(ref summary)]
            if summary.reason == FinishReason::Length && summary.metrics.generated_tokens == 2
    ));
}

#[test]
fn a_full_context_ends_with_length() {
    let engine = engine(limits(32));
    let mut session = engine.session();
    let unlimited = GenerateOptions { max_tokens: None, ..greedy(0) };
    let answer = answer(&mut session, &prompt(20, 1), &unlimited);
    assert_eq!(answer.tokens.len(), 12);
    assert_eq!(answer.summary.reason, FinishReason::Length);
}

#[test]
fn a_prompt_that_does_not_fit_is_an_error_with_both_numbers() {
    let engine = engine(limits(32));
    let mut session = engine.session();
    let error = session.generate(prompt(32, 1), &greedy(1)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::PromptTooLong { prompt: 32, counted: true, context: 32, of_packages: false }
        ),
        "{error}"
    );
    let text = session.generate(prompt(700, 1), &greedy(1)).unwrap_err().to_string();
    assert!(text.contains("700") && text.contains("32"), "{text}");
    assert_eq!(answer(&mut session, &prompt(31, 1), &greedy(9)).tokens.len(), 1);
    assert!(matches!(session.generate(vec![], &greedy(1)), Err(Error::EmptyPrompt)));
}

#[test]
fn an_unknown_token_is_an_error_and_harms_nothing() {
    let engine = engine(limits(64));
    let mut session = engine.session();
    let good = prompt(20, 1);
    let expected = answer(&mut session, &good, &greedy(5)).tokens;
    let mut bad = good.clone();
    bad.push(VOCAB as u32);
    let mut events = session.generate(bad, &greedy(5)).unwrap();
    let failed = events.find_map(|event| event.err());
    assert!(failed.is_some_and(|e| e.to_string().contains(&VOCAB.to_string())));
    assert!(events.next().is_none());
    drop(events);
    assert_eq!(answer(&mut session, &good, &greedy(5)).tokens, expected);
}

#[test]
fn an_answer_can_be_cancelled_at_any_event() {
    let tokens = prompt(40, 1);
    let expected = cold(&tokens, 12);
    for stop_at in 0..10 {
        let engine = engine(limits(128));
        let mut session = engine.session();
        let options = GenerateOptions { cancel: CancelToken::new(), ..greedy(12) };
        let mut events = Vec::new();
        for (seen, event) in session.generate(tokens.clone(), &options).unwrap().enumerate() {
            if seen == stop_at {
                options.cancel.cancel();
            }
            events.push(event.unwrap());
        }
        let Some(Event::Done(summary)) = events.last() else { panic!("no summary") };
        assert_eq!(summary.reason, FinishReason::Cancelled);
        assert_eq!(events.len(), stop_at + 2, "nothing more is computed");
        // What was evaluated is kept and right.
        options.cancel.reset();
        let again = answer(&mut session, &tokens, &options);
        assert_eq!(again.tokens, expected, "after a stop at {stop_at}");
        assert!(again.reused() >= 16);
    }
}

#[test]
fn a_cancelled_request_computes_nothing() {
    let engine = engine(limits(64));
    let options = GenerateOptions { cancel: CancelToken::new(), ..greedy(12) };
    options.cancel.cancel();
    let answer = answer(&mut engine.session(), &prompt(10, 1), &options);
    assert_eq!(answer.summary.reason, FinishReason::Cancelled);
    assert_eq!((answer.prefilled(), answer.tokens.len()), (0, 0));
}

#[test]
fn no_tokens_wanted_only_fills_the_cache() {
    let engine = engine(limits(64));
    let mut session = engine.session();
    let answer = answer(&mut session, &prompt(10, 1), &greedy(0));
    assert_eq!(answer.summary.reason, FinishReason::Length);
    assert_eq!(session.tokens().unwrap(), prompt(10, 1));
}

#[test]
fn a_dropped_answer_leaves_the_session_usable() {
    let engine = engine(limits(64));
    let mut session = engine.session();
    let tokens = prompt(20, 4);
    let expected = cold(&tokens, 8);
    let seen = session.generate(tokens.clone(), &greedy(8)).unwrap().take(4).count();
    assert_eq!(seen, 4);
    assert_eq!(answer(&mut session, &tokens, &greedy(8)).tokens, expected);
}

#[test]
fn sessions_take_turns_and_do_not_disturb_each_other() {
    let engine = engine(Limits { kv_tokens: 256, ..limits(128) });
    let (a, b) = (prompt(30, 1), prompt(35, 2));
    let (mut first, mut second) = (engine.session(), engine.session());
    let mut events = (
        first.generate(a.clone(), &greedy(9)).unwrap(),
        second.generate(b.clone(), &greedy(9)).unwrap(),
    );
    let (mut of_first, mut of_second) = (Vec::new(), Vec::new());
    loop {
        let pair = (events.0.next(), events.1.next());
        if pair.0.is_none() && pair.1.is_none() {
            break;
        }
        of_first.extend(pair.0);
        of_second.extend(pair.1);
    }
    assert_eq!(collect(of_first.into_iter()).tokens, cold(&a, 9));
    assert_eq!(collect(of_second.into_iter()).tokens, cold(&b, 9));
}

#[test]
fn sessions_can_be_in_many_threads() {
    let engine = engine(Limits { kv_tokens: 512, ..limits(64) });
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let engine = engine.clone();
            scope.spawn(move || {
                let tokens = prompt(20, seed);
                let mut session = engine.session();
                let got = answer(&mut session, &tokens, &greedy(6)).tokens;
                assert_eq!(got, cold(&tokens, 6));
            });
        }
    });
}

#[test]
fn a_new_session_builds_on_what_another_left() {
    let engine = engine(Limits { kv_tokens: 512, ..limits(128) });
    let base = prompt(40, 1);
    let first = {
        let mut session = engine.session();
        answer(&mut session, &base, &greedy(6))
    };
    let longer: Vec<u32> = base.iter().chain(&first.tokens).copied().chain(prompt(4, 2)).collect();
    let continued = answer(&mut engine.session(), &longer, &greedy(6));
    assert_eq!(continued.reused(), 45);
    assert_eq!(continued.tokens, cold(&longer, 6));
    // A common beginning of a live session's text is shared, and that session keeps its own.
    let mut live = engine.session();
    let held = answer(&mut live, &prompt(30, 9), &greedy(6));
    let mut forked = prompt(30, 9)[..20].to_vec();
    forked.extend(prompt(5, 10));
    let fork = answer(&mut engine.session(), &forked, &greedy(6));
    assert_eq!(fork.reused(), 20);
    assert_eq!(fork.tokens, cold(&forked, 6));
    let again = answer(&mut live, &prompt(30, 9), &greedy(6));
    assert_eq!((again.reused(), &again.tokens), (29, &held.tokens));
}

#[test]
fn old_sequences_make_room() {
    let engine = engine(limits(64));
    let mut sessions: Vec<_> = (0..4).map(|_| engine.session()).collect();
    for round in 0..2 {
        for (seed, session) in sessions.iter_mut().enumerate() {
            let tokens = prompt(40, seed as u64);
            let got = answer(session, &tokens, &greedy(10));
            assert_eq!(got.tokens, cold(&tokens, 10), "round {round}, session {seed}");
        }
    }
    assert!(engine.usage().unwrap().kv_tokens <= 64);
}

#[test]
fn running_requests_are_never_evicted() {
    let engine = engine(limits(64));
    let (mut first, mut second) = (engine.session(), engine.session());
    let tokens = prompt(40, 1);
    let mut running = first.generate(tokens.clone(), &greedy(10)).unwrap();
    let head: Vec<_> = running.by_ref().take(4).collect();
    let refused = second.generate(prompt(40, 2), &greedy(10)).unwrap().find_map(|e| e.err());
    assert!(matches!(refused, Some(Error::CacheFull { .. })), "{refused:?}");
    let answer = collect(head.into_iter().chain(running));
    assert_eq!(answer.tokens, cold(&tokens, 10));
}

#[test]
fn five_hundred_requests_leave_the_cache_bounded() {
    let engine = engine(Limits { kv_tokens: 128, ..limits(64) });
    for seed in 0..500 {
        answer(&mut engine.session(), &prompt(9, seed), &greedy(1));
    }
    assert!(engine.usage().unwrap().kv_tokens <= 128);
    engine.clear_cache().unwrap();
    assert_eq!(engine.usage().unwrap().kv_tokens, 0);
}

#[test]
fn seeds_repeat_an_answer() {
    let engine = engine(limits(64));
    let tokens = prompt(10, 1);
    let with = |seed| GenerateOptions {
        sampling: Sampling { seed, temperature: Some(3.0), ..Sampling::default() },
        max_tokens: Some(12),
        ..GenerateOptions::default()
    };
    let first = answer(&mut engine.session(), &tokens, &with(None));
    let again = answer(&mut engine.session(), &tokens, &with(Some(first.summary.seed)));
    assert_eq!(again.tokens, first.tokens);
    let other = answer(&mut engine.session(), &tokens, &with(None));
    assert_ne!(other.summary.seed, first.summary.seed);
}

#[test]
fn the_models_own_defaults_are_used_unless_the_user_says_otherwise() {
    let sampling = Sampling::greedy();
    let traits = ModelTraits { sampling, ..ModelTraits::default() };
    let engine = Engine::new(common::executor(limits(64)), traits);
    let tokens = prompt(10, 1);
    let silent = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
    assert_eq!(answer(&mut engine.session(), &tokens, &silent).tokens, cold(&tokens, 8));
    let hot = Sampling { temperature: Some(50.0), ..Sampling::default() };
    let loud = GenerateOptions { sampling: hot, ..silent };
    assert_ne!(answer(&mut engine.session(), &tokens, &loud).tokens, cold(&tokens, 8));
}

#[test]
fn end_tokens_end_the_answer_unless_ignored() {
    let tokens = prompt(10, 1);
    let expected = cold(&tokens, 8);
    let end = expected[5];
    let at = expected.iter().position(|&t| t == end).unwrap();
    let traits = ModelTraits { end_tokens: [end].into(), ..ModelTraits::default() };
    let engine = Engine::new(common::executor(limits(64)), traits);
    let ended = answer(&mut engine.session(), &tokens, &greedy(8));
    assert_eq!(ended.tokens, expected[..at]);
    assert_eq!(ended.summary.reason, FinishReason::EndOfGeneration);
    let ignoring = GenerateOptions { ignore_end: true, ..greedy(8) };
    assert_eq!(answer(&mut engine.session(), &tokens, &ignoring).tokens, expected);
}

#[test]
fn text_without_a_tokenizer_is_an_error() {
    let engine = engine(limits(64));
    let mut session = engine.session();
    assert!(matches!(session.generate("text", &greedy(1)), Err(Error::NoTokenizer)));
    let stop = GenerateOptions { stop: vec!["x".into()], ..greedy(1) };
    assert!(matches!(session.generate(prompt(3, 1), &stop), Err(Error::NoTokenizer)));
}

#[test]
fn an_executor_that_holds_foreign_sequences_is_no_trouble() {
    let mut executor = common::executor(limits(64));
    let batch = baton_graph::Batch::one(SeqId(9), prompt(5, 1), baton_graph::Rows::None);
    executor.forward(&batch).unwrap();
    let engine = Engine::new(executor, ModelTraits::default());
    let tokens = prompt(20, 1);
    assert_eq!(answer(&mut engine.session(), &tokens, &greedy(6)).tokens, cold(&tokens, 6));
}
