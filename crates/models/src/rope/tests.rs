use super::*;

fn rope(scaling: RopeScaling) -> RopeConfig {
    RopeConfig { theta: 10000.0, rotary_dim: 8, scaling }
}

#[test]
fn the_plain_series() {
    let table = rope(RopeScaling::None).table(100);
    let expected = [1.0, 0.1, 0.01, 0.001];
    for (found, expected) in table.inv_freq.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-7, "{found} {expected}");
    }
    assert_eq!(table.magnitude, 1.0);
}

#[test]
fn long_contexts_pick_the_long_table() {
    let scaling = RopeScaling::LongRope {
        short: vec![1.0; 4],
        long: vec![2.0; 4],
        original: 64,
        magnitude: 1.25,
    };
    let rope = rope(scaling);
    assert_eq!(rope.table(64).inv_freq[0], 1.0);
    assert_eq!(rope.table(65).inv_freq[0], 0.5);
    assert_eq!(rope.table(64).magnitude, 1.25);
    assert!(rope.depends_on_context());
}

#[test]
fn dynamic_scaling_starts_beyond_the_trained_context() {
    let rope = rope(RopeScaling::Dynamic { factor: 2.0, trained: 64 });
    let plain = RopeConfig { scaling: RopeScaling::None, ..rope.clone() };
    assert_eq!(rope.table(64), plain.table(64));
    assert!(rope.table(128).inv_freq[3] < plain.table(128).inv_freq[3]);
}

#[test]
fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
    let scaling = |truncate| RopeScaling::Yarn {
        factor: 4.0,
        original: 256,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate,
        magnitude: 1.1,
    };
    let plain = rope(RopeScaling::None).table(0);
    let (rough, exact) = (rope(scaling(true)).table(0), rope(scaling(false)).table(0));
    assert_eq!(rough.inv_freq[0], plain.inv_freq[0]);
    assert_eq!(exact.inv_freq[3], plain.inv_freq[3] / 4.0);
    assert_ne!(rough.inv_freq[1], exact.inv_freq[1]);
}

fn scaling_of_lists(length: usize) -> RopeScaling {
    let (short, long) = (vec![1.0; length], vec![1.0; length]);
    RopeScaling::LongRope { short, long, original: 64, magnitude: 1.0 }
}

#[test]
fn numbers_that_make_no_table_are_refused() {
    assert_eq!(rope(RopeScaling::None).problem(8), None);
    let bad = [
        RopeConfig { rotary_dim: 0, ..rope(RopeScaling::None) },
        RopeConfig { rotary_dim: 7, ..rope(RopeScaling::None) },
        RopeConfig { rotary_dim: 10, ..rope(RopeScaling::None) },
        RopeConfig { theta: f64::NAN, ..rope(RopeScaling::None) },
        RopeConfig { theta: 1.0, ..rope(RopeScaling::None) },
        RopeConfig { theta: f64::INFINITY, ..rope(RopeScaling::None) },
        rope(scaling_of_lists(3)),
        rope(RopeScaling::Linear { factor: 0.0 }),
        rope(RopeScaling::Linear { factor: f64::NAN }),
        rope(RopeScaling::Dynamic { factor: 2.0, trained: 0 }),
        RopeConfig { rotary_dim: 2, ..rope(RopeScaling::Dynamic { factor: 2.0, trained: 8 }) },
        rope(RopeScaling::Divisors(vec![1.0; 3])),
        rope(RopeScaling::Divisors(vec![1.0, 1.0, 1.0, 0.0])),
        rope(RopeScaling::Llama3 { factor: 8.0, low: 4.0, high: 4.0, original: 64 }),
    ];
    for rope in bad {
        let problem = rope.problem(8).unwrap_or_else(|| panic!("{rope:?}"));
        // Words for a user, not the names of our types.
        assert!(!problem.contains(['{', '[']), "{problem}");
    }
}
