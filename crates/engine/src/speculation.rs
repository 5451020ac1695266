//! Guessing ahead: a step that evaluates several tokens of an answer costs little more than one of a
//! single token where reading the weights is what takes the time.
//!
//! Guesses are cheap and may be wrong. They stand behind the answer's last token in the batch, and
//! from the logits of each the next token is chosen as ever, by the same sampler in the same state. As
//! long as what is chosen is what was guessed, the next logits are there already; what comes behind is
//! taken out of the cache. So an answer is the same with guesses as without, random or not.

mod draft;
mod lookup;
mod payoff;

use std::fmt;
use std::str::FromStr;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Engine, Error, Result};
use draft::{Draft, Drafter};
use lookup::Lookup;
use payoff::Source;

pub(crate) use draft::check_vocabulary;
pub(crate) use payoff::{MOST_GUESSES, Payoff};

/// Where guesses of an answer's next tokens come from. None changes the answer, only its speed, and
/// each is left alone for as long as it is measured to lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Speculate {
    /// From everything there is.
    #[default]
    Auto,
    /// Nowhere: one token at a time.
    Off,
    /// From what followed earlier in the text.
    Lookup,
    /// From the draft model.
    Draft,
}

impl Speculate {
    /// Every kind.
    pub const ALL: [Speculate; 4] =
        [Speculate::Auto, Speculate::Off, Speculate::Lookup, Speculate::Draft];

    /// Checks that there is a draft model if only that may guess.
    pub(crate) fn check(self, has_draft: bool) -> Result<()> {
        if self == Speculate::Draft && !has_draft {
            let wanted = "auto, off or lookup where there is no draft model";
            return Err(Error::Option { name: "speculate", value: self.to_string(), wanted });
        }
        Ok(())
    }
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Speculate::Auto => "auto",
            Speculate::Off => "off",
            Speculate::Lookup => "lookup",
            Speculate::Draft => "draft",
        })
    }
}

impl FromStr for Speculate {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Speculate::ALL.into_iter().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| Error::Option {
            name: "speculate",
            value: name.to_owned(),
            wanted: "auto, off, lookup or draft",
        })
    }
}

/// Guesses the next tokens of one answer.
#[derive(Debug)]
pub(crate) struct Speculation {
    engine: Engine,
    lookup: Option<Lookup>,
    drafter: Option<Drafter>,
    step: Step,
}

/// What is guessed for the next step, and how far it came true.
#[derive(Debug, Default)]
struct Step {
    /// Whether it is measured.
    alone: bool,
    /// What it took, once it is known.
    took: Duration,
    guess: Vec<u32>,
    source: Option<Source>,
    /// Tokens of the guess that were chosen.
    right: usize,
    /// What the text foretells, if it is not tried.
    omen: Option<(Source, u32)>,
    /// What asking the draft model took, if it was.
    drafted: Option<Duration>,
}

impl Speculation {
    /// None if nothing is to be guessed.
    ///
    /// # Errors
    /// [`Error::Option`] if a draft model is asked for and there is none.
    pub(crate) fn new(engine: &Engine, wanted: Option<Speculate>) -> Result<Option<Self>> {
        let wanted = wanted.unwrap_or(engine.traits().speculate);
        let draft = engine.draft();
        wanted.check(draft.is_some())?;
        let lookup = matches!(wanted, Speculate::Auto | Speculate::Lookup).then(Lookup::default);
        let drafts = matches!(wanted, Speculate::Auto | Speculate::Draft);
        let drafter = draft.filter(|_| drafts).cloned().map(Drafter::new).transpose()?;
        let engine = engine.clone();
        let some = lookup.is_some() || drafter.is_some();
        Ok(some.then(|| Speculation { engine, lookup, drafter, step: Step::default() }))
    }

    /// Guesses up to `most` of the tokens that follow `tokens`, up to the first that `ends` an answer:
    /// nothing behind it is of use.
    pub(crate) fn guess(&mut self, tokens: &[u32], most: usize, ends: impl Fn(u32) -> bool) {
        let Speculation { engine, lookup, drafter, step } = self;
        *step = Step { alone: true, ..Step::default() };
        let found = lookup.as_mut().and_then(|lookup| lookup.find(tokens));
        let found = found.map(|found| (found, Source::Text(found.len)));
        let room = drafter.as_ref().map_or(0, |d| d.context().saturating_sub(tokens.len()));
        let (text, draft) = {
            let mut payoff = payoff_of(engine);
            let text = found.and_then(|(_, source)| payoff.worth(source, most));
            let drafts = most.min(room);
            let draft = (drafts > 0).then(|| payoff.worth(Source::Draft, drafts)).flatten();
            (text, draft)
        };
        let rate = |worth: Option<(usize, f64)>| worth.map_or(0.0, |(_, rate)| rate);
        if let (Some(of), Some((n, _))) = (drafter.as_mut(), draft)
            && rate(draft) > rate(text)
        {
            match of.guess(tokens, n) {
                Ok(draft) => step.take(draft, engine),
                Err(error) => {
                    tracing::warn!("this answer goes on without the draft model: {error}");
                    *drafter = None;
                }
            }
        } else if let (Some((found, source)), Some((n, _))) = (found, text) {
            (step.guess, step.source) = (found.guess(tokens, n), Some(source));
        }
        if let Some(end) = step.guess.iter().position(|&token| ends(token)) {
            step.guess.truncate(end);
        }
        if step.guess.is_empty()
            && let Some((found, source)) = found
        {
            step.omen = found.guess(tokens, 1).first().map(|&token| (source, token));
        }
    }

    /// What is guessed for the next step.
    pub(crate) fn guessed(&self) -> &[u32] {
        &self.step.guess
    }

    /// Which of the step's rows the next token is chosen by.
    pub(crate) fn row(&self) -> usize {
        self.step.right
    }

    /// Guesses nothing after all.
    pub(crate) fn forgo(&mut self) {
        self.step = Step::default();
    }

    /// The step took so long.
    pub(crate) fn note(&mut self, took: Duration) {
        if self.step.alone {
            self.step.took = took;
            payoff_of(&self.engine).note_step(self.step.guess.len() + 1, took);
        }
    }

    /// Takes the token that was chosen; whether it is what was guessed, so that the logits behind it
    /// are there.
    pub(crate) fn check(&mut self, token: u32) -> bool {
        let expected = self.step.guess.get(self.step.right).copied();
        if expected == Some(token) {
            self.step.right += 1;
            return true;
        }
        let Step { guess, source, right, omen, drafted, took, .. } = std::mem::take(&mut self.step);
        let mut payoff = payoff_of(&self.engine);
        if let Some(source) = source.filter(|_| !guess.is_empty()) {
            payoff.note_guess(source, right, expected.is_some());
        }
        if let Some((source, foretold)) = omen {
            let came = foretold == token;
            payoff.note_guess(source, came.into(), !came);
        }
        if let Some(asked) = drafted {
            payoff.note_yield(right + 1, asked + took);
        }
        false
    }
}

impl Step {
    /// Takes what the draft model wrote.
    fn take(&mut self, draft: Draft, engine: &Engine) {
        if draft.steps > 0 {
            payoff_of(engine).note_draft(draft.steps, draft.took);
            self.drafted = Some(draft.took);
        }
        (self.guess, self.source) = (draft.tokens, Some(Source::Draft));
    }
}

/// A panic elsewhere leaves no measurement half written.
fn payoff_of(engine: &Engine) -> MutexGuard<'_, Payoff> {
    engine.payoff().lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for kind in Speculate::ALL {
            assert_eq!(kind.to_string().parse::<Speculate>().unwrap(), kind);
        }
        let error = "guess".parse::<Speculate>().unwrap_err().to_string();
        assert!(error.contains("guess") && error.contains("lookup"), "{error}");
    }
}
