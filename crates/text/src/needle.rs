//! A text that is looked for in a stream of bytes, one at a time (Knuth, Morris and Pratt).

/// The text, ready to be looked for.
#[derive(Clone, Debug)]
pub struct Needle {
    bytes: Vec<u8>,
    /// `fallback[n]`: how much of the text still matches when the byte after its first `n + 1`
    /// bytes does not.
    fallback: Vec<usize>,
}

impl Needle {
    /// Looks for `text`, which has to be found before anything is read if it is empty.
    pub fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut needle = Needle { fallback: vec![0; bytes.len()], bytes };
        let mut matched = 0;
        for end in 1..needle.bytes.len() {
            // Only what was computed before is looked at.
            matched = needle.advance(matched, needle.bytes[end]);
            needle.fallback[end] = matched;
        }
        needle
    }

    /// Bytes of the text.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// With how many of the text's bytes the stream ends after `byte`, if it ended with `matched`, fewer
    /// than all, before. All of them: the text was found.
    ///
    /// # Panics
    /// If it was found already.
    #[inline]
    pub fn advance(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.bytes[matched] != byte {
            matched = self.fallback[matched - 1];
        }
        matched + usize::from(self.bytes[matched] == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matches_is_the_longest_beginning_that_the_stream_ends_with() {
        for text in ["a", "aab", "abab", "abacabad", "aaaa", "é\u{301}é"] {
            let needle = Needle::new(text);
            assert!(needle.len() == text.len() && !needle.is_empty());
            let stream = "ababacabaabacabaabaaabacabadé\u{301}é\u{301}éaaab".as_bytes();
            let mut matched = 0;
            for end in 1..=stream.len() {
                matched = needle.advance(matched, stream[end - 1]);
                let ends_with = |&n: &usize| stream[..end].ends_with(&text.as_bytes()[..n]);
                let longest = (0..=text.len()).rev().find(ends_with);
                assert_eq!(Some(matched), longest, "{text:?} after {end} bytes");
                if matched == needle.len() {
                    break;
                }
            }
        }
    }
}
