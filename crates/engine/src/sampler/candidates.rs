//! The filters: which tokens may be drawn.

use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

impl Candidate {
    /// Likelier first; of equally likely ones the lower id.
    pub(super) fn rank(a: &Candidate, b: &Candidate) -> Ordering {
        b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
    }
}

fn possible(logits: &[f32]) -> impl Iterator<Item = Candidate> + '_ {
    let all = logits.iter().enumerate();
    all.map(|(id, &logit)| Candidate { id: id as u32, logit })
        .filter(|c| c.logit > f32::NEG_INFINITY)
}

/// The most likely token, if any is possible.
pub(super) fn best(logits: &[f32]) -> Option<Candidate> {
    possible(logits).reduce(|best, c| if c.logit > best.logit { c } else { best })
}

/// The `k` most likely tokens in no order; all possible ones if `k` is 0.
///
/// One pass over the logits: candidates gather in a buffer of `2 k`, and each time it is full the
/// worse half goes, which raises the bar for the rest.
pub(super) fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    if k == 0 || k >= logits.len() {
        return possible(logits).collect();
    }
    let mut kept: Vec<Candidate> = Vec::with_capacity(2 * k);
    let mut bar = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        // Of equal logits the earlier one ranks higher, so the bar itself need not be let in.
        if logit > bar {
            kept.push(Candidate { id: id as u32, logit });
            if kept.len() == 2 * k {
                bar = keep(&mut kept, k);
            }
        }
    }
    if kept.len() > k {
        keep(&mut kept, k);
    }
    kept
}

/// Cuts `kept` to its `k` best and returns the least logit among them.
fn keep(kept: &mut Vec<Candidate>, k: usize) -> f32 {
    let (_, last, _) = kept.select_nth_unstable_by(k - 1, Candidate::rank);
    let bar = last.logit;
    kept.truncate(k);
    bar
}

/// Keeps the fewest most likely candidates whose probabilities add up to `p`, at least one. They
/// are sorted then.
pub(super) fn top_p(kept: &mut Vec<Candidate>, max: f32, p: f32) {
    let weight = |c: &Candidate| f64::from(c.logit - max).exp();
    let wanted = f64::from(p) * kept.iter().map(weight).sum::<f64>();
    let (mut sorted, mut sum) = (0, 0.0);
    // Sort only as far as needed: a run of the best at a time, each longer than the one before.
    while sorted < kept.len() {
        let run = sorted.max(32).min(kept.len() - sorted);
        let rest = &mut kept[sorted..];
        if run < rest.len() {
            rest.select_nth_unstable_by(run - 1, Candidate::rank);
        }
        rest[..run].sort_unstable_by(Candidate::rank);
        for (i, candidate) in rest[..run].iter().enumerate() {
            sum += weight(candidate);
            if sum >= wanted {
                kept.truncate(sorted + i + 1);
                return;
            }
        }
        sorted += run;
    }
}

/// Keeps candidates at least `p` times as likely as the one with logit `max`.
pub(super) fn min_p(kept: &mut Vec<Candidate>, max: f32, p: f32) {
    let bar = max + p.ln();
    // At `p` near 1 rounding must not drop the best token itself.
    kept.retain(|c| c.logit >= bar || c.logit == max);
}
