use super::*;

const LONG: Source = Source::Text(LENGTHS);

fn millis(n: f64) -> Duration {
    Duration::from_secs_f64(n / 1e3)
}

/// Steps cost 10 ms, and so much of that more for each further row.
fn measured(slope: f64) -> Payoff {
    let mut payoff = Payoff::default();
    for rows in 1..=MOST_GUESSES + 1 {
        payoff.note_step(rows, millis(10.0 * (1.0 + slope * (rows - 1) as f64)));
    }
    payoff
}

fn right(payoff: &mut Payoff, source: Source, n: usize) {
    (0..40).for_each(|_| payoff.note_guess(source, n, true));
}

#[test]
fn nothing_is_tried_before_a_plain_step_was_measured() {
    let mut payoff = Payoff::default();
    assert_eq!(payoff.worth(LONG, 8), None);
    payoff.note_step(1, millis(10.0));
    assert!(payoff.worth(LONG, 8).is_some());
}

#[test]
fn more_is_tried_where_rows_are_cheap_and_guesses_right() {
    let tried = |slope, n| {
        let mut payoff = measured(slope);
        right(&mut payoff, LONG, n);
        payoff.worth(LONG, MOST_GUESSES).map_or(0, |(n, _)| n)
    };
    assert_eq!(tried(0.0, 20), MOST_GUESSES);
    assert!((2..MOST_GUESSES).contains(&tried(0.15, 5)), "{}", tried(0.15, 5));
    assert!(tried(0.15, 5) > tried(0.15, 1));
    assert_eq!(tried(0.9, 5), 0);
    assert_eq!(tried(0.15, 0), 0);
}

#[test]
fn the_rate_is_the_expected_one() {
    let mut payoff = measured(0.5);
    (0..1000).for_each(|_| payoff.note_guess(LONG, 1, false));
    let (n, rate) = payoff.worth(LONG, 1).unwrap();
    // Nearly two tokens in 15 ms.
    assert!(n == 1 && (130.0..133.4).contains(&rate), "{rate}");
}

#[test]
fn lengths_of_matches_are_told_apart() {
    let mut payoff = measured(0.2);
    right(&mut payoff, Source::Text(2), 0);
    right(&mut payoff, Source::Text(40), 6);
    assert_eq!(payoff.worth(Source::Text(2), 8), None);
    assert!(payoff.worth(LONG, 8).is_some());
}

#[test]
fn a_slow_draft_model_is_switched_off_for_good() {
    let mut payoff = measured(0.1);
    right(&mut payoff, Source::Draft, 20);
    for _ in 0..ENOUGH {
        assert!(payoff.worth(Source::Draft, 8).is_some());
        payoff.note_draft(1, millis(1.0));
    }
    assert!(payoff.worth(Source::Draft, 8).is_some());
    (0..40).for_each(|_| payoff.note_draft(1, millis(9.5)));
    assert!((0..10_000).all(|_| payoff.worth(Source::Draft, 8).is_none()));
}

#[test]
fn a_loss_is_tried_again_less_and_less_often() {
    let mut payoff = measured(0.2);
    right(&mut payoff, Source::Draft, 0);
    (0..ENOUGH).for_each(|_| payoff.note_draft(1, millis(1.0)));
    let mut tries = Vec::new();
    for step in 1..=20_000 {
        if let Some((n, _)) = payoff.worth(Source::Draft, 8) {
            assert_eq!(n, TRIAL);
            tries.push(step);
            payoff.note_guess(Source::Draft, 0, true);
        }
    }
    assert_eq!(tries[..4], [64, 192, 448, 960]);
    assert!(tries.len() < 16, "{tries:?}");
    // Times change.
    right(&mut payoff, Source::Draft, 20);
    assert!(payoff.worth(Source::Draft, 8).is_some());
}

#[test]
fn a_draft_model_that_is_asked_in_vain_is_asked_less() {
    let mut payoff = measured(0.1);
    right(&mut payoff, Source::Draft, 8);
    (0..ENOUGH).for_each(|_| payoff.note_draft(1, millis(2.0)));
    assert!(payoff.worth(Source::Draft, 8).is_some());
    // It is mostly too unsure to guess, and a token comes each 12 ms instead of 10.
    (0..20).for_each(|_| payoff.note_yield(1, millis(12.0)));
    let tries = (0..1000).filter(|_| payoff.worth(Source::Draft, 8).is_some()).count();
    assert!((1..8).contains(&tries), "{tries}");
    // Once it pays again, it is asked until that shows.
    (0..20).for_each(|_| {
        payoff.note_yield(4, millis(20.0));
        assert!(payoff.worth(Source::Draft, 8).is_some());
    });
}

#[test]
fn costs_between_measurements_lie_on_a_line() {
    let mut payoff = Payoff::default();
    payoff.note_step(1, millis(10.0));
    let cost = |payoff: &Payoff, rows| (payoff.step(rows).unwrap() * 1e5).round() / 100.0;
    assert_eq!(cost(&payoff, 5), 14.0);
    payoff.note_step(5, millis(12.0));
    payoff.note_step(9, millis(20.0));
    assert_eq!(
        [1, 3, 5, 7, 9, 11].map(|rows| cost(&payoff, rows)),
        [10.0, 11.0, 12.0, 16.0, 20.0, 24.0]
    );
}

#[test]
fn one_slow_step_is_no_verdict() {
    let mut payoff = measured(0.1);
    right(&mut payoff, LONG, 8);
    payoff.note_step(5, millis(60_000.0));
    assert!(payoff.worth(LONG, 4).is_some());
}
