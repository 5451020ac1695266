use super::*;

const CPU: UnitKind = UnitKind::Cpu;
/// Stands for a unit with other strengths.
const OTHER: UnitKind = UnitKind::Reference;

fn relay() -> RelayOptions {
    RelayOptions { chunk: 512, ..RelayOptions::default() }
}

/// Seconds of one token of a prompt, of each pass besides, and of a token of an answer.
fn speeds(unit: UnitKind, token: f64, pass: f64, decode: f64) -> Known {
    let prefill = [16, 64, 256, 1024].map(|n| (n, pass + token * n as f64)).to_vec();
    let handoff = (1e-5, 1e-5);
    let device = String::new();
    (unit, Speeds { unit: unit.name().into(), device, prefill, decode, handoff })
}

#[test]
fn each_unit_does_what_it_is_best_at() {
    // One reads ten times as fast, after a fifth of a second; the other writes twice as fast.
    let all = [speeds(CPU, 5e-3, 0.01, 0.03), speeds(OTHER, 5e-4, 0.2, 0.06)];
    let chosen = plan(&all, (None, None), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (OTHER, CPU));
    // 0.2 + 0.0005 n + 0.03 = 0.01 + 0.005 (n + 1), about.
    assert!((35..60).contains(&chosen.relay.crossover), "{:?}", chosen.relay);
    assert_eq!(chosen.relay.chunk, 512);
    assert!(chosen.why.iter().any(|line| line.contains("measured")), "{:?}", chosen.why);
    // What is named stays.
    let chosen = plan(&all, (None, Some(OTHER)), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (OTHER, OTHER));
    let chosen = plan(&all, (Some(CPU), Some(OTHER)), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (CPU, OTHER));
}

#[test]
fn a_unit_that_is_better_at_both_does_both() {
    let all = [speeds(CPU, 5e-3, 0.01, 0.03), speeds(OTHER, 5e-4, 0.01, 0.01)];
    let chosen = plan(&all, (None, None), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (OTHER, OTHER));
}

#[test]
fn what_was_measured_on_another_device_is_not_known() {
    let (_, cpu) = speeds(CPU, 5e-3, 0.01, 0.03);
    let (_, other) = speeds(OTHER, 5e-4, 0.2, 0.06);
    let measured = [cpu, Speeds { device: "card 1".into(), ..other }];
    let device = |card: &'static str| {
        move |unit| if unit == OTHER { card.to_owned() } else { String::new() }
    };
    let found = known(&measured, &[CPU, OTHER], device("card 1"));
    assert_eq!(found.map(|known| known.len()), Some(2));
    assert_eq!(known(&measured, &[CPU, OTHER], device("card 2")), None);
    assert!(known(&measured, &[CPU], device("card 2")).is_some());
}

#[test]
fn handing_over_must_pay() {
    let mut all = [speeds(CPU, 5e-3, 0.01, 0.03), speeds(OTHER, 4e-3, 0.01, 0.06)];
    assert_eq!(plan(&all, (None, None), relay(), Source::Measured).prefill, OTHER);
    // As slow as computing it again.
    all[1].1.handoff.0 = 5e-3;
    let chosen = plan(&all, (None, None), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (CPU, CPU));
}

#[test]
fn a_unit_that_is_named_is_never_dropped() {
    // It reads and hands over so slowly that nothing is ever won, and writes slower still.
    let mut all = [speeds(CPU, 1e-3, 0.01, 0.03), speeds(OTHER, 5e-3, 0.01, 9.0)];
    all[1].1.handoff = (1e-2, 1e-2);
    let chosen = plan(&all, (Some(OTHER), None), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (OTHER, CPU), "{:?}", chosen.why);
    assert_eq!(chosen.relay.crossover, relay().crossover);
    let chosen = plan(&all, (None, Some(OTHER)), relay(), Source::Measured);
    assert_eq!(chosen.decode, OTHER);
}

#[test]
fn a_chunk_is_as_short_as_its_rate_allows() {
    let (_, steady) = speeds(CPU, 1e-3, 1e-4, 0.01);
    assert_eq!(chunk_of(&steady, 512), 16);
    let (_, slow_start) = speeds(CPU, 1e-3, 0.1, 0.01);
    assert_eq!((chunk_of(&slow_start, 512), chunk_of(&slow_start, 4096)), (512, 1024));
    let nothing = Speeds { prefill: vec![], ..steady };
    assert_eq!(chunk_of(&nothing, 300), 300);
}

#[test]
fn units_of_which_nothing_is_known_are_used_only_if_they_are_named() {
    let chosen = plan(&[], (Some(OTHER), None), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (OTHER, CPU));
    let one = [speeds(CPU, 1e-3, 0.1, 0.01)];
    let chosen = plan(&one, (None, None), relay(), Source::Measured);
    assert_eq!((chosen.prefill, chosen.decode), (CPU, CPU));
    assert_eq!(plan(&one, (Some(OTHER), None), relay(), Source::Measured).prefill, OTHER);
}

#[test]
fn the_roofline_decides_where_nothing_was_measured() {
    let work = PassWork {
        dense: (1e9, 5e8),
        head: (1e8, 5e7),
        used: 1.0,
        layers: vec![(1024.0, None); 16],
        ..PassWork::default()
    };
    // Much arithmetic behind a narrow memory, and little behind a wide one.
    let narrow = Roof { read: 2e10, ops: Some(2e13) };
    let wide = Roof { read: 8e10, ops: Some(5e11) };
    let all = [(OTHER, estimate(OTHER, &narrow, &work)), (CPU, estimate(CPU, &wide, &work))];
    let chosen = plan(&all, (None, None), relay(), Source::Estimated);
    assert_eq!((chosen.prefill, chosen.decode), (OTHER, CPU));
    assert!(chosen.relay.crossover > 4, "{:?}", chosen.relay);
    assert_eq!(chosen.relay.chunk, 512);
    // Under a wide memory's roofline short chunks are as good as any, which no unit keeps.
    let chunk = |source: Source| source.chunk(&all[1].1, 512);
    assert_eq!((chunk(Source::Measured), chunk(Source::Estimated)), (8, 512));
}
