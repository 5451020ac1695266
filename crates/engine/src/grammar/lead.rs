//! What comes before a constraint: the reasoning of the model, up to the texts that end it, which come
//! one after the other with anything between them.
//!
//! They are looked for in bytes, so they may come in tokens of any size. A token that completes the
//! last one and goes on with something else than white space is forbidden: what it begins would have
//! to fit the grammar, which was not asked yet.

use baton_text::Needle;

use super::mask::TokenMask;
use super::vocabulary::{MAX_GAP, SharedVocabulary, is_space};

/// Waits for texts.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    texts: Vec<Sought>,
    at: Place,
    vocabulary: SharedVocabulary,
}

/// How far a [`Lead`] is.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The text that it waits for.
    text: usize,
    /// How many bytes of it the tokens so far end with.
    matched: usize,
}

/// A text that is waited for.
#[derive(Clone, Debug)]
struct Sought {
    needle: Needle,
    /// For each number of matched bytes what may follow, once it was needed.
    masks: Vec<Option<TokenMask>>,
}

impl Lead {
    /// Waits for `texts`, one after the other; empty ones are there already. `None` if all are.
    pub(super) fn new(texts: &[String], vocabulary: SharedVocabulary) -> Option<Self> {
        let texts = texts.iter().filter(|text| !text.is_empty());
        let texts: Vec<Sought> = texts.map(|text| Sought::new(text)).collect();
        (!texts.is_empty()).then(|| Lead { texts, at: Place::default(), vocabulary })
    }

    /// Makes the mask for where it is now.
    pub(super) fn prepare(&mut self) {
        let Place { text, matched } = self.at;
        if self.texts[text].masks[matched].is_none() {
            let mut mask = TokenMask::all(self.vocabulary.len());
            self.vocabulary.ends.iter().for_each(|&end| mask.forbid(end));
            for id in 0..self.vocabulary.len() as u32 {
                let bytes = self.vocabulary.bytes(id);
                if let Ok(rest) = self.advance(bytes)
                    && !(is_space(rest) && rest.len() <= MAX_GAP)
                {
                    mask.forbid(id);
                }
            }
            self.texts[text].masks[matched] = Some(mask);
        }
    }

    /// What may follow, once it was prepared: anything but the end of the answer, and tokens that
    /// reach beyond the last text.
    pub(super) fn mask(&self) -> Option<&TokenMask> {
        self.texts[self.at.text].masks[self.at.matched].as_ref()
    }

    /// Takes a token. If that completes the last text: the bytes of white space after it.
    pub(super) fn accept(&mut self, token: u32) -> Option<usize> {
        match self.advance(self.vocabulary.bytes(token)) {
            Ok(rest) => Some(rest.len()),
            Err(at) => {
                self.at = at;
                None
            }
        }
    }

    /// Reads `bytes` from where it is: what follows the last text if that was completed, or else
    /// where it is then.
    fn advance<'a>(&self, mut bytes: &'a [u8]) -> Result<&'a [u8], Place> {
        let mut at = self.at;
        while let Some(sought) = self.texts.get(at.text) {
            match sought.advance(at.matched, bytes) {
                Ok(rest) => (at, bytes) = (Place { text: at.text + 1, matched: 0 }, rest),
                Err(matched) => return Err(Place { matched, ..at }),
            }
        }
        Ok(bytes)
    }
}

impl Sought {
    fn new(text: &str) -> Self {
        Sought { needle: Needle::new(text), masks: vec![None; text.len()] }
    }

    /// Reads `bytes` after `matched` bytes of the text: what follows the text if it was completed,
    /// or else how many of its bytes match then.
    fn advance<'a>(&self, mut matched: usize, bytes: &'a [u8]) -> Result<&'a [u8], usize> {
        for (at, &byte) in bytes.iter().enumerate() {
            matched = self.needle.advance(matched, byte);
            if matched == self.needle.len() {
                return Ok(&bytes[at + 1..]);
            }
        }
        Err(matched)
    }
}
