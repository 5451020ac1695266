//! Guesses from the text itself: what followed the last time that it went as it goes now.
//!
//! Summaries, edited code and quotations repeat long runs of what they are made from. Places that
//! end in the same two tokens form a chain, newest first, as in LZ77: finding the longest match costs
//! a bounded walk along it, and a new token one entry.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Tokens that must match before a guess is made.
const SHORTEST: usize = 2;
/// A match of so many tokens is as good as a longer one.
const LONGEST: usize = 32;
/// Earlier places that are compared.
const TRIES: usize = 32;
/// Ends a chain.
const NONE: u32 = u32::MAX;

/// Where each pair of neighbours in a text stands.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// The last place of each pair, by its second token.
    latest: HashMap<(u32, u32), u32>,
    /// For each place the one before it of the same pair.
    earlier: Vec<u32>,
}

/// An earlier place that the text's end is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// Where what followed begins.
    next: usize,
    /// Tokens that are the same.
    pub(super) len: usize,
}

impl Lookup {
    /// The longest match of the end of `tokens`, of equal ones the latest. `tokens` are those of the
    /// last time, and new ones behind them.
    pub(super) fn find(&mut self, tokens: &[u32]) -> Option<Match> {
        self.index(tokens);
        let last = tokens.len().checked_sub(1)?;
        let mut best: Option<Match> = None;
        let mut place = self.earlier[last];
        for _ in 0..TRIES {
            if place == NONE || best.is_some_and(|best| best.len == LONGEST) {
                break;
            }
            let at = place as usize;
            let same = |n: &usize| tokens[at - n] == tokens[last - n];
            let len = (0..=at.min(LONGEST - 1)).take_while(same).count();
            if best.is_none_or(|best| len > best.len) {
                best = Some(Match { next: at + 1, len });
            }
            place = self.earlier[at];
        }
        best
    }

    fn index(&mut self, tokens: &[u32]) {
        for at in self.earlier.len()..tokens.len() {
            let mut before = NONE;
            // No context is so long that a place does not fit 32 bits.
            if at + 1 >= SHORTEST
                && let Ok(place) = u32::try_from(at)
            {
                match self.latest.entry((tokens[at - 1], tokens[at])) {
                    Entry::Occupied(mut entry) => before = entry.insert(place),
                    Entry::Vacant(entry) => {
                        entry.insert(place);
                    }
                }
            }
            self.earlier.push(before);
        }
    }
}

impl Match {
    /// The `n` tokens that followed. A match that reaches its own end goes round.
    pub(super) fn guess(self, tokens: &[u32], n: usize) -> Vec<u32> {
        let period = &tokens[self.next..];
        period.iter().copied().cycle().take(n).collect()
    }
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::random_tokens;

    use super::*;

    fn guess(text: &str, n: usize) -> Option<(usize, String)> {
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        let found = Lookup::default().find(&tokens)?;
        let guess = found.guess(&tokens, n).into_iter().map(|t| t as u8 as char).collect();
        Some((found.len, guess))
    }

    #[test]
    fn what_followed_last_time_is_guessed() {
        assert_eq!(guess("the cat sat. the c", 6), Some((5, "at sat".into())));
        assert_eq!(guess("abcdefg", 3), None);
        assert_eq!(guess("axbxcx", 3), None, "one token alone is no match");
        assert_eq!(guess("", 3), None);
        assert_eq!(guess("a", 3), None);
    }

    #[test]
    fn the_longest_match_comes_first_then_the_latest() {
        assert_eq!(guess("1abX 2abY 1ab", 1), Some((3, "X".into())));
        assert_eq!(guess("1abX 2abY ab", 1), Some((2, "Y".into())));
    }

    #[test]
    fn a_repetition_goes_on_for_ever() {
        assert_eq!(guess("abcabc", 7), Some((3, "abcabca".into())));
        assert_eq!(guess("aaa", 4), Some((2, "aaaa".into())));
    }

    #[test]
    fn a_text_that_grows_is_as_one_read_at_once() {
        let tokens = random_tokens(500, 7, 3);
        let mut growing = Lookup::default();
        for end in (1..=tokens.len()).step_by(3) {
            let text = &tokens[..end];
            assert_eq!(growing.find(text), Lookup::default().find(text), "{end} tokens");
        }
    }

    #[test]
    fn it_finds_what_a_search_of_all_places_finds() {
        let tokens = random_tokens(300, 20, 5);
        for end in 1..tokens.len() {
            let text = &tokens[..end];
            let common = |at: usize| {
                let pairs = text[..at].iter().rev().zip(text.iter().rev());
                pairs.take_while(|(a, b)| a == b).count()
            };
            let longest = (1..end).map(common).max().filter(|&len| len >= SHORTEST);
            let found = Lookup::default().find(text).map(|found| found.len);
            assert_eq!(found, longest, "{end} tokens");
        }
    }

    #[test]
    fn a_long_run_of_one_token_costs_no_more_than_others() {
        let tokens = vec![5; 100_000];
        let mut lookup = Lookup::default();
        for end in 99_000..tokens.len() {
            assert_eq!(lookup.find(&tokens[..end]).unwrap().len, LONGEST);
        }
    }
}
