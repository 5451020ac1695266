//! Prompts of a wanted number of tokens for a server whose tokenizer nobody knows.
//!
//! They are made of words that every large vocabulary has as single tokens, in an order that never
//! comes twice, so that no cache of prompts helps.

use crate::bench::passes::Random;

const WORDS: [&str; 32] = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
];

/// How often the number of words is corrected.
const TRIES: usize = 4;

/// An endless supply.
pub struct Prompts {
    random: Random,
}

impl Prompts {
    /// A supply that no earlier run of the program had.
    pub fn new() -> Prompts {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Prompts { random: Random(now.map_or(0, |time| time.as_nanos() as u64)) }
    }

    /// The next prompt, of `words` words.
    pub fn next(&mut self, words: usize) -> String {
        let word = |_| WORDS[(self.random.bits() % WORDS.len() as u64) as usize];
        (0..words).map(word).collect::<Vec<_>>().join(" ")
    }

    /// The number of words that a prompt of `tokens` tokens needs, or comes nearest to it. `count`
    /// asks the server how many tokens a text has.
    ///
    /// # Errors
    /// If the server fails.
    pub fn calibrate(
        &mut self,
        tokens: usize,
        mut count: impl FnMut(&str) -> anyhow::Result<usize>,
    ) -> anyhow::Result<usize> {
        let mut words = tokens.max(1);
        let mut best = (usize::MAX, words);
        for _ in 0..TRIES {
            let found = count(&self.next(words))?;
            // A server that does not count leaves the guess of a word for each token.
            if found == 0 {
                break;
            }
            best = best.min((found.abs_diff(tokens), words));
            if found == tokens {
                break;
            }
            // A template around the prompt adds a fixed number, a word is mostly one token.
            words = (words + tokens).saturating_sub(found).max(1);
        }
        Ok(best.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_allowed_for() {
        let mut prompts = Prompts::new();
        let mut asked = 0;
        let words = prompts.calibrate(64, |text| {
            asked += 1;
            Ok(text.split(' ').count() + 17)
        });
        assert_eq!((words.unwrap(), asked), (47, 2));
        // Even where the template alone is too long.
        assert_eq!(prompts.calibrate(4, |text| Ok(text.split(' ').count() + 30)).unwrap(), 1);
    }

    #[test]
    fn without_counts_a_word_is_a_token() {
        assert_eq!(Prompts::new().calibrate(448, |_| Ok(0)).unwrap(), 448);
        assert!(Prompts::new().calibrate(448, |_| anyhow::bail!("dead")).is_err());
    }

    #[test]
    fn no_prompt_comes_twice() {
        let mut prompts = Prompts::new();
        let (first, second) = (prompts.next(40), prompts.next(40));
        assert_ne!(first, second);
        assert_eq!(first.split(' ').count(), 40);
    }
}
