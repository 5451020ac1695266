//! Choosing by the best tokens alone.

use super::*;

/// The `k` most likely tokens, as a compute unit gives them.
fn best(logits: &[f32], k: usize) -> Best {
    let is_possible = |&(_, logit): &(u32, f32)| logit > f32::NEG_INFINITY;
    let mut tokens: Vec<_> = sorted(logits).into_iter().filter(is_possible).collect();
    let sum = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>();
    tokens.truncate(k);
    Best { tokens, log_sum_exp: sum.ln() }
}

#[test]
fn the_best_tokens_are_enough_where_nothing_else_can_be_chosen() {
    let enough = |sampling: Sampling| sampler(&sampling).enough();
    assert_eq!(enough(Sampling::greedy()), Some(1));
    assert_eq!(enough(Sampling { logprobs: Some(5), ..Sampling::greedy() }), Some(5));
    assert_eq!(enough(Sampling { top_k: Some(40), ..plain() }), Some(40));
    assert_eq!(enough(Sampling { top_k: Some(64), logprobs: Some(20), ..plain() }), Some(64));
    for needs_all in [
        plain(),
        Sampling { top_k: Some(65), ..plain() },
        Sampling { logprobs: Some(65), ..Sampling::greedy() },
        Sampling { logit_bias: [(3, 1.0)].into(), ..Sampling::greedy() },
    ] {
        assert_eq!(enough(needs_all.clone()), None, "{needs_all:?}");
    }
    let mut penalized = sampler(&Sampling { repeat_penalty: Some(1.1), ..Sampling::greedy() });
    assert_eq!(penalized.enough(), Some(1), "nothing was seen yet");
    penalized.accept(3);
    assert_eq!(penalized.enough(), None);
}

#[test]
fn best_tokens_that_are_no_numbers_are_the_same_errors() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut greedy = sampler(&Sampling::greedy());
        let all = greedy.sample(&[0.0, bad, 1.0], None).unwrap_err().to_string();
        let best = Best { tokens: vec![(1, bad), (2, 1.0)], log_sum_exp: f64::NAN };
        assert_eq!(greedy.sample_best(&best).unwrap_err().to_string(), all);
    }
    let mut greedy = sampler(&Sampling::greedy());
    let all = greedy.sample(&[f32::NEG_INFINITY; 3], None).unwrap_err().to_string();
    assert_eq!(greedy.sample_best(&Best::default()).unwrap_err().to_string(), all);
}

proptest! {
    #[test]
    fn what_is_chosen_by_the_best_tokens_is_what_is_chosen_by_all(
        logits in logits(),
        temperature in prop_oneof![Just(0.0), 0.01f32..3.0],
        top_k in 1usize..65,
        top_p in prop_oneof![Just(1.0), 0.0f32..1.0],
        min_p in prop_oneof![Just(0.0), 0.0f32..=1.0],
        logprobs in prop_oneof![Just(None), (0usize..65).prop_map(Some)],
        seed in 0..u64::MAX,
    ) {
        let sampling = Sampling {
            temperature: Some(temperature),
            top_k: Some(top_k),
            top_p: Some(top_p),
            min_p: Some(min_p),
            seed: Some(seed),
            logprobs,
            ..Sampling::default()
        };
        prop_assume!(logits.iter().any(|&logit| logit > f32::NEG_INFINITY));
        let (mut by_all, mut by_best) = (sampler(&sampling), sampler(&sampling));
        let best = best(&logits, by_best.enough().unwrap());
        for _ in 0..4 {
            let expected = by_all.sample(&logits, None).unwrap();
            let found = by_best.sample_best(&best).unwrap();
            prop_assert_eq!(found.id, expected.id);
            let tokens = |token: &Token| token.top.iter().map(|t| t.id).collect::<Vec<_>>();
            prop_assert_eq!(tokens(&found), tokens(&expected));
            let logprobs = |token: &Token| {
                let top = token.top.iter().map(|t| t.logprob);
                token.logprob.into_iter().chain(top).collect::<Vec<f32>>()
            };
            for (a, b) in logprobs(&found).into_iter().zip(logprobs(&expected)) {
                prop_assert!((a - b).abs() < 1e-4, "{} and {}", a, b);
            }
        }
    }
}
