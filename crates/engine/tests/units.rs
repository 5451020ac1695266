//! The same answers on every unit, whatever the cache holds and however a prompt is cut.

mod common;

use baton_cpu::{Cpu, CpuOptions};
use baton_engine::{Engine, ModelTraits};
use baton_graph::reference::Reference;
use baton_graph::testing::random_tokens;
use baton_graph::{Limits, Unit};

use common::{VOCAB, answer, executor_of, greedy, limits};

fn units() -> Vec<Box<dyn Unit>> {
    let cpu = CpuOptions { threads: Some(2), ..CpuOptions::default() };
    vec![Box::new(Reference), Box::new(Cpu::new(cpu).unwrap())]
}

fn engine(unit: &dyn Unit, limits: Limits) -> Engine {
    Engine::new(executor_of(unit, limits), ModelTraits::default())
}

#[test]
fn greedy_does_not_depend_on_what_the_cache_holds() {
    for unit in units() {
        let name = unit.name();
        let cold = |tokens: &[u32]| {
            let engine = engine(&*unit, limits(128));
            answer(&mut engine.session(), tokens, &greedy(12)).tokens
        };
        let engine = engine(&*unit, limits(128));
        let mut session = engine.session();
        let base = random_tokens(50, VOCAB, 1);
        let first = answer(&mut session, &base, &greedy(12));
        assert_eq!(first.tokens, cold(&base), "{name}: cold");
        assert_eq!(answer(&mut session, &base, &greedy(12)).tokens, first.tokens, "{name}: warm");
        let longer = [&base[..], &first.tokens, &random_tokens(6, VOCAB, 2)].concat();
        let continued = answer(&mut session, &longer, &greedy(12));
        assert_eq!(continued.tokens, cold(&longer), "{name}: continued");
        // Further back than the window of the sliding layers is long.
        for n in [44, 17, 3] {
            let cut = answer(&mut session, &base[..n], &greedy(12));
            assert_eq!(cut.tokens, cold(&base[..n]), "{name}: cut to {n}");
            assert_eq!(cut.reused(), n - 1);
        }
        let fork = [&base[..30], &random_tokens(9, VOCAB, 3)].concat();
        let mut other = engine.session();
        assert_eq!(answer(&mut other, &fork, &greedy(12)).tokens, cold(&fork), "{name}: forked");
    }
}

#[test]
fn greedy_does_not_depend_on_the_batch() {
    for unit in units() {
        let tokens = random_tokens(70, VOCAB, 4);
        let with = |batch_tokens| {
            let engine = engine(&*unit, Limits { batch_tokens, ..limits(128) });
            answer(&mut engine.session(), &tokens, &greedy(12)).tokens
        };
        let expected = with(128);
        for batch_tokens in [1, 7, 31, 32, 33] {
            assert_eq!(with(batch_tokens), expected, "{} by {batch_tokens}", unit.name());
        }
    }
}

#[test]
fn greedy_does_not_depend_on_neighbours() {
    for unit in units() {
        let prompts: Vec<Vec<u32>> = (0..3).map(|seed| random_tokens(40, VOCAB, seed)).collect();
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|tokens| {
                let engine = engine(&*unit, limits(64));
                answer(&mut engine.session(), tokens, &greedy(10)).tokens
            })
            .collect();
        let engine = engine(&*unit, Limits { kv_tokens: 256, ..limits(64) });
        let together: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let start = |tokens| {
                let engine = engine.clone();
                scope.spawn(move || answer(&mut engine.session(), tokens, &greedy(10)).tokens)
            };
            let threads: Vec<_> = prompts.iter().map(|tokens| start(tokens)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(together, alone, "{}", unit.name());
    }
}
