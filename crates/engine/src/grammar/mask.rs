//! Which tokens may be chosen.

/// A set of tokens: one bit for each id of the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    len: usize,
}

impl TokenMask {
    /// A mask of `len` tokens, none of which is allowed.
    pub fn none(len: usize) -> Self {
        TokenMask { words: vec![0; len.div_ceil(32)], len }
    }

    /// A mask of `len` tokens, all of which are allowed.
    pub fn all(len: usize) -> Self {
        TokenMask { words: vec![u32::MAX; len.div_ceil(32)], len }
    }

    /// The first `len` bits of `words`, lowest first.
    pub(super) fn from_words(mut words: Vec<u32>, len: usize) -> Self {
        words.resize(len.div_ceil(32), 0);
        TokenMask { words, len }
    }

    /// Tokens of the vocabulary, allowed or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is allowed.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Number of tokens that are allowed.
    pub fn count(&self) -> usize {
        (0..self.len as u32).filter(|&id| self.allows(id)).count()
    }

    /// Whether a token is allowed; one outside the vocabulary never is.
    #[inline]
    pub fn allows(&self, id: u32) -> bool {
        let at = id as usize;
        at < self.len && self.words[at / 32] & (1 << (at % 32)) != 0
    }

    /// Allows a token of the vocabulary.
    pub fn allow(&mut self, id: u32) {
        if (id as usize) < self.len {
            self.words[id as usize / 32] |= 1 << (id % 32);
        }
    }

    /// Forbids a token.
    pub fn forbid(&mut self, id: u32) {
        if (id as usize) < self.len {
            self.words[id as usize / 32] &= !(1 << (id % 32));
        }
    }

    /// Makes the logits of all other tokens minus infinity. Logits beyond the vocabulary, which
    /// models have whose tables are padded, belong to no token.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let known = self.len.min(logits.len());
        let (logits, padding) = logits.split_at_mut(known);
        padding.fill(f32::NEG_INFINITY);
        for (logits, &word) in logits.chunks_mut(32).zip(&self.words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word & (1 << bit) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_can_be_told_and_applied() {
        let mut mask = TokenMask::none(70);
        assert!(mask.is_empty());
        [0, 31, 32, 69, 70, u32::MAX].into_iter().for_each(|id| mask.allow(id));
        mask.forbid(31);
        mask.forbid(1000);
        let allowed: Vec<u32> = (0..200).filter(|&id| mask.allows(id)).collect();
        assert_eq!((allowed.as_slice(), mask.count()), (&[0, 32, 69][..], 3));
        let mut logits = vec![1.0; 80];
        mask.apply(&mut logits);
        let left: Vec<usize> = (0..80).filter(|&id| logits[id] == 1.0).collect();
        assert_eq!(left, [0, 32, 69]);
        assert!(logits.iter().all(|&l| l == 1.0 || l == f32::NEG_INFINITY));
    }

    #[test]
    fn a_row_of_logits_may_be_shorter_or_longer_than_the_vocabulary() {
        let mask = TokenMask::all(33);
        assert_eq!((mask.count(), mask.allows(33)), (33, false));
        let (mut short, mut long) = ([0.0; 5], [0.0; 40]);
        mask.apply(&mut short);
        mask.apply(&mut long);
        assert_eq!(short, [0.0; 5]);
        assert_eq!(long.iter().filter(|&&l| l == 0.0).count(), 33);
    }
}
