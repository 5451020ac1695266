//! The state of one answer within its grammar.

use std::fmt;

use llguidance::Matcher;

use super::lead::Lead;
use super::mask::TokenMask;
use super::vocabulary::{MAX_GAP, SharedVocabulary};
use crate::{Error, Result};

/// Says before each token of an answer which ones may follow.
///
/// Ask for the [`mask`](Constraint::mask), choose a token, [`accept`](Constraint::accept) it, until
/// the answer is [`finished`](Constraint::finished) or the token was one that ends it.
pub struct Constraint {
    matcher: Matcher,
    vocabulary: SharedVocabulary,
    what: &'static str,
    stage: Stage,
    /// What may follow now, if it was asked for.
    mask: Option<TokenMask>,
}

#[derive(Debug)]
enum Stage {
    /// Before the text after which the grammar counts.
    Lead(Lead),
    /// Behind it: up to so many bytes of white space may come before what the grammar says.
    Gap(usize),
    Grammar,
}

impl Constraint {
    pub(super) fn new(
        matcher: Matcher,
        vocabulary: SharedVocabulary,
        what: &'static str,
        after: Option<&str>,
    ) -> Self {
        let stage = match after {
            Some(text) if !text.is_empty() => Stage::Lead(Lead::new(text, vocabulary.clone())),
            _ => Stage::Grammar,
        };
        Constraint { matcher, vocabulary, what, stage, mask: None }
    }

    /// The tokens that may follow; those that end the answer are among them where it may end.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the grammar turns out to be too ambiguous to follow, or leads to where
    /// no token of the vocabulary fits.
    pub fn mask(&mut self) -> Result<&TokenMask> {
        if let Stage::Lead(lead) = &mut self.stage {
            lead.prepare();
        } else if self.mask.is_none() {
            let mut mask = self.grammar_mask()?;
            if let Stage::Gap(left) = self.stage {
                let short = |&&id: &&u32| self.vocabulary.bytes(id).len() <= left;
                self.vocabulary.spaces.iter().filter(short).for_each(|&id| mask.allow(id));
            }
            self.mask = Some(mask);
        }
        let mask = match &self.stage {
            Stage::Lead(lead) => lead.mask(),
            _ => self.mask.as_ref(),
        };
        Ok(mask.expect("it was made"))
    }

    fn grammar_mask(&mut self) -> Result<TokenMask> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| self.error(&error))?;
        Ok(TokenMask::from_words(mask.into(), self.vocabulary.len()))
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// [`Error::Grammar`] if it was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        match &mut self.stage {
            Stage::Lead(lead) => {
                if let Some(space) = lead.accept(token) {
                    self.stage = Stage::Gap(MAX_GAP.saturating_sub(space));
                }
                return Ok(());
            }
            Stage::Gap(left) => {
                let left = *left;
                let len = self.vocabulary.bytes(token).len();
                // White space that the grammar itself begins with belongs to it.
                if self.vocabulary.spaces.contains(&token) && len <= left && !self.fits(token)? {
                    self.mask = None;
                    self.stage = Stage::Gap(left - len);
                    return Ok(());
                }
                self.stage = Stage::Grammar;
            }
            Stage::Grammar => {}
        }
        self.mask = None;
        let ends = self.vocabulary.ends.binary_search(&token).is_ok();
        if ends && self.finished() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|error| self.error(&error))
    }

    /// Whether the answer is complete and nothing but its end could follow.
    pub fn finished(&self) -> bool {
        matches!(self.stage, Stage::Grammar)
            && self.matcher.is_stopped()
            && !self.matcher.is_error()
    }

    fn fits(&mut self, token: u32) -> Result<bool> {
        let fitting = self.matcher.validate_tokens(&[token]).map_err(|error| self.error(&error))?;
        Ok(fitting == 1)
    }

    fn error(&self, error: &impl fmt::Display) -> Error {
        super::limits::error(self.what, error)
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("what", &self.what).field("stage", &self.stage).finish()
    }
}
