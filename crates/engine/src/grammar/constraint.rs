//! The state of one answer within its grammar.

use std::fmt;

use baton_text::OutputFormat;
use llguidance::Matcher;

use super::lead::Lead;
use super::mask::TokenMask;
use super::vocabulary::{MAX_GAP, SharedVocabulary};
use crate::{Error, Result};

/// The texts around what a model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// What begins it, such as `<think>`, if the model may leave it out. None if it has begun
    /// already.
    pub open: Option<String>,
    /// What ends it, such as `</think>`: texts that come one after the other, with anything between
    /// them.
    pub close: Vec<String>,
}

impl Reasoning {
    /// That of a model whose answers have this form, behind this prompt; only its end matters.
    pub fn of(format: &OutputFormat, prompt: &str) -> Option<Reasoning> {
        let (open, close) = format.reasoning_around(prompt)?;
        let close = close.into_iter().map(str::to_owned).collect();
        Some(Reasoning { open: open.map(str::to_owned), close })
    }
}

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
    /// At the beginning: this text may come, and the lead then, or what the grammar says.
    Open(Vec<u8>, Lead),
    /// Within that text: this much is still to come.
    Opening(Vec<u8>, Lead),
    /// Before the end of the texts after which the grammar counts.
    Lead(Lead),
    /// Behind it: up to so many bytes of white space may come before what the grammar says.
    Gap(usize),
    Grammar,
}

impl Stage {
    /// Within the text that begins the reasoning, of which `rest` is still to come.
    fn opening(rest: &[u8], lead: Lead) -> Self {
        if rest.is_empty() { Stage::Lead(lead) } else { Stage::Opening(rest.to_vec(), lead) }
    }
}

impl Constraint {
    pub(super) fn new(
        matcher: Matcher,
        vocabulary: SharedVocabulary,
        what: &'static str,
        reasoning: Option<&Reasoning>,
    ) -> Self {
        let lead = reasoning.and_then(|r| Lead::new(&r.close, vocabulary.clone()));
        let open = reasoning.and_then(|r| r.open.as_deref()).filter(|open| !open.is_empty());
        let stage = match (lead, open) {
            (Some(lead), Some(open)) => Stage::Open(open.as_bytes().into(), lead),
            (Some(lead), None) => Stage::Lead(lead),
            (None, _) => Stage::Grammar,
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
            let mut mask = match self.stage {
                Stage::Opening(..) => TokenMask::none(self.vocabulary.len()),
                _ => self.grammar_mask()?,
            };
            // White space before the answer, or the text that begins the reasoning.
            match &self.stage {
                Stage::Gap(left) => {
                    let all = self.vocabulary.spaces.iter();
                    all.filter(|&&id| self.is_gap(id, *left)).for_each(|&id| mask.allow(id));
                }
                Stage::Open(text, _) | Stage::Opening(text, _) => {
                    let all = 0..self.vocabulary.len() as u32;
                    all.filter(|&id| self.begins(text, id)).for_each(|id| mask.allow(id));
                }
                Stage::Lead(_) | Stage::Grammar => {}
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
        self.mask = None;
        let len = self.vocabulary.bytes(token).len();
        match std::mem::replace(&mut self.stage, Stage::Grammar) {
            Stage::Open(text, lead) if self.begins(&text, token) && !self.fits(token)? => {
                self.stage = Stage::opening(&text[len..], lead);
                Ok(())
            }
            Stage::Opening(text, lead) if self.begins(&text, token) => {
                self.stage = Stage::opening(&text[len..], lead);
                Ok(())
            }
            Stage::Lead(mut lead) => {
                self.stage = match lead.accept(token) {
                    Some(space) => Stage::Gap(MAX_GAP.saturating_sub(space)),
                    None => Stage::Lead(lead),
                };
                Ok(())
            }
            Stage::Gap(left) if self.is_gap(token, left) && !self.fits(token)? => {
                self.stage = Stage::Gap(left - len);
                Ok(())
            }
            _ if self.finished() && self.vocabulary.ends.binary_search(&token).is_ok() => Ok(()),
            _ => self.matcher.consume_token(token).map_err(|error| self.error(&error)),
        }
    }

    /// Whether the answer is complete and nothing but its end could follow.
    pub fn finished(&self) -> bool {
        matches!(self.stage, Stage::Grammar)
            && self.matcher.is_stopped()
            && !self.matcher.is_error()
    }

    /// Whether a token is within a text, at its beginning.
    fn begins(&self, text: &[u8], token: u32) -> bool {
        let token = self.vocabulary.bytes(token);
        !token.is_empty() && text.starts_with(token)
    }

    fn is_gap(&self, token: u32, left: usize) -> bool {
        self.vocabulary.spaces.binary_search(&token).is_ok()
            && self.vocabulary.bytes(token).len() <= left
    }

    /// Whether the grammar takes a token.
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
