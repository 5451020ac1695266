//! Many answers at once are the same as each alone, whatever happens to the others.

mod common;

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};

use baton_cpu::{Cpu, CpuOptions};
use baton_engine::{
    CancelToken, Engine, Error, Event, FinishReason, GenerateOptions, ModelTraits, Result,
    Scheduler, SchedulerOptions,
};
use baton_graph::Limits;
use baton_graph::testing::random_tokens;

use common::{VOCAB, answer, collect, engine, executor_of, greedy, limits};

type Events = Receiver<Result<Event>>;

fn prompt(n: usize, seed: u64) -> Vec<u32> {
    random_tokens(n, VOCAB, seed)
}

fn cold(tokens: &[u32], n: usize) -> Vec<u32> {
    answer(&mut engine(limits(128)).session(), tokens, &greedy(n)).tokens
}

fn scheduler(limits: Limits, max_running: usize, max_waiting: usize) -> Scheduler {
    let options = SchedulerOptions { max_running, max_waiting };
    Scheduler::new(engine(limits), options).unwrap()
}

fn to(sender: Sender<Result<Event>>) -> impl FnMut(Result<Event>) -> ControlFlow<()> {
    move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

fn submit(scheduler: &Scheduler, tokens: &[u32], options: &GenerateOptions) -> Events {
    let (sender, receiver) = channel();
    assert_eq!(scheduler.submit(tokens, options, to(sender)).unwrap(), tokens.len());
    receiver
}

fn tokens_of(events: Events) -> Vec<u32> {
    collect(events.into_iter()).tokens
}

/// Submits a request that stops the scheduler's thread at its first event, until the second value is
/// dropped: what is submitted meanwhile meets in one step.
fn hold(scheduler: &Scheduler) -> (Events, Sender<()>) {
    let (sender, receiver) = channel();
    let (go, wait) = channel::<()>();
    let (reached, first) = channel();
    let mut tell = to(sender);
    let sink = move |event| {
        let _ = reached.send(());
        let _ = wait.recv();
        tell(event)
    };
    scheduler.submit(prompt(3, 99), &greedy(1), sink).unwrap();
    first.recv().unwrap();
    (receiver, go)
}

#[test]
fn every_answer_is_as_if_alone() {
    let scheduler = scheduler(Limits { kv_tokens: 1024, ..limits(128) }, 8, 64);
    let (held, go) = hold(&scheduler);
    let prompts: Vec<_> = (0..20).map(|i| prompt(1 + 7 * i as usize % 60, i)).collect();
    let answers: Vec<_> = prompts.iter().map(|p| submit(&scheduler, p, &greedy(9))).collect();
    drop((held, go));
    for (prompt, events) in prompts.iter().zip(answers) {
        assert_eq!(tokens_of(events), cold(prompt, 9));
    }
    let load = scheduler.load();
    assert_eq!(load.totals.requests, 21);
    assert!(load.totals.busy_slots > 3 * load.totals.steps, "{load:?}");
}

#[test]
fn the_cpu_gives_the_same_answers_in_any_company() {
    let limits = Limits { kv_tokens: 1024, ..limits(128) };
    let cpu = || {
        let cpu = Cpu::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
        Engine::new(executor_of(&cpu, limits), ModelTraits::default())
    };
    let scheduler = Scheduler::new(cpu(), SchedulerOptions::default()).unwrap();
    let (held, go) = hold(&scheduler);
    let prompts: Vec<_> = (0..12).map(|i| prompt(2 + 5 * i as usize, i)).collect();
    let answers: Vec<_> = prompts.iter().map(|p| submit(&scheduler, p, &greedy(20))).collect();
    drop((held, go));
    for (prompt, events) in prompts.iter().zip(answers) {
        let alone = answer(&mut cpu().session(), prompt, &greedy(20)).tokens;
        assert_eq!(tokens_of(events), alone);
    }
}

#[test]
fn a_cache_too_small_for_all_delays_but_loses_nothing() {
    let scheduler = scheduler(limits(96), 6, 64);
    let (held, go) = hold(&scheduler);
    let prompts: Vec<_> = (0..6).map(|i| prompt(20 + i as usize, i)).collect();
    let answers: Vec<_> = prompts.iter().map(|p| submit(&scheduler, p, &greedy(40))).collect();
    drop((held, go));
    for (prompt, events) in prompts.iter().zip(answers) {
        assert_eq!(tokens_of(events), cold(prompt, 40));
    }
}

#[test]
fn a_shared_beginning_is_evaluated_once() {
    let scheduler = scheduler(Limits { kv_tokens: 1024, ..limits(128) }, 8, 64);
    let (held, go) = hold(&scheduler);
    let beginning = prompt(64, 1);
    let prompts: Vec<Vec<u32>> =
        (0..5).map(|i| [beginning.clone(), prompt(6, 10 + i)].concat()).collect();
    let answers: Vec<_> = prompts.iter().map(|p| submit(&scheduler, p, &greedy(4))).collect();
    drop((held, go));
    for (prompt, events) in prompts.iter().zip(answers) {
        assert_eq!(tokens_of(events), cold(prompt, 4));
    }
    let totals = scheduler.load().totals;
    assert_eq!(totals.prefilled_tokens, 3 + 64 + 5 * 6);
    assert_eq!(totals.reused_tokens, 4 * 64);
}

#[test]
fn who_does_not_listen_is_dropped_and_the_others_go_on() {
    let scheduler = scheduler(Limits { kv_tokens: 1024, ..limits(128) }, 8, 64);
    let (held, go) = hold(&scheduler);
    let (gone, stays) = (prompt(10, 1), prompt(11, 2));
    drop(submit(&scheduler, &gone, &greedy(100)));
    let events = submit(&scheduler, &stays, &greedy(8));
    drop((held, go));
    assert_eq!(tokens_of(events), cold(&stays, 8));
    assert!(scheduler.load().totals.generated_tokens < 20);
}

#[test]
fn a_request_is_cancelled_while_it_waits_and_while_it_runs() {
    let scheduler = scheduler(limits(128), 1, 64);
    let running = CancelToken::new();
    let options = GenerateOptions { cancel: running.clone(), ..greedy(100) };
    let first = submit(&scheduler, &prompt(5, 1), &options);
    while !matches!(first.recv().unwrap().unwrap(), Event::Token(_)) {}
    let waiting = CancelToken::new();
    let options = GenerateOptions { cancel: waiting.clone(), ..greedy(100) };
    let second = submit(&scheduler, &prompt(6, 2), &options);
    waiting.cancel();
    let summary = collect(second.into_iter()).summary;
    assert_eq!(summary.reason, FinishReason::Cancelled);
    assert_eq!(summary.metrics.prefilled_tokens, 0);
    running.cancel();
    assert_eq!(collect(first.into_iter()).summary.reason, FinishReason::Cancelled);
}

#[test]
fn too_many_are_refused() {
    let scheduler = scheduler(limits(128), 1, 2);
    let (held, go) = hold(&scheduler);
    let (a, b) = (prompt(5, 1), prompt(6, 2));
    let waiting = [submit(&scheduler, &a, &greedy(2)), submit(&scheduler, &b, &greedy(2))];
    let refused = scheduler.submit(a.clone(), &greedy(2), |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::Busy { waiting: 2 })));
    assert_eq!(scheduler.load().waiting, 2);
    drop((held, go));
    for (events, prompt) in waiting.into_iter().zip([a, b]) {
        assert_eq!(tokens_of(events), cold(&prompt, 2));
    }
    assert!(scheduler.submit(prompt(5, 1), &greedy(2), |_| ControlFlow::Continue(())).is_ok());
}

#[test]
fn one_that_cannot_be_evaluated_fails_alone() {
    let scheduler = scheduler(Limits { kv_tokens: 1024, ..limits(128) }, 8, 64);
    let (held, go) = hold(&scheduler);
    let good = prompt(9, 1);
    let bad = submit(&scheduler, &[1, 2, VOCAB as u32], &greedy(3));
    let events = submit(&scheduler, &good, &greedy(5));
    drop((held, go));
    assert_eq!(tokens_of(events), cold(&good, 5));
    let error = bad.into_iter().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Exec(_)), "{error}");
}

#[test]
fn dropping_it_ends_what_is_left() {
    let scheduler = scheduler(limits(128), 1, 64);
    let running = submit(&scheduler, &prompt(5, 1), &greedy(100));
    let waiting = submit(&scheduler, &prompt(6, 2), &greedy(100));
    running.recv().unwrap().unwrap();
    drop(scheduler);
    for events in [running, waiting] {
        assert_eq!(collect(events.into_iter()).summary.reason, FinishReason::Cancelled);
    }
}
