//! What the next step evaluates.

use baton_graph::Readiness;

use super::pace::Pace;

/// A running answer, as far as its turn depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Tokens that wait to be evaluated.
    pub(super) pending: usize,
    /// When the executor would compute them.
    pub(super) readiness: Readiness,
}

/// What one answer adds to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its place among the running.
    pub(super) at: usize,
    pub(super) tokens: usize,
    /// Nothing is computed before the step ends.
    pub(super) background: bool,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
    /// Answers that get their next token.
    pub(super) decoding: usize,
    /// Tokens of prompts that these wait for.
    pub(super) prefilled: usize,
    /// Tokens of prompts that nobody waits for.
    pub(super) relayed: usize,
}

impl Plan {
    /// The next batch: all that decode, and as much of the prompts as the pace allows. The oldest
    /// prompt gets at least half of that, then the shortest come first, so that a short question does
    /// not wait for a long document, and the document does not wait for ever. Of those that are
    /// computed in the background one gets its turn in a step: the oldest, if `oldest_first`, or else
    /// the shortest.
    pub(super) fn new(
        running: &[Candidate],
        pace: &Pace,
        batch_tokens: usize,
        oldest_first: bool,
    ) -> Plan {
        let pending = |at: usize| running[at].pending;
        let ready = (0..running.len()).filter(|&at| running[at].readiness == Readiness::Now);
        let (decode, mut prefill): (Vec<usize>, Vec<usize>) =
            ready.partition(|&at| pending(at) == 1);
        let part = |at, tokens| Part { at, tokens, background: false };
        let mut parts: Vec<Part> = decode.iter().map(|&at| part(at, 1)).collect();
        let mut room = batch_tokens - parts.len();
        let relayed = next_in_background(running, oldest_first);
        let relayed = relayed.map(|(at, most)| (at, most.min(room))).filter(|&(_, n)| n > 0);
        if let Some((at, tokens)) = relayed {
            parts.push(Part { background: true, ..part(at, tokens) });
            room -= tokens;
        }
        let budget = pace.budget(decode.len(), room);
        let mut left = budget;
        let oldest = prefill.first().copied();
        prefill.sort_by_key(|&at| pending(at));
        for at in prefill {
            // What is kept back for the oldest, as long as it was not its turn yet.
            let kept = match oldest.filter(|&oldest| pending(oldest) > pending(at)) {
                Some(oldest) => (budget / 2).min(pending(oldest)),
                None => 0,
            };
            let tokens = pending(at).min(left.saturating_sub(kept));
            if tokens > 0 {
                left -= tokens;
                parts.push(part(at, tokens));
            }
        }
        Plan {
            parts,
            decoding: decode.len(),
            prefilled: budget - left,
            relayed: relayed.map_or(0, |(_, tokens)| tokens),
        }
    }
}

/// Whose turn it is to be computed in the background, and how much of it at most.
fn next_in_background(running: &[Candidate], oldest_first: bool) -> Option<(usize, usize)> {
    let mut relayed =
        running.iter().enumerate().filter_map(|(at, candidate)| match candidate.readiness {
            Readiness::Background(most) => Some((at, most)),
            _ => None,
        });
    match oldest_first {
        true => relayed.next(),
        false => relayed.min_by_key(|&(at, _)| running[at].pending),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pending: usize, readiness: Readiness) -> Candidate {
        Candidate { pending, readiness }
    }

    fn part(at: usize, tokens: usize) -> Part {
        Part { at, tokens, background: false }
    }

    #[test]
    fn the_oldest_prompt_gets_half_and_the_shortest_the_rest() {
        let now = |pending| candidate(pending, Readiness::Now);
        let running = [now(500), now(1), now(40), now(300)];
        let plan = Plan::new(&running, &Pace::default(), 101, true);
        assert_eq!(plan.parts, [part(1, 1), part(2, 40), part(3, 10), part(0, 50)]);
        assert_eq!((plan.decoding, plan.prefilled, plan.relayed), (1, 100, 0));
    }

    #[test]
    fn prompts_in_the_background_take_turns_and_those_who_wait_are_left_out() {
        let behind = |pending| candidate(pending, Readiness::Background(64));
        let running = [
            behind(500),
            candidate(1, Readiness::Now),
            behind(90),
            candidate(1, Readiness::Later),
            candidate(7, Readiness::Later),
        ];
        for (oldest_first, at) in [(true, 0), (false, 2)] {
            let plan = Plan::new(&running, &Pace::default(), 128, oldest_first);
            let relayed = Part { background: true, ..part(at, 64) };
            assert_eq!(plan.parts, [part(1, 1), relayed]);
            assert_eq!((plan.decoding, plan.prefilled, plan.relayed), (1, 0, 64));
        }
        assert_eq!(Plan::new(&running[3..], &Pace::default(), 128, true), Plan::default());
    }

    #[test]
    fn a_batch_is_never_too_large() {
        let behind = candidate(500, Readiness::Background(64));
        let running = [candidate(1, Readiness::Now), behind, candidate(30, Readiness::Now)];
        let plan = Plan::new(&running, &Pace::default(), 5, true);
        assert_eq!(plan.parts, [part(0, 1), Part { background: true, ..part(1, 4) }]);
        let plan = Plan::new(&running[..1], &Pace::default(), 1, true);
        assert_eq!(plan.parts, [part(0, 1)]);
    }
}
