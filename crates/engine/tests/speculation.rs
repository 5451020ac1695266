//! Guesses change the speed of an answer and nothing else.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use baton_cpu::{Cpu, CpuOptions};
use baton_engine::{
    CancelToken, Engine, Error, Event, FinishReason, GenerateOptions, Grammar, Metrics,
    ModelTraits, Sampling, Scheduler, SchedulerOptions, Session, Speculate,
};
use baton_graph::reference::Reference;
use baton_graph::testing::random_tokens;
use baton_graph::{Limits, Unit};

use common::{END, Paced, VOCAB, greedy, limits, sure_executor_of, tokenizer};

fn traits() -> ModelTraits {
    let name = "tiny".into();
    ModelTraits { name, tokenizer: Some(Arc::new(tokenizer())), ..ModelTraits::default() }
}

/// An engine for which guesses pay if they are right, and what counts its steps.
fn paced(limits: Limits) -> (Engine, Arc<AtomicUsize>) {
    ending(limits, &[])
}

/// The same with tokens that end an answer.
fn ending(limits: Limits, ends: &[u32]) -> (Engine, Arc<AtomicUsize>) {
    let steps = Arc::default();
    let executor = Paced::boxed(sure_executor_of(&Reference, limits, 5), &steps);
    let end_tokens = ends.iter().copied().collect();
    (Engine::new(executor, ModelTraits { end_tokens, ..traits() }), steps)
}

/// One with a draft model of other or the same weights, and what counts the draft model's steps.
fn drafted(limits: Limits, seed: u64, pace: Duration) -> (Engine, Arc<AtomicUsize>) {
    let steps: Arc<AtomicUsize> = Arc::default();
    let inner = sure_executor_of(&Reference, limits, seed);
    let draft = Paced { inner, step: pace, token: Duration::ZERO, steps: Arc::clone(&steps) };
    let draft = Engine::new(Box::new(draft), traits());
    let executor = Paced::boxed(sure_executor_of(&Reference, limits, 5), &Arc::default());
    (Engine::with_draft(executor, traits(), draft).unwrap(), steps)
}

/// Tokens that repeat themselves, with changes.
fn prompt(seed: u64) -> Vec<u32> {
    let part = random_tokens(12, VOCAB - 10, seed);
    [&part[..], &part[..7], &part[3..], &part[..5]].concat()
}

/// What an answer tells from its first token on, and what it leaves in the cache.
#[derive(Debug, PartialEq)]
struct Told {
    events: Vec<Event>,
    reason: FinishReason,
    cached: Vec<u32>,
}

fn tell(session: &mut Session, tokens: &[u32], options: &GenerateOptions) -> (Told, Metrics) {
    let mut events: Vec<Event> =
        session.generate(tokens, options).unwrap().map(Result::unwrap).collect();
    let Some(Event::Done(summary)) = events.pop() else { panic!("no summary") };
    events.retain(|event| !matches!(event, Event::Prefill { .. }));
    let cached = session.tokens().unwrap();
    (Told { events, reason: summary.reason, cached }, summary.metrics)
}

fn token(event: &Event) -> Option<u32> {
    match event {
        Event::Token(token) => Some(token.id),
        _ => None,
    }
}

fn with(speculate: Speculate, options: &GenerateOptions) -> GenerateOptions {
    GenerateOptions { speculate: Some(speculate), ..options.clone() }
}

/// Asks with guesses and without; the numbers of the answer with guesses.
fn same(engine: &Engine, tokens: &[u32], options: &GenerateOptions) -> Metrics {
    let off = with(Speculate::Off, options);
    let (plain, metrics) = tell(&mut engine.session(), tokens, &off);
    assert_eq!((metrics.guessed_tokens, metrics.right_guesses), (0, 0));
    let (guessed, metrics) = tell(&mut engine.session(), tokens, options);
    assert_eq!(guessed, plain, "{options:?}");
    assert!(metrics.right_guesses <= metrics.guessed_tokens);
    metrics
}

fn samplings() -> Vec<Sampling> {
    let warm = |seed| Sampling {
        temperature: Some(0.9),
        top_k: Some(0),
        seed: Some(seed),
        ..Sampling::default()
    };
    vec![
        Sampling::greedy(),
        Sampling { logprobs: Some(3), ..warm(1) },
        warm(2),
        Sampling { repeat_penalty: Some(1.3), repeat_last_n: Some(20), ..warm(3) },
        Sampling { frequency_penalty: Some(0.2), logit_bias: [(7, 2.0)].into(), ..warm(4) },
        Sampling { presence_penalty: Some(0.4), ..Sampling::greedy() },
    ]
}

#[test]
fn an_answer_is_the_same_with_guesses_as_without() {
    let (engine, steps) = paced(Limits { kv_tokens: 512, ..limits(160) });
    let mut sum = Metrics::default();
    for sampling in samplings() {
        for seed in 0..3 {
            let options = GenerateOptions { sampling: sampling.clone(), ..greedy(60) };
            let metrics = same(&engine, &prompt(seed), &options);
            sum.guessed_tokens += metrics.guessed_tokens;
            sum.right_guesses += metrics.right_guesses;
            assert_eq!(metrics.generated_tokens, 60);
            assert_eq!(metrics.generated_tokens - 1, metrics.decode_steps + metrics.right_guesses);
        }
    }
    assert!(sum.right_guesses > 40, "{sum:?}");
    assert!(sum.right_guesses < sum.guessed_tokens, "wrong ones are part of the test: {sum:?}");
    // What is counted is what was computed.
    engine.clear_cache().unwrap();
    let before = steps.load(Ordering::Relaxed);
    let (_, metrics) = tell(&mut engine.session(), &random_tokens(9, 90, 4), &greedy(60));
    let taken = steps.load(Ordering::Relaxed) - before;
    assert_eq!(taken, 1 + metrics.decode_steps);
    assert!(taken < 55 && metrics.tokens_per_step().unwrap() > 1.1, "{metrics:?}");
}

#[test]
fn the_cpu_evaluates_guesses_as_it_does_single_tokens() {
    let cpu = Cpu::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let limits = Limits { kv_tokens: 512, ..limits(160) };
    let executor = sure_executor_of(&cpu as &dyn Unit, limits, 5);
    let engine = Engine::new(Paced::boxed(executor, &Arc::default()), traits());
    let all = samplings().into_iter().map(|sampling| {
        same(&engine, &prompt(1), &GenerateOptions { sampling, ..greedy(60) }).right_guesses
    });
    assert!(all.sum::<usize>() > 10);
}

#[test]
fn a_grammar_holds_the_answer_to_the_same_words() {
    let (engine, _) = ending(limits(160), &[END]);
    let grammar = Some(Grammar::Regex("(ab|cd|efg ){20}".into()));
    let mut right = 0;
    for sampling in samplings() {
        let options = GenerateOptions { sampling, grammar: grammar.clone(), ..greedy(50) };
        right += same(&engine, &prompt(3), &options).right_guesses;
    }
    assert!(right > 20, "{right}");
}

#[test]
fn an_answer_ends_where_it_would_have_ended() {
    let (engine, _) = paced(limits(160));
    let tokens = prompt(1);
    let (all, _) = tell(&mut engine.session(), &tokens, &greedy(24));
    let ids: Vec<u32> = all.events.iter().filter_map(token).collect();
    let mut right = 0;
    for n in (1..24).step_by(2) {
        // At a number of tokens.
        right += same(&engine, &tokens, &greedy(n)).right_guesses;
        // At a token that ends it, which the prompt may hold too.
        let (ended, _) = ending(limits(160), &ids[n..=n]);
        right += same(&ended, &tokens, &greedy(24)).right_guesses;
        let ignoring = GenerateOptions { ignore_end: true, ..greedy(24) };
        right += same(&ended, &tokens, &ignoring).right_guesses;
        // At a text.
        let stop = vec![tokenizer().decode(&ids[n..(n + 2).min(24)], false)];
        if !stop[0].is_empty() && !stop[0].contains('\u{FFFD}') {
            right += same(&engine, &tokens, &GenerateOptions { stop, ..greedy(24) }).right_guesses;
        }
    }
    assert!(right > 30, "{right}");
    // The context ends it too.
    let unlimited = GenerateOptions { max_tokens: None, ..greedy(0) };
    assert!(same(&engine, &tokens, &unlimited).right_guesses > 0);
}

#[test]
fn what_was_guessed_in_vain_leaves_no_trace() {
    let (engine, _) = paced(Limits { kv_tokens: 1024, ..limits(160) });
    let tokens = prompt(2);
    for stop_at in (0..40).step_by(3) {
        let mut left = Vec::new();
        for speculate in [Speculate::Off, Speculate::Auto] {
            for cancels in [true, false] {
                let options = with(speculate, &greedy(40));
                let options = GenerateOptions { cancel: CancelToken::new(), ..options };
                engine.clear_cache().unwrap();
                let mut session = engine.session();
                let mut events = session.generate(&tokens[..], &options).unwrap();
                let mut seen: Vec<_> = events.by_ref().take(stop_at).map(Result::unwrap).collect();
                if cancels {
                    options.cancel.cancel();
                    seen.extend(events.by_ref().map(Result::unwrap));
                    let Some(Event::Done(summary)) = seen.pop() else { panic!("no summary") };
                    assert_eq!(summary.reason, FinishReason::Cancelled);
                }
                drop(events);
                left.push((seen, session.tokens().unwrap()));
            }
        }
        // Cancelled and dropped, without guesses and with.
        let seen = |at: usize| &left[at].0;
        assert_eq!((seen(0), seen(1)), (seen(2), seen(3)), "stopped at {stop_at}");
        // The last token is there already if it was guessed, and nothing behind it.
        for (seen, cached) in &left {
            let chosen = seen.iter().filter_map(token);
            let all: Vec<u32> = tokens.iter().copied().chain(chosen).collect();
            assert!(all.starts_with(cached), "stopped at {stop_at}");
        }
        let least = |at: usize| left[at].1.len() <= left[at + 2].1.len();
        assert!(least(0) && least(1), "stopped at {stop_at}");
    }
    // The next turn finds as much.
    let mut reused = Vec::new();
    for speculate in [Speculate::Off, Speculate::Auto] {
        engine.clear_cache().unwrap();
        let mut session = engine.session();
        let options = with(speculate, &greedy(30));
        let (first, _) = tell(&mut session, &tokens, &options);
        let next = [&first.cached[..], &prompt(6)].concat();
        let (second, metrics) = tell(&mut session, &next, &options);
        reused.push((metrics.reused_tokens, second));
    }
    assert_eq!(reused[0], reused[1]);
}

#[test]
fn a_cache_without_room_for_guesses_is_no_trouble() {
    let told = |speculate| {
        let (engine, _) = paced(limits(96));
        let (mut first, mut second) = (engine.session(), engine.session());
        let mut held = first.generate(prompt(1), &greedy(9)).unwrap();
        held.next().unwrap().unwrap();
        // Between the two the cache is full, sooner than with guesses behind.
        let options = with(speculate, &greedy(90));
        let mut events = second.generate(&random_tokens(5, 90, 4)[..], &options).unwrap();
        let all: Vec<Event> = events.by_ref().map_while(Result::ok).collect();
        all
    };
    let plain = told(Speculate::Off);
    assert!(plain.len() > 20 && !matches!(plain.last(), Some(Event::Done(_))));
    assert_eq!(told(Speculate::Auto), plain);
}

#[test]
fn a_scheduler_guesses_for_one_alone_and_changes_nothing_for_many() {
    let (engine, _) = paced(Limits { kv_tokens: 2048, ..limits(160) });
    let prompts: Vec<_> = (0..4).map(prompt).collect();
    let alone: Vec<Told> = prompts
        .iter()
        .map(|p| tell(&mut engine.session(), p, &with(Speculate::Off, &greedy(50))).0)
        .collect();
    engine.clear_cache().unwrap();
    let scheduler = Scheduler::new(engine, SchedulerOptions::default()).unwrap();
    let ask = |prompt: &[u32]| {
        let (sender, receiver) = channel();
        let sink = move |event| {
            sender.send(event).map_or(ControlFlow::Break(()), |()| ControlFlow::Continue(()))
        };
        scheduler.submit(prompt, &greedy(50), sink).unwrap();
        receiver
    };
    let check = |events: Vec<Event>, expected: &Told| {
        let Some((Event::Done(summary), events)) = events.split_last() else {
            panic!("no summary")
        };
        let told = events.iter().filter(|event| !matches!(event, Event::Prefill { .. }));
        assert!(told.eq(&expected.events));
        summary.metrics.right_guesses
    };
    let mut right = 0;
    for (prompt, expected) in prompts.iter().zip(&alone) {
        right += check(ask(prompt).iter().map(Result::unwrap).collect(), expected);
    }
    // How many depends on what steps take on a busy machine.
    assert!(right > 0, "no guess was right");
    let together: Vec<_> = prompts.iter().map(|prompt| ask(prompt)).collect();
    for (events, expected) in together.into_iter().zip(&alone) {
        check(events.iter().map(Result::unwrap).collect(), expected);
    }
}

#[test]
fn a_draft_model_that_is_the_model_itself_is_always_right() {
    let (engine, _) = drafted(limits(160), 5, Duration::ZERO);
    let draft = with(Speculate::Draft, &greedy(80));
    let metrics = same(&engine, &random_tokens(30, 90, 4), &draft);
    assert!(metrics.acceptance().unwrap() > 0.95, "{metrics:?}");
    assert!(metrics.tokens_per_step().unwrap() > 1.2, "{metrics:?}");
    // It goes on where it stopped in the last turn.
    let mut session = engine.session();
    let (first, _) = tell(&mut session, &prompt(4), &draft);
    let (_, metrics) = tell(&mut session, &[&first.cached[..20], &[3]].concat(), &draft);
    assert!(metrics.acceptance().unwrap() > 0.95, "{metrics:?}");
    // Random answers, of which it guesses the likely tokens.
    let mut right = 0;
    for sampling in samplings() {
        for speculate in [Speculate::Draft, Speculate::Auto] {
            let options = GenerateOptions { sampling: sampling.clone(), ..with(speculate, &draft) };
            right += same(&engine, &prompt(2), &options).right_guesses;
        }
    }
    assert!(right > 20, "{right}");
}

#[test]
fn a_draft_model_that_is_mostly_wrong_changes_nothing_and_is_asked_less() {
    let (engine, steps) = drafted(limits(400), 6, Duration::from_millis(1));
    let draft = with(Speculate::Draft, &greedy(300));
    let metrics = same(&engine, &prompt(1), &draft);
    assert!(metrics.acceptance().is_none_or(|share| share < 0.5), "{metrics:?}");
    let asked = steps.load(Ordering::Relaxed);
    assert!(asked < 150, "{asked} steps of the draft model for 300 tokens");
}

#[test]
fn a_draft_model_that_is_too_slow_is_left_alone() {
    let (engine, steps) = drafted(limits(400), 5, Duration::from_millis(12));
    let draft = with(Speculate::Draft, &greedy(300));
    let metrics = same(&engine, &prompt(1), &draft);
    assert!(metrics.guessed_tokens < 60, "{metrics:?}");
    let asked = steps.load(Ordering::Relaxed);
    assert!(asked < 60, "{asked} steps of the draft model for 300 tokens");
}

#[test]
fn a_draft_model_with_less_context_guesses_as_far_as_it_reads() {
    let draft = Engine::new(sure_executor_of(&Reference, limits(64), 5), traits());
    let executor = Paced::boxed(sure_executor_of(&Reference, limits(160), 5), &Arc::default());
    let engine = Engine::with_draft(executor, traits(), draft).unwrap();
    let options = with(Speculate::Draft, &greedy(100));
    let metrics = same(&engine, &prompt(1), &options);
    assert!(metrics.right_guesses > 0 && metrics.decode_steps > 60, "{metrics:?}");
    // A prompt that it cannot read at all.
    let long = random_tokens(90, 90, 1);
    assert_eq!(same(&engine, &long, &with(Speculate::Draft, &greedy(20))).guessed_tokens, 0);
}

#[test]
fn one_that_reads_a_long_prompt_in_parts_still_guesses_right() {
    let (engine, _) = drafted(Limits { batch_tokens: 64, ..limits(700) }, 5, Duration::ZERO);
    let options = with(Speculate::Draft, &greedy(40));
    let metrics = same(&engine, &random_tokens(600, 90, 1), &options);
    assert!(metrics.right_guesses > 2 && metrics.acceptance().unwrap() > 0.95, "{metrics:?}");
}

#[test]
fn a_draft_model_needs_the_same_vocabulary() {
    let with = |theirs: ModelTraits| {
        let draft = Engine::new(sure_executor_of(&Reference, limits(64), 5), theirs);
        Engine::with_draft(sure_executor_of(&Reference, limits(64), 5), traits(), draft)
    };
    assert!(with(traits()).is_ok());
    let other = common::tokenizer_with("zz");
    let named = ModelTraits { name: "other".into(), ..traits() };
    let error = with(ModelTraits { tokenizer: Some(Arc::new(other)), ..named }).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Draft { .. }), "{text}");
    assert!(text.contains("other") && text.contains("\"zz\"") && text.contains("260"), "{text}");
    let none = with(ModelTraits { tokenizer: None, ..traits() });
    assert!(matches!(none, Err(Error::NoTokenizer)));
}

#[test]
fn a_draft_model_that_is_not_there_cannot_be_asked() {
    let (engine, _) = paced(limits(64));
    let mut session = engine.session();
    let error = session.generate(prompt(1), &with(Speculate::Draft, &greedy(1))).unwrap_err();
    assert!(matches!(error, Error::Option { name: "speculate", .. }), "{error}");
}
