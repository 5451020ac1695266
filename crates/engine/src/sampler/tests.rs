mod best;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::Sampling;

/// Every filter off, temperature 1.
fn plain() -> Sampling {
    Sampling {
        temperature: Some(1.0),
        top_k: Some(0),
        top_p: Some(1.0),
        min_p: Some(0.0),
        seed: Some(1),
        ..Sampling::default()
    }
}

fn sampler(sampling: &Sampling) -> Sampler {
    Sampler::new(sampling.resolve().unwrap())
}

/// What the filters and the temperature mean, written plainly: the distribution of the next token.
fn expected(sampling: &Sampling, logits: &[f32]) -> BTreeMap<u32, f64> {
    let mut order: Vec<(u32, f64)> =
        logits.iter().enumerate().map(|(id, &l)| (id as u32, f64::from(l))).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let softmax = |order: &[(u32, f64)], temperature: f64| -> Vec<f64> {
        let weights: Vec<f64> =
            order.iter().map(|(_, l)| ((l - order[0].1) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| w / total).collect()
    };
    match sampling.top_k.unwrap() {
        0 => {}
        k => order.truncate(k),
    }
    let probabilities = softmax(&order, 1.0);
    let mut sum = 0.0;
    let mut kept = order.len();
    for (i, p) in probabilities.iter().enumerate() {
        sum += p;
        if sampling.top_p.unwrap() < 1.0 && sum >= f64::from(sampling.top_p.unwrap()) {
            kept = i + 1;
            break;
        }
    }
    order.truncate(kept);
    let least = f64::from(sampling.min_p.unwrap()) * probabilities[0];
    let kept = probabilities[..order.len()].iter().filter(|&&p| p >= least).count();
    order.truncate(kept.max(1));
    let probabilities = softmax(&order, f64::from(sampling.temperature.unwrap()));
    order.iter().zip(probabilities).map(|((id, _), p)| (*id, p)).collect()
}

/// Draws `n` tokens and returns Pearson's statistic against the plain distribution, over its degrees
/// of freedom; tokens expected less than five times are pooled.
fn chi_square(sampling: &Sampling, logits: &[f32], n: usize) -> f64 {
    let expected = expected(sampling, logits);
    let mut sampler = sampler(sampling);
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for _ in 0..n {
        *counts.entry(sampler.sample(logits, None).unwrap().id).or_insert(0) += 1;
    }
    assert!(counts.keys().all(|id| expected.contains_key(id)), "a filtered token was drawn");
    let (mut statistic, mut cells, mut pooled) = (0.0, 0usize, (0.0, 0.0));
    let mut add = |wanted: f64, seen: f64| {
        statistic += (seen - wanted).powi(2) / wanted;
        cells += 1;
    };
    for (id, p) in &expected {
        let (wanted, seen) = (p * n as f64, counts.get(id).copied().unwrap_or(0) as f64);
        if wanted >= 5.0 {
            add(wanted, seen);
        } else {
            pooled = (pooled.0 + wanted, pooled.1 + seen);
        }
    }
    if pooled.0 >= 5.0 {
        add(pooled.0, pooled.1);
    }
    statistic / (cells - 1).max(1) as f64
}

fn ramp(n: usize) -> Vec<f32> {
    // Far from sorted, no two alike.
    (0..n).map(|i| ((i * 37) % n) as f32 * 6.0 / n as f32).collect()
}

#[test]
fn draws_follow_the_distribution() {
    let cases = [
        plain(),
        Sampling { temperature: Some(0.5), ..plain() },
        Sampling { temperature: Some(2.0), ..plain() },
        Sampling { top_k: Some(5), ..plain() },
        Sampling { top_p: Some(0.7), ..plain() },
        Sampling { min_p: Some(0.2), ..plain() },
        Sampling {
            top_k: Some(20),
            top_p: Some(0.9),
            min_p: Some(0.1),
            temperature: Some(1.5),
            ..plain()
        },
    ];
    for case in cases {
        // For these seeds; a wrong distribution gives values in the hundreds.
        let statistic = chi_square(&case, &ramp(40), 40_000);
        assert!(statistic < 2.0, "{case:?}: {statistic}");
    }
}

#[test]
fn the_test_of_the_distribution_can_fail() {
    let logits = ramp(40);
    let wrong: Vec<f32> = logits.iter().map(|l| l * 1.05).collect();
    let drawn = Sampling { seed: Some(1), ..plain() };
    let expected = expected(&drawn, &wrong);
    let mut sampler = sampler(&drawn);
    let mut counts = BTreeMap::new();
    for _ in 0..40_000 {
        *counts.entry(sampler.sample(&logits, None).unwrap().id).or_insert(0.0) += 1.0;
    }
    let statistic: f64 = expected
        .iter()
        .map(|(id, p)| (counts.get(id).unwrap_or(&0.0) - p * 4e4).powi(2) / (p * 4e4))
        .sum();
    assert!(statistic / 39.0 > 2.0, "{statistic}");
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let draw = |seed| {
        let mut sampler = sampler(&Sampling { seed: Some(seed), ..plain() });
        (0..16).map(|_| sampler.sample(&ramp(100), None).unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    // Fixed for all time and on every platform.
    assert_eq!(draw(42)[..8], [67, 94, 43, 62, 27, 16, 29, 81]);
}

#[test]
fn greedy_takes_the_first_of_the_best() {
    let mut greedy = sampler(&Sampling::greedy());
    assert_eq!(greedy.sample(&[0.0, 3.0, -1.0, 3.0], None).unwrap().id, 1);
    assert_eq!(greedy.sample(&[f32::NEG_INFINITY, -9.0], None).unwrap().id, 1);
}

#[test]
fn logits_that_are_no_numbers_are_errors() {
    for sampling in [Sampling::greedy(), plain()] {
        let mut sampler = sampler(&sampling);
        for bad in [[0.0, f32::NAN], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(matches!(sampler.sample(&bad, None), Err(Error::BadLogits { .. })), "{bad:?}");
        }
        assert!(matches!(sampler.sample(&[], None), Err(Error::BadLogits { .. })));
    }
}

#[test]
fn bias_raises_and_forbids() {
    let logits = [1.0, 2.0, 3.0];
    let greedy = |bias: &[(u32, f32)]| {
        let logit_bias = bias.iter().copied().collect();
        sampler(&Sampling { logit_bias, ..Sampling::greedy() }).sample(&logits, None)
    };
    assert_eq!(greedy(&[(0, 2.5)]).unwrap().id, 0);
    assert_eq!(greedy(&[(2, f32::NEG_INFINITY)]).unwrap().id, 1);
    assert!(matches!(greedy(&[(3, 1.0)]), Err(Error::Option { name: "logit_bias", .. })));
    let all = [(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY), (2, f32::NEG_INFINITY)];
    assert!(matches!(greedy(&all), Err(Error::BadLogits { .. })));
}

#[test]
fn penalties_look_at_the_last_tokens_only() {
    let base = Sampling { repeat_last_n: Some(3), ..Sampling::greedy() };
    let after = |sampling: Sampling, tokens: &[u32], logits: &[f32]| {
        let mut sampler = sampler(&sampling);
        tokens.iter().for_each(|&t| sampler.accept(t));
        sampler.sample(logits, None).unwrap().id
    };
    let repeat = Sampling { repeat_penalty: Some(2.0), ..base.clone() };
    assert_eq!(after(repeat.clone(), &[1], &[1.6, 3.0]), 0, "3 / 2 < 1.6");
    assert_eq!(after(repeat.clone(), &[1], &[1.4, 3.0]), 1);
    assert_eq!(after(repeat.clone(), &[1], &[-3.0, -2.0]), 0, "-2 * 2 < -3");
    assert_eq!(after(repeat, &[1, 0, 2, 2], &[1.6, 3.0, 0.0]), 1, "token 1 left the window");
    let presence = Sampling { presence_penalty: Some(1.0), ..base.clone() };
    assert_eq!(after(presence.clone(), &[1, 1, 1], &[1.5, 3.0]), 1, "counted once");
    assert_eq!(after(presence, &[1], &[2.5, 3.0]), 0);
    let frequency = Sampling { frequency_penalty: Some(1.0), ..base.clone() };
    assert_eq!(after(frequency, &[1, 1, 1], &[0.5, 3.0]), 0, "counted three times");
    let off = Sampling { repeat_last_n: Some(0), repeat_penalty: Some(9.0), ..base.clone() };
    assert_eq!(after(off, &[1], &[1.0, 3.0]), 1);
    let all = Sampling { repeat_last_n: Some(-1), repeat_penalty: Some(9.0), ..base };
    assert_eq!(after(all, &[1, 0, 0, 0, 0, 0], &[0.1, 3.0]), 1, "3 / 9 > 0.1 / 9");
}

#[test]
fn penalties_of_absurd_size_still_choose() {
    let absurd = [
        Sampling { frequency_penalty: Some(-f32::MAX), ..plain() },
        Sampling { repeat_penalty: Some(1e-45), ..plain() },
    ];
    for sampling in absurd {
        let forbidden = BTreeMap::from([(0, f32::NEG_INFINITY)]);
        let mut sampler = sampler(&Sampling { logit_bias: forbidden, ..sampling });
        [0, 0, 1, 1].into_iter().for_each(|token| sampler.accept(token));
        assert_eq!(sampler.sample(&[1.0, 2.0, 3.0], None).unwrap().id, 1);
    }
}

#[test]
fn logprobs_are_those_of_the_model() {
    let sampling =
        Sampling { logprobs: Some(2), logit_bias: [(0, 100.0)].into(), top_k: Some(1), ..plain() };
    let token = sampler(&sampling).sample(&[0.0, 1.0, 3.0, 2.0], None).unwrap();
    let total = [0.0f32, 1.0, 2.0, 3.0].iter().map(|l| l.exp()).sum::<f32>().ln();
    assert_eq!(token.id, 0);
    assert!((token.logprob.unwrap() + total).abs() < 1e-6);
    let ids: Vec<u32> = token.top.iter().map(|t| t.id).collect();
    assert_eq!(ids, [2, 3]);
    assert!((token.top[0].logprob - (3.0 - total)).abs() < 1e-6);
}

/// A mask of `n` tokens that allows `ids`.
fn allowing(n: usize, ids: &[u32]) -> TokenMask {
    let mut mask = TokenMask::none(n);
    ids.iter().for_each(|&id| mask.allow(id));
    mask
}

#[test]
fn only_allowed_tokens_are_chosen() {
    let logits = [0.0, 5.0, 3.0, 4.0, f32::NEG_INFINITY];
    for sampling in [
        Sampling::greedy(),
        Sampling { repeat_penalty: Some(1.1), ..Sampling::greedy() },
        Sampling { top_k: Some(1), ..plain() },
        Sampling { top_p: Some(0.01), ..plain() },
        Sampling { min_p: Some(0.99), ..plain() },
    ] {
        let mut sampler = sampler(&sampling);
        sampler.accept(0);
        let mut choose = |ids: &[u32]| sampler.sample(&logits, Some(&allowing(5, ids)));
        assert_eq!(choose(&[0, 2, 3, 4]).unwrap().id, 3);
        assert_eq!(choose(&[0, 1, 2]).unwrap().id, 1);
        assert_eq!(choose(&[2]).unwrap().id, 2);
        assert!(matches!(choose(&[]), Err(Error::BadLogits { .. })));
        assert!(matches!(choose(&[4]), Err(Error::BadLogits { .. })));
    }
    let logit_bias = [(1, 100.0)].into();
    let mut biased = sampler(&Sampling { logit_bias, ..Sampling::greedy() });
    assert_eq!(biased.sample(&logits, Some(&allowing(5, &[0, 2]))).unwrap().id, 2);
    let short = allowing(2, &[0]);
    assert_eq!(sampler(&Sampling::greedy()).sample(&logits, Some(&short)).unwrap().id, 0);
}

#[test]
fn among_allowed_tokens_draws_follow_the_distribution() {
    let logits = ramp(40);
    let ids: Vec<u32> = (0..40).step_by(3).collect();
    let mask = allowing(40, &ids);
    let forbidden: Vec<f32> = (0..40)
        .map(|id| if mask.allows(id) { logits[id as usize] } else { f32::NEG_INFINITY })
        .collect();
    let (mut masked, mut minus) = (sampler(&plain()), sampler(&plain()));
    for _ in 0..1000 {
        let drawn = masked.sample(&logits, Some(&mask)).unwrap();
        assert_eq!(drawn, minus.sample(&forbidden, None).unwrap());
    }
}

#[test]
fn logprobs_do_not_know_of_what_is_forbidden() {
    let sampling = Sampling { logprobs: Some(1), ..Sampling::greedy() };
    let token = sampler(&sampling).sample(&[0.0, 0.0], Some(&allowing(2, &[1]))).unwrap();
    assert_eq!(token.id, 1);
    assert!((token.logprob.unwrap() - 0.5f32.ln()).abs() < 1e-6);
    assert_eq!(token.top[0].id, 0);
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    // Quarters from -8 to 8 make ties frequent; forbidden tokens are among them.
    let logit = prop_oneof![
        9 => (-32i32..32).prop_map(|quarters| quarters as f32 / 4.0),
        1 => Just(f32::NEG_INFINITY),
    ];
    let possible = |logits: &Vec<f32>| logits.iter().any(|l| *l > f32::NEG_INFINITY);
    prop::collection::vec(logit, 1..300).prop_filter("some token must be possible", possible)
}

/// The possible tokens, best first.
fn sorted(logits: &[f32]) -> Vec<(u32, f32)> {
    let mut order: Vec<(u32, f32)> =
        logits.iter().enumerate().map(|(id, &l)| (id as u32, l)).collect();
    order.retain(|(_, l)| *l > f32::NEG_INFINITY);
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order
}

fn ids(kept: &[Candidate]) -> Vec<u32> {
    let mut ids: Vec<u32> = kept.iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

fn sorted_ids(order: &[(u32, f32)]) -> Vec<u32> {
    let mut ids: Vec<u32> = order.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids
}

proptest! {
    #[test]
    fn top_k_is_the_head_of_the_sorted_list(logits in logits(), k in 0usize..310) {
        let mut order = sorted(&logits);
        if k > 0 {
            order.truncate(k);
        }
        prop_assert_eq!(ids(&candidates::top_k(&logits, k)), sorted_ids(&order));
    }

    #[test]
    fn top_p_is_the_shortest_sufficient_head(logits in logits(), p in 0.0f32..1.0) {
        let order = sorted(&logits);
        let max = order[0].1;
        let weights: Vec<f64> = order.iter().map(|(_, l)| f64::from(l - max).exp()).collect();
        let wanted = f64::from(p) * weights.iter().sum::<f64>();
        let mut kept = candidates::top_k(&logits, 0);
        candidates::top_p(&mut kept, max, p);
        prop_assert!(!kept.is_empty());
        prop_assert_eq!(ids(&kept), sorted_ids(&order[..kept.len()]));
        // Sums in another order may differ in the last bits.
        let slack = 1e-9 * weights.iter().sum::<f64>();
        prop_assert!(weights[..kept.len()].iter().sum::<f64>() >= wanted - slack);
        prop_assert!(weights[..kept.len() - 1].iter().sum::<f64>() <= wanted + slack);
    }

    #[test]
    fn min_p_compares_with_the_best(logits in logits(), p in 0.001f32..=1.0) {
        let order = sorted(&logits);
        let max = order[0].1;
        let mut kept = candidates::top_k(&logits, 0);
        candidates::min_p(&mut kept, max, p);
        let ratio = |l: f32| f64::from(l - max).exp() / f64::from(p);
        prop_assert!(kept.iter().any(|c| c.id == order[0].0));
        prop_assert!(kept.iter().all(|c| ratio(c.logit) >= 1.0 - 1e-5));
        let (kept, dropped): (Vec<_>, Vec<_>) =
            order.iter().partition::<Vec<(u32, f32)>, _>(|(id, _)| kept.iter().any(|c| c.id == *id));
        prop_assert!(dropped.iter().all(|(_, l)| ratio(*l) <= 1.0 + 1e-5), "{:?}", kept);
    }

    #[test]
    fn any_options_draw_a_token_that_all_filters_keep(
        logits in logits(),
        top_k in 0usize..50,
        top_p in 0.01f32..=1.0,
        min_p in 0.0f32..=1.0,
        temperature in 0.01f32..3.0,
        seed: u64,
    ) {
        let sampling = Sampling {
            top_k: Some(top_k),
            top_p: Some(top_p),
            min_p: Some(min_p),
            temperature: Some(temperature),
            seed: Some(seed),
            ..Sampling::default()
        };
        let token = sampler(&sampling).sample(&logits, None).unwrap();
        let order = sorted(&logits);
        let rank = order.iter().position(|(id, _)| *id == token.id);
        prop_assert!(rank.is_some_and(|rank| top_k == 0 || rank < top_k));
        let ratio = f64::from(logits[token.id as usize] - order[0].1).exp();
        prop_assert!(ratio >= f64::from(min_p) * (1.0 - 1e-5));
    }
}
