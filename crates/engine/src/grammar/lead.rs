//! What comes before a constraint: the reasoning of the model, up to a text that ends it.
//!
//! The text is looked for in bytes, so it may come in tokens of any size. A token that completes it
//! and goes on with something else than white space is forbidden: what it begins would have to fit
//! the grammar, which was not asked yet.

use super::mask::TokenMask;
use super::vocabulary::{MAX_GAP, SharedVocabulary, is_space};

/// Waits for a text.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    text: Vec<u8>,
    /// `fallback[n]`: how much of the text still matches when the byte after its first `n + 1`
    /// bytes does not (Knuth, Morris and Pratt).
    fallback: Vec<usize>,
    /// How many bytes of the text the tokens so far end with.
    matched: usize,
    /// For each number of matched bytes what may follow, once it was needed.
    masks: Vec<Option<TokenMask>>,
    vocabulary: SharedVocabulary,
}

impl Lead {
    /// Waits for `text`, which must not be empty.
    pub(super) fn new(text: &str, vocabulary: SharedVocabulary) -> Self {
        let text = text.as_bytes().to_vec();
        let mut fallback = vec![0; text.len()];
        let mut matched = 0;
        for at in 1..text.len() {
            while matched > 0 && text[at] != text[matched] {
                matched = fallback[matched - 1];
            }
            if text[at] == text[matched] {
                matched += 1;
            }
            fallback[at] = matched;
        }
        let masks = vec![None; text.len()];
        Lead { text, fallback, matched: 0, masks, vocabulary }
    }

    /// Makes the mask for where it is now.
    pub(super) fn prepare(&mut self) {
        let matched = self.matched;
        if self.masks[matched].is_none() {
            let mut mask = TokenMask::all(self.vocabulary.len());
            self.vocabulary.ends.iter().for_each(|&end| mask.forbid(end));
            for id in 0..self.vocabulary.len() as u32 {
                let bytes = self.vocabulary.bytes(id);
                if let Ok(rest) = self.advance(matched, bytes)
                    && !(is_space(rest) && rest.len() <= MAX_GAP)
                {
                    mask.forbid(id);
                }
            }
            self.masks[matched] = Some(mask);
        }
    }

    /// What may follow, once it was prepared: anything but the end of the answer, and tokens that
    /// reach beyond the text.
    pub(super) fn mask(&self) -> Option<&TokenMask> {
        self.masks[self.matched].as_ref()
    }

    /// Takes a token. If that completes the text: the bytes of white space after it.
    pub(super) fn accept(&mut self, token: u32) -> Option<usize> {
        match self.advance(self.matched, self.vocabulary.bytes(token)) {
            Ok(rest) => Some(rest.len()),
            Err(matched) => {
                self.matched = matched;
                None
            }
        }
    }

    /// Reads `bytes` after `matched` bytes of the text: what follows the text if it was completed,
    /// or else how many of its bytes match then.
    fn advance<'a>(&self, mut matched: usize, bytes: &'a [u8]) -> Result<&'a [u8], usize> {
        for (at, &byte) in bytes.iter().enumerate() {
            while matched > 0 && byte != self.text[matched] {
                matched = self.fallback[matched - 1];
            }
            if byte == self.text[matched] {
                matched += 1;
            }
            if matched == self.text.len() {
                return Ok(&bytes[at + 1..]);
            }
        }
        Err(matched)
    }
}
