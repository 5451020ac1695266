//! Answers on a unit that finds the best tokens itself, and begins the next pass before it is asked for:
//! they are what they are by all logits, for one answer, for several at once, and across two units.

mod common;

use std::ops::ControlFlow;
use std::sync::mpsc::channel;

use baton_cpu::{Cpu, CpuOptions};
use baton_engine::{
    Engine, GenerateOptions, ModelTraits, RelayUnit, Sampling, Scheduler, SchedulerOptions,
};
use baton_graph::testing::random_tokens;
use baton_graph::{Limits, Unit};

use common::{VOCAB, answer, collect, gpu, greedy, limits, relay_options, sure_executor_of};

fn engine(unit: &dyn Unit, kv_tokens: usize) -> Engine {
    let limits = Limits { kv_tokens, ..limits(200) };
    Engine::new(sure_executor_of(unit, limits, 5), ModelTraits::default())
}

/// The same options, for which all logits are needed: a bias of nothing.
fn by_all_logits(options: &GenerateOptions) -> GenerateOptions {
    let sampling = Sampling { logit_bias: [(0, 0.0)].into(), ..options.sampling.clone() };
    GenerateOptions { sampling, ..options.clone() }
}

fn options() -> Vec<GenerateOptions> {
    let drawn = |temperature, top_k| Sampling {
        temperature: Some(temperature),
        top_k: Some(top_k),
        seed: Some(7),
        ..Sampling::default()
    };
    let all = [
        Sampling::greedy(),
        Sampling { logprobs: Some(3), ..Sampling::greedy() },
        drawn(0.8, 40),
        // So sure that the next pass is mostly under way, and so unsure that it never is.
        drawn(0.2, 64),
        Sampling { top_p: Some(1.0), min_p: Some(0.0), ..drawn(9.0, 5) },
    ];
    all.into_iter().map(|sampling| GenerateOptions { sampling, ..greedy(110) }).collect()
}

#[test]
fn an_answer_is_the_same_by_its_best_tokens_as_by_all_logits() {
    let gpu = gpu();
    let relay = RelayUnit {
        prefill: Box::new(Cpu::new(CpuOptions::default()).unwrap()),
        decode: Box::new(gpu.clone()),
        options: relay_options(8, 16),
    };
    for unit in [&gpu as &dyn Unit, &relay] {
        let (by_best, by_all) = (engine(unit, 400), engine(unit, 400));
        let (mut by_best, mut by_all) = (by_best.session(), by_all.session());
        for (seed, options) in options().into_iter().enumerate() {
            let prompt = random_tokens(20 + 7 * seed, VOCAB, seed as u64);
            let found = answer(&mut by_best, &prompt, &options).tokens;
            let expected = answer(&mut by_all, &prompt, &by_all_logits(&options)).tokens;
            assert_eq!(found, expected, "{} with {options:?}", unit.name());
            // What the cache holds goes on.
            let longer = [&prompt[..], &found[..50], &[3, 4]].concat();
            let found = answer(&mut by_best, &longer, &options);
            let expected = answer(&mut by_all, &longer, &by_all_logits(&options));
            assert_eq!(found.tokens, expected.tokens, "{} with {options:?}", unit.name());
            assert_eq!(found.reused(), expected.reused());
        }
    }
}

#[test]
fn answers_that_come_and_go_are_as_if_alone() {
    let gpu = gpu();
    let engine = engine(&gpu, 1600);
    let scheduler = SchedulerOptions { max_running: 4, max_waiting: 64 };
    let scheduler = Scheduler::new(engine, scheduler).unwrap();
    let requests: Vec<(Vec<u32>, usize)> = (0..8)
        .map(|i| (random_tokens(10 + 5 * i, VOCAB, 30 + i as u64), 12 + 17 * (i % 4)))
        .collect();
    let submit = |(prompt, n): &(Vec<u32>, usize)| {
        let (sender, receiver) = channel();
        let sink = move |event| match sender.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        scheduler.submit(&prompt[..], &greedy(*n), sink).unwrap();
        receiver
    };
    let answers: Vec<_> = requests.iter().map(submit).collect();
    for ((prompt, n), events) in requests.iter().zip(answers) {
        let alone = self::engine(&gpu, 400);
        let expected = answer(&mut alone.session(), prompt, &by_all_logits(&greedy(*n))).tokens;
        assert_eq!(collect(events.into_iter()).tokens, expected);
    }
}
