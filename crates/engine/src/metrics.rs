//! How fast an answer came and what it took.

use std::time::Duration;

use crate::Phase;

/// Numbers of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose cache was there already.
    pub reused_tokens: usize,
    /// Tokens of the prompt that were evaluated.
    pub prefilled_tokens: usize,
    /// Those of them that one unit evaluated and handed over to the one that writes answers.
    pub handed_over_tokens: usize,
    /// Tokens of the answer; the end-of-generation token is none of it.
    pub generated_tokens: usize,
    /// Steps that wrote the tokens after the first; fewer than these if guesses were right.
    pub decode_steps: usize,
    /// Tokens that were guessed, and evaluated together with the one before them.
    pub guessed_tokens: usize,
    /// Those of them that became part of the answer.
    pub right_guesses: usize,
    /// Loading the model.
    pub load: Duration,
    /// Evaluating the prompt.
    pub prefill: Duration,
    /// From the request to the first token (TTFT), if there was one.
    pub first_token: Option<Duration>,
    /// From the first token to the last.
    pub decode: Duration,
    /// What evaluating the prompt took of the unit that did so; if it was done by two, of the one that
    /// handed over.
    pub prefill_phase: Phase,
    /// What the tokens after the first took of theirs.
    pub decode_phase: Phase,
    /// Most memory that the process ever used, in bytes, if the system tells.
    pub peak_memory: Option<u64>,
}

impl Metrics {
    /// Prompt tokens evaluated per second.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.prefilled_tokens, self.prefill)
    }

    /// Tokens per second after the first.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }

    /// Share of the guessed tokens that were right, if any were guessed.
    pub fn acceptance(&self) -> Option<f64> {
        share(self.right_guesses, self.guessed_tokens)
    }

    /// Tokens of the answer for each step after the first token.
    pub fn tokens_per_step(&self) -> Option<f64> {
        share(self.generated_tokens.saturating_sub(1), self.decode_steps)
    }

    /// Time per output token (TPOT) after the first.
    pub fn time_per_token(&self) -> Option<Duration> {
        let steps = u32::try_from(self.generated_tokens.checked_sub(1)?).ok()?;
        self.decode.checked_div(steps)
    }
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    let known = tokens > 0 && !time.is_zero();
    known.then(|| tokens as f64 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_do_not_count_the_first_token() {
        let metrics = Metrics {
            prefilled_tokens: 100,
            prefill: Duration::from_secs(2),
            generated_tokens: 11,
            decode_steps: 4,
            guessed_tokens: 8,
            right_guesses: 6,
            decode: Duration::from_secs(5),
            ..Metrics::default()
        };
        assert_eq!((metrics.acceptance(), metrics.tokens_per_step()), (Some(0.75), Some(2.5)));
        assert_eq!(metrics.prefill_rate(), Some(50.0));
        assert_eq!(metrics.decode_rate(), Some(2.0));
        assert_eq!(metrics.time_per_token(), Some(Duration::from_millis(500)));
    }

    #[test]
    fn nothing_done_has_no_rate() {
        let metrics = Metrics { generated_tokens: 1, ..Metrics::default() };
        assert_eq!(metrics.prefill_rate(), None);
        assert_eq!(metrics.decode_rate(), None);
        assert_eq!(metrics.time_per_token(), None);
        assert_eq!(Metrics::default().time_per_token(), None);
        assert_eq!((metrics.acceptance(), metrics.tokens_per_step()), (None, None));
    }
}
