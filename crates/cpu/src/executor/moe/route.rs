//! Which experts a token goes to, and the tokens of each expert.

use std::cmp::Ordering;

use baton_graph::{Moe, Routing};

use crate::disjoint::Disjoint;
use crate::executor::rows::each_chunk;
use crate::pool::Pool;

/// An expert that a token uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Choice {
    pub(super) expert: u32,
    pub(super) weight: f32,
}

/// Chooses the experts of each row of logits; of equal logits the lower index wins.
pub(super) fn choose(pool: &Pool, moe: &Moe, logits: &[f32], choices: &mut [Choice]) {
    let (experts, top_k) = (moe.experts, moe.top_k);
    let choices = Disjoint::new(choices);
    each_chunk(pool, logits.len() / experts, 8 * experts, |chunk| {
        for row in chunk {
            // SAFETY: a row is in one task's chunk only.
            let choices = unsafe { choices.part(row * top_k..(row + 1) * top_k) };
            choose_row(moe.routing, &logits[row * experts..(row + 1) * experts], choices);
        }
    });
}

fn choose_row(routing: Routing, logits: &[f32], choices: &mut [Choice]) {
    // Insertion into the sorted list of the best so far; weights are logits until the end.
    let mut held = 0;
    for (expert, &weight) in logits.iter().enumerate() {
        let after =
            choices[..held].iter().rposition(|c| c.weight.total_cmp(&weight) != Ordering::Less);
        let at = after.map_or(0, |after| after + 1);
        if at < choices.len() {
            held = (held + 1).min(choices.len());
            choices[at..held].rotate_right(1);
            choices[at] = Choice { expert: expert as u32, weight };
        }
    }
    let highest = choices[0].weight;
    for choice in choices.iter_mut() {
        choice.weight = (choice.weight - highest).exp();
    }
    let total: f32 = match routing {
        Routing::SoftmaxThenTopK { normalize: false } => {
            logits.iter().map(|logit| (logit - highest).exp()).sum()
        }
        _ => choices.iter().map(|choice| choice.weight).sum(),
    };
    choices.iter_mut().for_each(|choice| choice.weight /= total);
}

/// Uses of experts in the order of the experts. Use `i` of all tokens, `token * top_k + n`, has a
/// place in that order.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Per expert its first place; one more at the end.
    starts: Vec<u32>,
    /// Per place the token and the expert.
    tokens: Vec<u32>,
    experts: Vec<u32>,
    /// Per use its place.
    places: Vec<u32>,
    /// 0, 1, 2, ...
    numbers: Vec<u32>,
}

impl Groups {
    pub(super) fn sort(&mut self, experts: usize, top_k: usize, choices: &[Choice]) {
        let uses = choices.len();
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        for choice in choices {
            self.starts[choice.expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        for list in [&mut self.tokens, &mut self.experts, &mut self.places] {
            list.resize(uses, 0);
        }
        self.numbers.extend(self.numbers.len() as u32..uses as u32);
        for (at, choice) in choices.iter().enumerate() {
            let next = &mut self.starts[choice.expert as usize];
            self.places[at] = *next;
            self.tokens[*next as usize] = (at / top_k) as u32;
            self.experts[*next as usize] = choice.expert;
            *next += 1;
        }
        // Each start has moved on to the next expert's.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// Experts that some token uses.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.starts.len() - 1).filter(|&expert| self.starts[expert] < self.starts[expert + 1])
    }

    fn range(&self, expert: usize) -> std::ops::Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }

    /// The tokens of an expert.
    pub(super) fn tokens_of(&self, expert: usize) -> &[u32] {
        &self.tokens[self.range(expert)]
    }

    /// The places of an expert.
    pub(super) fn uses_of(&self, expert: usize) -> &[u32] {
        &self.numbers[self.range(expert)]
    }

    /// The expert at a place.
    pub(super) fn expert_at(&self, place: usize) -> u32 {
        self.experts[place]
    }

    /// The place of a use.
    pub(super) fn place(&self, at: usize) -> usize {
        self.places[at] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_experts_are_chosen_once_each() {
        let logits = [0.0, 2.0, 1.0, 2.0, f32::NEG_INFINITY];
        let mut choices = [Choice::default(); 3];
        choose_row(Routing::TopKThenSoftmax, &logits, &mut choices);
        assert_eq!(choices.map(|c| c.expert), [1, 3, 2]);
        let sum: f32 = choices.iter().map(|c| c.weight).sum();
        assert!((sum - 1.0).abs() < 1e-6 && choices[0].weight == choices[1].weight);
        choose_row(Routing::SoftmaxThenTopK { normalize: false }, &logits, &mut choices);
        let sum: f32 = choices.iter().map(|c| c.weight).sum();
        assert!(
            (sum - (2.0 * 2f32.exp() + 1f32.exp()) / (2.0 * 2f32.exp() + 1f32.exp() + 1.0)).abs()
                < 1e-6
        );
        // Nonsense is routed somewhere, without a panic.
        choose_row(Routing::TopKThenSoftmax, &[f32::NAN; 5], &mut choices);
        assert_eq!(choices.map(|c| c.expert), [0, 1, 2]);
    }

    #[test]
    fn uses_are_sorted_by_expert_and_found_again() {
        let choices = [3, 0, 3, 1, 0, 3].map(|expert| Choice { expert, weight: 1.0 });
        let mut groups = Groups::default();
        groups.sort(5, 2, &choices);
        assert_eq!(groups.used().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(
            [groups.tokens_of(0), groups.tokens_of(1), groups.tokens_of(3)],
            [&[0, 2][..], &[1], &[0, 1, 2]]
        );
        assert_eq!(groups.uses_of(3), [3, 4, 5]);
        for (at, choice) in choices.iter().enumerate() {
            let place = groups.place(at);
            assert_eq!(groups.expert_at(place), choice.expert);
            assert_eq!(groups.tokens[place] as usize, at / 2);
        }
    }
}
