//! Why a prompt must be evaluated from some token on, for the log.

use std::collections::VecDeque;
use std::fmt;

use super::common;

/// Most tokens of evicted sequences that are remembered.
const MAX_REMEMBERED: usize = 1 << 17;
/// A block that changes from prompt to prompt is known by this many equal tokens behind it.
const SAME_BEHIND: usize = 24;
/// The longest such block.
const LONGEST_BLOCK: usize = 96;

/// Why no more of a prompt was in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Nothing was.
    Empty,
    /// No prompt began like it.
    Unknown,
    /// All that is cached of its like was used; what follows is new.
    New,
    /// It differs from what is cached.
    Differs {
        /// From this token on.
        at: usize,
    },
    /// It differs from what is cached in a block alone, behind which both are the same.
    Block {
        /// The block's first token.
        at: usize,
        /// The first token behind it.
        end: usize,
    },
    /// More of it was there, and made room for others.
    Evicted {
        /// So many tokens.
        tokens: usize,
    },
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::Empty => f.write_str("nothing is cached"),
            Miss::Unknown => f.write_str("no cached prompt begins like it"),
            Miss::New => f.write_str("what follows is new"),
            Miss::Differs { at } => write!(f, "it differs from a cached prompt at token {at}"),
            Miss::Block { at, end } => write!(
                f,
                "only its tokens {at} to {end} differ from a cached prompt: what changes with each \
                 request should come last"
            ),
            Miss::Evicted { tokens } => {
                write!(f, "{tokens} of its tokens were cached, and made room for others")
            }
        }
    }
}

/// The beginnings of what was evicted lately.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    prompts: VecDeque<Vec<u32>>,
    tokens: usize,
}

impl Evicted {
    /// Remembers a sequence that goes.
    pub fn note(&mut self, tokens: Vec<u32>) {
        self.tokens += tokens.len();
        self.prompts.push_back(tokens);
        while self.tokens > MAX_REMEMBERED {
            let Some(oldest) = self.prompts.pop_front() else { return };
            self.tokens -= oldest.len();
        }
    }

    /// Why `prompt` is cached up to `shared` and no further. `cached` is the sequence that shares so
    /// much; none if none does, `empty` if there is none at all.
    pub fn reason(&self, prompt: &[u32], shared: usize, cached: &[u32], empty: bool) -> Miss {
        let before = self.prompts.iter().map(|tokens| common(tokens, prompt)).max();
        match before.filter(|&tokens| tokens > shared) {
            Some(tokens) => Miss::Evicted { tokens },
            None if empty => Miss::Empty,
            None if shared == 0 => Miss::Unknown,
            None if shared >= cached.len() || shared + 1 >= prompt.len() => Miss::New,
            None => match block(&prompt[shared..], &cached[shared..]) {
                Some(length) => Miss::Block { at: shared, end: shared + length },
                None => Miss::Differs { at: shared },
            },
        }
    }
}

/// The length of the block in `prompt` behind which it is the same as `cached` behind some block.
fn block(prompt: &[u32], cached: &[u32]) -> Option<usize> {
    (1..=LONGEST_BLOCK).find(|&length| {
        let behind = prompt.get(length..length + SAME_BEHIND);
        let others = cached.windows(SAME_BEHIND).take(LONGEST_BLOCK + 1).skip(1);
        behind.is_some_and(|behind| others.into_iter().any(|other| other == behind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_miss_has_its_reason() {
        let cached: Vec<u32> = (0..100).collect();
        let mut evicted = Evicted::default();
        evicted.note((50..90).collect());
        let of = |prompt: &[u32], cached: &[u32]| {
            evicted.reason(prompt, common(prompt, cached), cached, cached.is_empty())
        };
        let next: Vec<u32> = (0..120).collect();
        assert_eq!(of(&next, &[]), Miss::Empty);
        assert_eq!(of(&[7, 8], &cached), Miss::Unknown);
        assert_eq!(of(&next, &cached), Miss::New);
        assert_eq!(of(&cached, &cached), Miss::New);
        assert_eq!(of(&[0, 1, 9, 9, 9], &cached), Miss::Differs { at: 2 });
        assert_eq!(of(&(50..80).collect::<Vec<u32>>(), &cached), Miss::Evicted { tokens: 30 });
        // A date of other length, say, at the beginning of a system prompt.
        for stamp in [&[900][..], &[900, 901, 902]] {
            let prompt = [&cached[..3], stamp, &cached[5..]].concat();
            let end = 3 + stamp.len();
            assert_eq!(of(&prompt, &cached), Miss::Block { at: 3, end });
        }
        let words = of(&[&cached[..3], &[900], &cached[5..]].concat(), &cached).to_string();
        assert!(words.contains("tokens 3 to 4"), "{words}");
    }

    #[test]
    fn what_is_remembered_of_evicted_prompts_is_bounded() {
        let mut evicted = Evicted::default();
        for start in 0..400 {
            evicted.note((start..start + 1000).collect());
        }
        let kept: usize = evicted.prompts.iter().map(Vec::len).sum();
        assert!(kept <= MAX_REMEMBERED && kept > MAX_REMEMBERED / 2, "{kept}");
        assert_eq!(kept, evicted.tokens);
    }
}
