//! How much of a prompt a step may evaluate while others wait for their next token.
//!
//! A step that evaluates a whole chunk of a prompt takes many times as long as one that only writes
//! tokens, and everybody who reads an answer would see it stop. So the part of a prompt in such a
//! step is measured to take no longer than the step would take without it, or [`LEAST_TIME`]: the
//! time between tokens at most about doubles, and a prompt still comes forward.

use std::time::Duration;

/// What a prompt may take of each step even where tokens come faster than that.
const LEAST_TIME: Duration = Duration::from_millis(50);
/// The fewest tokens of a prompt in a step: fewer would not be worth reading the weights for.
const LEAST_TOKENS: usize = 16;
/// Weight of the newest measurement in the running means.
const NEWEST: f64 = 0.25;

/// Running means of what work took, in seconds.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// One token of a prompt.
    token: Option<f64>,
    /// A step that only writes tokens.
    decode: Option<f64>,
}

impl Pace {
    /// Takes note of a step of `decoding` answers and `prefilled` tokens of prompts.
    pub(super) fn note(&mut self, decoding: usize, prefilled: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prefilled == 0 {
            blend(&mut self.decode, took);
        } else if prefilled >= LEAST_TOKENS || self.token.is_none() {
            // The part of the others is known from the steps without a prompt.
            let others = if decoding > 0 { self.decode.unwrap_or(0.0) } else { 0.0 };
            blend(&mut self.token, (took - others).max(took / 4.0) / prefilled as f64);
        }
    }

    /// Most tokens of prompts in the next step of `decoding` answers, if a batch holds `most`.
    pub(super) fn budget(&self, decoding: usize, most: usize) -> usize {
        let Some(token) = self.token.filter(|_| decoding > 0) else { return most };
        let time = self.decode.unwrap_or(0.0).max(LEAST_TIME.as_secs_f64());
        let tokens = (time / token.max(1e-9)) as usize;
        tokens.max(LEAST_TOKENS).min(most)
    }
}

fn blend(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |old| old + NEWEST * (value - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_alone_gets_whole_batches() {
        let mut pace = Pace::default();
        pace.note(0, 100, Duration::from_secs(1));
        assert_eq!(pace.budget(0, 512), 512);
    }

    #[test]
    fn others_wait_no_longer_than_a_step_of_their_own() {
        let mut pace = Pace::default();
        pace.note(0, 100, Duration::from_secs(1));
        pace.note(4, 0, Duration::from_millis(300));
        assert_eq!(pace.budget(4, 512), 30);
        // Where tokens come fast, a prompt gets its least time.
        let mut pace = Pace::default();
        pace.note(0, 1000, Duration::from_secs(1));
        pace.note(1, 0, Duration::from_millis(5));
        assert_eq!(pace.budget(1, 512), 50);
    }

    #[test]
    fn a_slow_model_still_reads_its_prompts() {
        let mut pace = Pace::default();
        pace.note(0, 16, Duration::from_secs(16));
        assert_eq!(pace.budget(1, 512), LEAST_TOKENS);
        assert_eq!(pace.budget(1, 8), 8);
    }
}
