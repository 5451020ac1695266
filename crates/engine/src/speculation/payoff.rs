//! Whether a guess pays: what steps of several tokens cost, and how often guesses are right.
//!
//! All of it is measured while answers are made, so that guessing stops where it loses: on a machine
//! that is bound by arithmetic, with a draft model that is too slow, in a text that nothing foretells.

use std::time::Duration;

/// Most tokens that are guessed for one step.
pub(crate) const MOST_GUESSES: usize = 15;
/// Guesses from the text are told apart by the length of their match, up to this.
const LENGTHS: usize = 8;
/// A step with guesses must be expected to be faster by this.
const MARGIN: f64 = 1.03;
/// Cost of one more row, as a share of a step, before it was measured.
const FIRST_SLOPE: f64 = 0.1;
/// Steps without a guess before one is tried all the same; more each time that it stays at that.
const PATIENCE: u32 = 64;
/// The same, at most.
const LONGEST_PATIENCE: u32 = 2048;
/// Tokens guessed in such a trial.
const TRIAL: usize = 3;
/// Measurements that are enough to tell a slow draft model.
const ENOUGH: u32 = 4;

/// Where a guess comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An earlier place in the text of which so many tokens match.
    Text(usize),
    /// The draft model.
    Draft,
}

/// What steps and guesses were like so far, over all answers of an engine.
#[derive(Debug)]
pub(crate) struct Payoff {
    /// Seconds of a step of so many rows and one more.
    steps: [Mean; MOST_GUESSES + 1],
    /// Seconds in which the draft model writes a token.
    draft: Mean,
    /// How often a guessed token was right: by length of the match, and of the draft model.
    text: [Share; LENGTHS + 1],
    drafted: Share,
    /// What came of asking the draft model, also where it was too unsure to guess.
    yielded: Yield,
    /// Steps since a guess paid: from the text, and of the draft model.
    waits: [Wait; 2],
}

impl Default for Payoff {
    fn default() -> Self {
        // The longer a match, the likelier it goes on.
        let text = std::array::from_fn(|len| Share::expected(len as f64 / (len as f64 + 2.0)));
        Payoff {
            steps: Default::default(),
            draft: Mean::default(),
            text,
            drafted: Share::expected(0.7),
            yielded: Yield::default(),
            waits: Default::default(),
        }
    }
}

impl Payoff {
    /// Takes note of a step that evaluated `rows` tokens of one answer.
    pub(crate) fn note_step(&mut self, rows: usize, took: Duration) {
        if let Some(mean) = rows.checked_sub(1).and_then(|at| self.steps.get_mut(at)) {
            mean.note(took.as_secs_f64());
        }
    }

    /// Takes note of `steps` of the draft model.
    pub(crate) fn note_draft(&mut self, steps: usize, took: Duration) {
        if steps > 0 {
            self.draft.note(took.as_secs_f64() / steps as f64);
        }
    }

    /// Takes note that `tokens` came of asking the draft model, which took `took` with all that
    /// followed from it.
    pub(crate) fn note_yield(&mut self, tokens: usize, took: Duration) {
        self.yielded.note(tokens, took);
        let won = self
            .plain_rate()
            .is_some_and(|plain| tokens as f64 > plain * took.as_secs_f64() * MARGIN);
        if won {
            self.waits[1].hurry();
        }
    }

    /// Takes note that the first `right` tokens of a guess came, and whether another one did instead
    /// of the next.
    pub(crate) fn note_guess(&mut self, source: Source, right: usize, then_wrong: bool) {
        self.share(source).note(right, then_wrong);
    }

    /// How many of up to `most` tokens from `source` to try, and the tokens per second expected then;
    /// none if a step without them is faster.
    pub(crate) fn worth(&mut self, source: Source, most: usize) -> Option<(usize, f64)> {
        let most = most.min(MOST_GUESSES);
        let likely = self.share(source).rate();
        let plain = self.plain_rate()?;
        let wait = match source {
            Source::Text(_) => 0,
            Source::Draft => 1,
        };
        let losing = source == Source::Draft && self.yielded.rate().is_some_and(|r| r < plain);
        if let Some((n, rate)) = self.best(source, likely, most)
            && rate > plain * MARGIN
            && !losing
        {
            self.waits[wait] = Wait::default();
            return Some((n, rate));
        }
        // Where every guess would have to be right, or more than that, there is nothing to try.
        let open = match source {
            // How often these are right is seen without trying them.
            Source::Text(_) => likely > 0.5,
            Source::Draft if self.draft.count < ENOUGH => return Some((most.min(TRIAL), plain)),
            Source::Draft => {
                self.best(source, 1.0, most).is_some_and(|(_, rate)| rate > plain * MARGIN)
            }
        };
        let trial = open && most > 0 && self.waits[wait].is_over();
        trial.then_some((most.min(TRIAL), plain))
    }

    /// The number of guessed tokens with which most come in a second.
    fn best(&self, source: Source, likely: f64, most: usize) -> Option<(usize, f64)> {
        let each = match source {
            Source::Text(_) => 0.0,
            Source::Draft => self.draft.value.unwrap_or(0.0),
        };
        let mut expected = 1.0;
        let mut right = 1.0;
        let rate = |n: usize| {
            right *= likely;
            expected += right;
            Some((n, expected / (self.step(n + 1)? + each * n as f64)))
        };
        (1..=most).filter_map(rate).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Tokens per second without guesses.
    fn plain_rate(&self) -> Option<f64> {
        self.steps[0].value.filter(|&seconds| seconds > 0.0).map(|seconds| 1.0 / seconds)
    }

    /// Seconds of a step of `rows`: measured, or on the line through the nearest that were.
    fn step(&self, rows: usize) -> Option<f64> {
        let known = |at: usize| Some((at, self.steps[at].value?));
        let at = rows - 1;
        let (low, below) = (0..=at).rev().find_map(known)?;
        if low == at {
            return Some(below);
        }
        let slope = match (at + 1..=MOST_GUESSES).find_map(known) {
            Some((high, above)) => (above - below) / (high - low) as f64,
            None if low == 0 => below * FIRST_SLOPE,
            None => {
                let (first, least) = (0..low).rev().find_map(known).unwrap_or((0, below));
                (below - least) / (low - first) as f64
            }
        };
        Some(below + slope.max(0.0) * (at - low) as f64)
    }

    fn share(&mut self, source: Source) -> &mut Share {
        match source {
            Source::Text(len) => &mut self.text[len.min(LENGTHS)],
            Source::Draft => &mut self.drafted,
        }
    }
}

/// A running mean that hurries down and is slow to rise: what else the machine does makes
/// measurements larger, never smaller.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: Option<f64>,
    count: u32,
}

impl Mean {
    fn note(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        self.value = Some(match self.value {
            None => value,
            Some(old) if value < old => old + 0.5 * (value - old),
            Some(old) => old + 0.1 * (value.min(2.0 * old) - old),
        });
    }
}

/// How often something happened lately.
#[derive(Clone, Copy, Debug)]
struct Share {
    expected: f64,
    yes: f64,
    all: f64,
}

impl Share {
    /// Cases that the expectation counts for.
    const WEIGHT: f64 = 4.0;
    /// What a case counts after the next one.
    const FADING: f64 = 0.97;

    fn expected(expected: f64) -> Self {
        Share { expected, yes: 0.0, all: 0.0 }
    }

    fn note(&mut self, yes: usize, then_no: bool) {
        let cases = std::iter::repeat_n(1.0, yes).chain(then_no.then_some(0.0));
        for case in cases {
            self.yes = self.yes * Self::FADING + case;
            self.all = self.all * Self::FADING + 1.0;
        }
    }

    fn rate(&self) -> f64 {
        (self.yes + Self::WEIGHT * self.expected) / (self.all + Self::WEIGHT)
    }
}

/// Tokens and the seconds that they took, lately.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    tokens: f64,
    seconds: f64,
    cases: u32,
}

impl Yield {
    /// What a case counts after the next one.
    const FADING: f64 = 0.9;

    fn note(&mut self, tokens: usize, took: Duration) {
        self.tokens = self.tokens * Self::FADING + tokens as f64;
        self.seconds = self.seconds * Self::FADING + took.as_secs_f64();
        self.cases = self.cases.saturating_add(1);
    }

    /// Tokens per second, once there are enough of them to tell.
    fn rate(&self) -> Option<f64> {
        (self.cases >= 2 * ENOUGH && self.seconds > 0.0).then(|| self.tokens / self.seconds)
    }
}

/// Steps since something was tried.
#[derive(Clone, Copy, Debug)]
struct Wait {
    steps: u32,
    patience: u32,
}

impl Default for Wait {
    fn default() -> Self {
        Wait { steps: 0, patience: PATIENCE }
    }
}

impl Wait {
    /// The next step may try again.
    fn hurry(&mut self) {
        *self = Wait { steps: PATIENCE, patience: PATIENCE };
    }

    fn is_over(&mut self) -> bool {
        self.steps += 1;
        if self.steps < self.patience {
            return false;
        }
        *self = Wait { steps: 0, patience: (2 * self.patience).min(LONGEST_PATIENCE) };
        true
    }
}

#[cfg(test)]
mod tests;
