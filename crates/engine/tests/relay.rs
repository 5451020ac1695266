//! Two units as one: the same answers as of either alone, whatever fails on the way.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_cpu::{Cpu, CpuOptions, Isa};
use baton_engine::{Engine, ModelTraits, RelayOptions, RelayUnit};
use baton_graph::reference::Reference;
use baton_graph::testing::conformance::{self, Tolerance};
use baton_graph::testing::random_tokens;
use baton_graph::{Batch, Executor, KvType, Limits, Readiness, Rows, SeqId, Span, Unit};

use common::{Counts, VOCAB, answer, executor_of, greedy, limits, probed, relay_options};

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);
const C: SeqId = SeqId(3);

fn cpu() -> Box<dyn Unit> {
    Box::new(Cpu::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap())
}

fn portable() -> Box<dyn Unit> {
    let (threads, isa) = (Some(1), Some(Isa::Portable));
    Box::new(Cpu::new(CpuOptions { threads, isa, ..CpuOptions::default() }).unwrap())
}

fn reference() -> Box<dyn Unit> {
    Box::new(Reference)
}

fn relay(prefill: Box<dyn Unit>, decode: Box<dyn Unit>, options: RelayOptions) -> RelayUnit {
    RelayUnit { prefill, decode, options }
}

fn engine(unit: &dyn Unit, limits: Limits) -> Engine {
    Engine::new(executor_of(unit, limits), ModelTraits::default())
}

/// Both ways round, every pair of units that there is.
fn pairs() -> Vec<RelayUnit> {
    let units: [fn() -> Box<dyn Unit>; 3] = [cpu, portable, reference];
    let mut pairs = Vec::new();
    for (i, prefill) in units.iter().enumerate() {
        for (j, decode) in units.iter().enumerate() {
            if i != j {
                pairs.push(relay(prefill(), decode(), relay_options(4, 5 + i)));
            }
        }
    }
    pairs
}

#[test]
fn a_relay_is_a_unit_like_any_other() {
    let same = Tolerance::SAME;
    for crossover in [1, 40] {
        let twice = relay(cpu(), cpu(), relay_options(crossover, 33));
        conformance::models(&twice, Tolerance::F32, Tolerance::SAME);
        conformance::caches(&twice, Tolerance::F32, Tolerance::SAME);
        conformance::nonsense(&twice);
        conformance::failures(&twice, same);
        conformance::failures(&relay(reference(), cpu(), relay_options(crossover, 64)), same);
        conformance::failures(&relay(portable(), reference(), relay_options(crossover, 7)), same);
    }
}

#[test]
fn every_pair_of_units_answers_as_each_alone() {
    for pair in pairs() {
        let names = format!("{} then {}", pair.prefill.name(), pair.decode.name());
        for seed in 0..3 {
            let prompt = random_tokens(40 + seed as usize, VOCAB, seed);
            let of = |unit: &dyn Unit| {
                let engine = engine(unit, limits(96));
                answer(&mut engine.session(), &prompt, &greedy(24)).tokens
            };
            let found = of(&pair);
            assert_eq!(found, of(&*pair.prefill), "{names}: the prefill unit alone");
            assert_eq!(found, of(&*pair.decode), "{names}: the decode unit alone");
        }
    }
}

#[test]
fn a_conversation_goes_back_and_forth() {
    for pair in pairs() {
        let engine = engine(&pair, limits(256));
        let mut session = engine.session();
        let mut text = random_tokens(30, VOCAB, 1);
        for turn in 0..4 {
            let found = answer(&mut session, &text, &greedy(10)).tokens;
            let alone = self::engine(&*pair.decode, limits(256));
            let expected = answer(&mut alone.session(), &text, &greedy(10)).tokens;
            assert_eq!(found, expected, "turn {turn}");
            text.extend(found);
            text.extend(random_tokens(3 + 9 * (turn % 2), VOCAB, 2 + turn as u64));
        }
    }
}

fn forward(executor: &mut dyn Executor, seq: SeqId, tokens: &[u32], rows: Rows) -> Vec<f32> {
    executor.forward(&Batch::one(seq, tokens.to_vec(), rows)).unwrap().values
}

/// The logits of the last token, computed on one unit.
fn alone(tokens: &[u32]) -> Vec<f32> {
    let mut executor = executor_of(&Reference, Limits { batch_tokens: 256, ..limits(256) });
    forward(&mut *executor, A, tokens, Rows::Last)
}

fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 5e-3, "off by {worst}");
}

fn wide() -> Limits {
    Limits { context: 256, kv_tokens: 1024, batch_tokens: 128 }
}

#[test]
fn only_what_is_missing_moves() {
    let (prefill, decode) = (Counts::new(), Counts::new());
    let mut relay = executor_of(&probed(&prefill, &decode, relay_options(8, 16)), wide());
    let text = random_tokens(120, VOCAB, 3);
    near(&forward(&mut *relay, A, &text[..50], Rows::Last), &alone(&text[..50]));
    let get = Counts::get;
    assert_eq!((get(&prefill.tokens), get(&decode.tokens)), (49, 1));
    assert_eq!((get(&prefill.exported), get(&decode.imported)), (49, 49));
    for at in 50..60 {
        forward(&mut *relay, A, &text[at..=at], Rows::Last);
    }
    assert_eq!((get(&decode.tokens), get(&prefill.imported)), (11, 0));
    // Few new tokens stay where they are, many are worth the way.
    near(&forward(&mut *relay, A, &text[60..65], Rows::Last), &alone(&text[..65]));
    assert_eq!((get(&prefill.tokens), get(&decode.tokens)), (49, 16));
    near(&forward(&mut *relay, A, &text[65..101], Rows::Last), &alone(&text[..101]));
    assert_eq!((get(&prefill.imported), get(&decode.exported)), (65 - 49, 65 - 49));
    assert_eq!((get(&prefill.tokens), get(&decode.tokens)), (49 + 35, 17));
    // A shorter one goes on from what both have.
    relay.truncate(A, 30).unwrap();
    near(&forward(&mut *relay, A, &text[30..50], Rows::Last), &alone(&text[..50]));
    assert_eq!((get(&prefill.tokens), get(&prefill.imported)), (49 + 35 + 19, 16));
    // Of a copy nothing moves but what is new.
    relay.copy(A, B, 40).unwrap();
    near(&forward(&mut *relay, B, &text[40..60], Rows::Last), &alone(&text[..60]));
    assert_eq!((get(&prefill.tokens), get(&prefill.imported)), (49 + 35 + 19 + 19, 16));
    // What was handed over is known token by token: 0..49 and 65..100, cut at 30, and 30..49 anew.
    assert_eq!((relay.handed_over(A, 0..50), relay.handed_over(A, 20..40)), (49, 20));
    assert_eq!((relay.handed_over(B, 0..60), relay.handed_over(B, 39..41)), (59, 2));
    relay.free(A);
    relay.free(B);
    assert_eq!((relay.usage().kv_tokens, relay.handed_over(A, 0..50)), (0, 0));
}

#[test]
fn a_prefill_unit_that_fails_costs_time_and_nothing_else() {
    let text = random_tokens(100, VOCAB, 4);
    for succeed in 0..7 {
        let (prefill, decode) = (Counts::new(), Counts::new());
        prefill.succeed.store(succeed, Ordering::SeqCst);
        let unit = probed(&prefill, &decode, relay_options(8, 16));
        let mut relay = executor_of(&unit, wide());
        relay.forward(&Batch::one(A, text[..64].to_vec(), Rows::None)).unwrap();
        near(&forward(&mut *relay, A, &text[64..], Rows::Last), &alone(&text));
        assert_eq!(relay.len(A), 100);
        let relayed = Counts::get(&prefill.tokens);
        assert!(relayed <= 16 * succeed, "{relayed} after {succeed} chunks");
        assert_eq!(relayed + Counts::get(&decode.tokens), 100);
        // And when it is back it is used again.
        prefill.succeed.store(usize::MAX, Ordering::SeqCst);
        near(&forward(&mut *relay, B, &text[..50], Rows::Last), &alone(&text[..50]));
        assert_eq!(Counts::get(&prefill.tokens), relayed + 49);
    }
}

#[test]
fn a_unit_that_failed_is_left_alone_for_a_while() {
    let (prefill, decode) = (Counts::new(), Counts::new());
    prefill.succeed.store(0, Ordering::SeqCst);
    let patient = RelayOptions { pause: Duration::from_secs(3600), ..relay_options(8, 16) };
    let mut relay = executor_of(&probed(&prefill, &decode, patient), wide());
    let text = random_tokens(60, VOCAB, 5);
    near(&forward(&mut *relay, A, &text, Rows::Last), &alone(&text));
    prefill.succeed.store(usize::MAX, Ordering::SeqCst);
    near(&forward(&mut *relay, B, &text, Rows::Last), &alone(&text));
    assert_eq!((Counts::get(&prefill.tokens), Counts::get(&decode.tokens)), (0, 120));
    assert_eq!(relay.prepare(C, 50), Readiness::Now);
}

#[test]
fn a_small_prefill_cache_keeps_the_youngest() {
    let (decode, mut prefill) = (Counts::new(), Counts::new());
    Arc::get_mut(&mut prefill).unwrap().kv_tokens = Some(128);
    let mut relay = executor_of(&probed(&prefill, &decode, relay_options(8, 64)), wide());
    for seed in 0..6 {
        let text = random_tokens(60, VOCAB, seed);
        let seq = SeqId(10 + seed as u32);
        near(&forward(&mut *relay, seq, &text, Rows::Last), &alone(&text));
    }
    assert_eq!(Counts::get(&prefill.tokens), 6 * 59);
    // The first went; for its next turn all of it comes back.
    let text = random_tokens(60, VOCAB, 0);
    let more = [&text[..], &random_tokens(20, VOCAB, 9)].concat();
    near(&forward(&mut *relay, SeqId(10), &more[60..], Rows::Last), &alone(&more));
    assert_eq!(Counts::get(&prefill.imported), 60);
    // What is longer than its whole cache the decode unit computes.
    let long = random_tokens(200, VOCAB, 7);
    forward(&mut *relay, A, &long[..100], Rows::None);
    near(&forward(&mut *relay, A, &long[100..], Rows::Last), &alone(&long));
}

#[test]
fn work_in_the_background_can_be_taken_back() {
    let unit = relay(reference(), reference(), relay_options(4, 8));
    let text = random_tokens(120, VOCAB, 6);
    for cut in [0, 1, 7, 8, 20, 63, 64] {
        let mut relay = executor_of(&unit, wide());
        relay.forward(&Batch::one(A, text[..64].to_vec(), Rows::None)).unwrap();
        assert_eq!(relay.len(A), 64);
        relay.copy(A, B, cut).unwrap();
        relay.truncate(A, cut).unwrap();
        assert_eq!((relay.len(A), relay.len(B)), (cut, cut));
        let new = [&text[..cut], &text[80..110]].concat();
        near(&forward(&mut *relay, A, &text[80..110], Rows::Last), &alone(&new));
        near(&forward(&mut *relay, B, &text[cut..90], Rows::Last), &alone(&text[..90]));
        relay.forward(&Batch::one(C, text[..64].to_vec(), Rows::None)).unwrap();
        relay.free(C);
        assert_eq!(relay.len(C), 0);
        near(&forward(&mut *relay, C, &text[..30], Rows::Last), &alone(&text[..30]));
        // A block of what is still being computed waits for it.
        relay.forward(&Batch::one(C, text[30..70].to_vec(), Rows::None)).unwrap();
        let block = relay.export_kv(C, 10..66).unwrap();
        relay.truncate(B, 0).unwrap();
        let start = relay.export_kv(C, 0..10).unwrap();
        relay.import_kv(B, 0, &start).unwrap();
        relay.import_kv(B, 10, &block).unwrap();
        near(&forward(&mut *relay, B, &text[66..70], Rows::Last), &alone(&text[..70]));
    }
}

#[test]
fn what_was_announced_decides_where_it_goes() {
    let (prefill, decode) = (Counts::new(), Counts::new());
    let mut relay = executor_of(&probed(&prefill, &decode, relay_options(40, 16)), wide());
    let text = random_tokens(100, VOCAB, 7);
    let get = Counts::get;
    // Fewer than the crossover, though a chunk is shorter still.
    assert_eq!(relay.prepare(A, 40), Readiness::Now);
    forward(&mut *relay, A, &text[..30], Rows::None);
    near(&forward(&mut *relay, A, &text[30..40], Rows::Last), &alone(&text[..40]));
    assert_eq!((get(&prefill.tokens), get(&decode.tokens)), (0, 40));
    assert_eq!(relay.prepare(A, 60), Readiness::Background(16));
    // The last of what was announced is the decode unit's.
    near(&forward(&mut *relay, A, &text[40..], Rows::Last), &alone(&text));
    assert_eq!((get(&prefill.tokens), get(&decode.tokens)), (59, 41));
    // Rows of every token only the decode unit gives.
    let all = Span { seq: B, tokens: text[..60].to_vec(), rows: Rows::All };
    relay.prepare(B, 60);
    let rows = relay.forward(&Batch { spans: vec![all] }).unwrap();
    assert_eq!((rows.rows.len(), get(&prefill.tokens)), (60, 59));
}

#[test]
fn a_copy_of_what_is_being_computed_does_not_make_others_wait() {
    let (prefill, decode) = (Counts::slow(Duration::from_millis(30)), Counts::new());
    let mut relay = executor_of(&probed(&prefill, &decode, relay_options(40, 50)), wide());
    let text = random_tokens(80, VOCAB, 9);
    assert_eq!(relay.prepare(A, 71), Readiness::Background(50));
    relay.forward(&Batch::one(A, text[..50].to_vec(), Rows::None)).unwrap();
    relay.copy(A, B, 50).unwrap();
    // The chunk is still being computed, its block not on its way.
    assert_eq!(relay.prepare(B, 5), Readiness::Later);
    while relay.prepare(B, 5) == Readiness::Later {
        std::thread::sleep(Duration::from_millis(1));
    }
    near(&forward(&mut *relay, B, &text[50..55], Rows::Last), &alone(&text[..55]));
    assert_eq!((Counts::get(&prefill.tokens), Counts::get(&decode.tokens)), (50, 5));
}

#[test]
fn spans_of_a_batch_go_each_their_way() {
    let mut relay = executor_of(&relay(cpu(), reference(), relay_options(8, 16)), wide());
    let texts: Vec<_> = (0..3).map(|seed| random_tokens(60, VOCAB, seed)).collect();
    let span = |seq, tokens: &[u32], rows| Span { seq, tokens: tokens.to_vec(), rows };
    let spans = vec![
        span(A, &texts[0][..40], Rows::None),
        span(B, &texts[1][..3], Rows::All),
        span(C, &texts[2][..30], Rows::Last),
    ];
    let logits = relay.forward(&Batch { spans }).unwrap();
    let origins: Vec<_> = logits.rows.iter().map(|row| (row.span, row.token)).collect();
    assert_eq!(origins, [(1, 0), (1, 1), (1, 2), (2, 29)]);
    near(logits.last_of(2).unwrap(), &alone(&texts[2][..30]));
    near(logits.row_of(1, 2).unwrap(), &alone(&texts[1][..3]));
    let spans = vec![span(A, &texts[0][40..41], Rows::Last), span(B, &texts[1][3..], Rows::Last)];
    let logits = relay.forward(&Batch { spans }).unwrap();
    near(logits.last_of(0).unwrap(), &alone(&texts[0][..41]));
    near(logits.last_of(1).unwrap(), &alone(&texts[1]));
}

#[test]
fn a_quantized_cache_takes_the_baton_too() {
    for kv_type in [KvType::Q8_0, KvType::Q4_0] {
        let quantized = || -> Box<dyn Unit> {
            let threads = Some(2);
            Box::new(Cpu::new(CpuOptions { threads, kv_type, ..CpuOptions::default() }).unwrap())
        };
        let text = random_tokens(60, VOCAB, 8);
        let mut single = executor_of(&*quantized(), wide());
        let expected = forward(&mut *single, A, &text, Rows::Last);
        for (prefill, decode) in [(reference(), quantized()), (quantized(), reference())] {
            let mut relay = executor_of(&relay(prefill, decode, relay_options(8, 16)), wide());
            let found = forward(&mut *relay, A, &text, Rows::Last);
            let spread = expected.iter().map(|x| x * x).sum::<f32>();
            let error: f32 = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum();
            let most = if kv_type == KvType::Q8_0 { 1e-3 } else { 5e-2 };
            assert!(error / spread < most, "{kv_type}: {}", error / spread);
        }
    }
}
