//! Many requests over two units: while one answer is written the next prompt is read.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use baton_engine::{
    CancelToken, Engine, Event, FinishReason, GenerateOptions, ModelTraits, Result, Scheduler,
    SchedulerOptions, Speculate,
};
use baton_graph::Limits;
use baton_graph::testing::random_tokens;

use common::{
    Counts, Pass, VOCAB, answer, collect, executor_of, greedy, limits, probed, relay_options,
};

const LIMITS: Limits = Limits { context: 256, kv_tokens: 2048, batch_tokens: 64 };

fn prompt(n: usize, seed: u64) -> Vec<u32> {
    random_tokens(n, VOCAB, seed)
}

fn cold(tokens: &[u32], n: usize) -> Vec<u32> {
    answer(&mut common::engine(limits(256)).session(), tokens, &greedy(n)).tokens
}

fn engine(prefill: &Arc<Counts>, decode: &Arc<Counts>) -> Engine {
    let unit = probed(prefill, decode, relay_options(8, 16));
    Engine::new(executor_of(&unit, LIMITS), ModelTraits::default())
}

fn submit(
    scheduler: &Scheduler,
    tokens: &[u32],
    options: &GenerateOptions,
) -> Receiver<Result<Event>> {
    let (sender, receiver) = channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    scheduler.submit(tokens, options, sink).unwrap();
    receiver
}

fn overlap(a: &Pass, b: &Pass) -> bool {
    a.start < b.end && b.start < a.end
}

#[test]
fn one_prompt_is_read_while_another_answer_is_written() {
    let prefill = Counts::slow(Duration::from_millis(25));
    let decode = Counts::slow(Duration::from_millis(2));
    let options = SchedulerOptions::default();
    let scheduler = Scheduler::new(engine(&prefill, &decode), options).unwrap();
    let (first, second) = (prompt(60, 1), prompt(90, 2));
    let writing = submit(&scheduler, &first, &greedy(120));
    while !matches!(writing.recv().unwrap().unwrap(), Event::Token(_)) {}
    let reading = submit(&scheduler, &second, &greedy(20));
    let second_tokens = collect(reading.into_iter()).tokens;
    collect(writing.into_iter());
    assert_eq!(second_tokens, cold(&second, 20));
    let (read, written) = (prefill.passes(), decode.passes());
    // 59 tokens of the first prompt by 16, 89 of the second: the last of each is the other unit's.
    let sizes: Vec<usize> = read.iter().map(|pass| pass.tokens).collect();
    assert_eq!(sizes, [16, 16, 16, 11, 16, 16, 16, 16, 16, 9]);
    let reading = &read[4..];
    assert!(reading.iter().all(|pass| pass.sequences == reading[0].sequences));
    // While each chunk of the second was read, the first answer came forward by several tokens.
    for chunk in reading {
        let beside = written.iter().filter(|pass| overlap(pass, chunk));
        let others = beside.filter(|pass| pass.sequences == read[0].sequences).count();
        assert!(others >= 2, "{others} steps beside a chunk");
    }
}

#[test]
fn decoding_starts_right_behind_the_last_chunk() {
    let prefill = Counts::slow(Duration::from_millis(10));
    let decode = Counts::slow(Duration::from_millis(1));
    let engine = engine(&prefill, &decode);
    let text = prompt(64, 3);
    let found = answer(&mut engine.session(), &text, &greedy(3));
    assert_eq!(found.tokens, cold(&text, 3));
    let (read, written) = (prefill.passes(), decode.passes());
    assert_eq!((read.len(), written.len()), (4, 3));
    // All blocks but the last were taken over before: what is left is one token.
    assert_eq!(written[0].tokens, 1);
    assert!(written[0].start >= read[3].end);
    assert_eq!(Counts::get(&decode.imported), 63);
    // Chunks follow each other without a gap in which the other unit would have worked.
    assert!(read.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

#[test]
fn every_answer_is_as_if_alone() {
    let (prefill, decode) = (Counts::new(), Counts::new());
    let options = SchedulerOptions { max_running: 6, max_waiting: 64 };
    let scheduler = Scheduler::new(engine(&prefill, &decode), options).unwrap();
    let prompts: Vec<_> = (0..24).map(|i| prompt(1 + 17 * i as usize % 90, i)).collect();
    // Guesses would be evaluated too.
    let plain = GenerateOptions { speculate: Some(Speculate::Off), ..greedy(9) };
    let answers: Vec<_> = prompts.iter().map(|p| submit(&scheduler, p, &plain)).collect();
    for (prompt, events) in prompts.iter().zip(answers) {
        let found = collect(events.into_iter());
        assert_eq!(found.tokens, cold(prompt, 9));
        assert_eq!(found.prefilled() + found.reused(), prompt.len());
    }
    let totals = scheduler.load().totals;
    assert!(Counts::get(&prefill.tokens) > 0 && totals.requests == 24);
    let evaluated = Counts::get(&prefill.tokens) + Counts::get(&decode.tokens);
    assert_eq!(evaluated as u64, totals.prefilled_tokens + totals.generated_tokens - 24);
}

#[test]
fn a_failing_prefill_unit_and_a_small_cache_lose_no_answer() {
    let (prefill, decode) = (Counts::new(), Counts::new());
    prefill.succeed.store(9, std::sync::atomic::Ordering::SeqCst);
    let unit = probed(&prefill, &decode, relay_options(8, 16));
    let limits = Limits { kv_tokens: 256, ..LIMITS };
    let engine = Engine::new(executor_of(&unit, limits), ModelTraits::default());
    let scheduler = Scheduler::new(engine, SchedulerOptions::default()).unwrap();
    let prompts: Vec<_> = (0..8).map(|i| prompt(40 + 5 * i as usize, i)).collect();
    let answers: Vec<_> = prompts.iter().map(|p| submit(&scheduler, p, &greedy(40))).collect();
    for (prompt, events) in prompts.iter().zip(answers) {
        assert_eq!(collect(events.into_iter()).tokens, cold(prompt, 40));
    }
}

#[test]
fn a_request_is_cancelled_while_its_prompt_is_read() {
    let (prefill, decode) = (Counts::slow(Duration::from_millis(20)), Counts::new());
    let options = SchedulerOptions::default();
    let scheduler = Scheduler::new(engine(&prefill, &decode), options).unwrap();
    let cancel = CancelToken::new();
    let options = GenerateOptions { cancel: cancel.clone(), ..greedy(5) };
    let events = submit(&scheduler, &prompt(200, 4), &options);
    let first = events.recv().unwrap().unwrap();
    assert!(matches!(first, Event::Prefill { done: 16, total: 200 }), "{first:?}");
    cancel.cancel();
    let summary = collect(events.into_iter()).summary;
    assert_eq!(summary.reason, FinishReason::Cancelled);
    assert!(summary.metrics.prefilled_tokens < 200);
    // Nothing of it stands in the way of the next.
    let text = prompt(50, 5);
    let next = submit(&scheduler, &text, &greedy(4));
    assert_eq!(collect(next.into_iter()).tokens, cold(&text, 4));
    drop(scheduler);
    assert!(Counts::get(&prefill.tokens) < 200);
}

#[test]
fn an_answer_alone_is_cancelled_while_its_prompt_is_read() {
    let (prefill, decode) = (Counts::slow(Duration::from_millis(400)), Counts::new());
    let engine = engine(&prefill, &decode);
    let mut session = engine.session();
    let cancel = CancelToken::new();
    let options = GenerateOptions { cancel: cancel.clone(), ..greedy(5) };
    let text = prompt(200, 4);
    let events = session.generate(&text[..], &options).unwrap();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        cancel.cancel();
        std::time::Instant::now()
    });
    // Three chunks of thirteen would take as long as the test allows.
    let summary = collect(events).summary;
    let late = canceller.join().unwrap().elapsed();
    assert_eq!(summary.reason, FinishReason::Cancelled);
    assert!(late < Duration::from_millis(200), "{late:?}");
}

#[test]
fn what_is_told_of_a_prompt_is_who_read_it() {
    let (prefill, decode) = (Counts::new(), Counts::new());
    let engine = engine(&prefill, &decode);
    let text = prompt(60, 7);
    let mut session = engine.session();
    let metrics = answer(&mut session, &text, &greedy(3)).summary.metrics;
    assert_eq!((metrics.prefilled_tokens, metrics.handed_over_tokens), (60, 59));
    // The same again, with a little more: too little to be handed over.
    let more = [&text[..], &prompt(4, 8)].concat();
    let metrics = answer(&mut session, &more, &greedy(3)).summary.metrics;
    assert_eq!(metrics.handed_over_tokens, 0, "{metrics:?}");
    // A unit that fails in the middle has done a part.
    prefill.succeed.store(2, std::sync::atomic::Ordering::SeqCst);
    let metrics = answer(&mut session, &prompt(60, 9), &greedy(3)).summary.metrics;
    assert_eq!((metrics.prefilled_tokens, metrics.handed_over_tokens), (60, 32));
    // Among others, too.
    prefill.succeed.store(usize::MAX, std::sync::atomic::Ordering::SeqCst);
    let scheduler = Scheduler::new(engine.clone(), SchedulerOptions::default()).unwrap();
    let both = [10, 11].map(|seed| submit(&scheduler, &prompt(40, seed), &greedy(3)));
    for events in both {
        let metrics = collect(events.into_iter()).summary.metrics;
        assert_eq!((metrics.prefilled_tokens, metrics.handed_over_tokens), (40, 39));
    }
}

#[test]
fn the_time_of_a_prompt_in_the_background_counts_as_its_own() {
    let (prefill, decode) = (Counts::slow(Duration::from_millis(20)), Counts::new());
    let options = SchedulerOptions::default();
    let scheduler = Scheduler::new(engine(&prefill, &decode), options).unwrap();
    let events = submit(&scheduler, &prompt(65, 6), &greedy(2));
    let metrics = collect(events.into_iter()).summary.metrics;
    assert!(metrics.prefill >= Duration::from_millis(80), "{:?}", metrics.prefill);
    assert!(scheduler.load().totals.prefill >= Duration::from_millis(60));
}
