//! The tokens of a model as bytes, in the form that masks are computed with.

use std::collections::HashSet;
use std::sync::Arc;

use baton_text::Tokenizer;
use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::{Error, Result};

/// Tokens of more bytes than this are never allowed; the trie has no room for them.
const MAX_TOKEN: usize = 1000;
/// Nodes that the trie can number.
const MAX_NODES: usize = 1 << 22;
/// White space between the end of the reasoning and the answer, in bytes.
pub(super) const MAX_GAP: usize = 4;

/// Every token of a vocabulary, and which ones end an answer.
pub(super) struct Vocabulary {
    trie: TokTrie,
    /// What ends an answer, ascending.
    pub(super) ends: Vec<u32>,
    /// Tokens that are nothing but white space, of at most [`MAX_GAP`] bytes.
    pub(super) spaces: Vec<u32>,
}

impl Vocabulary {
    /// The tokens of `tokenizer`, of which `ends` end an answer.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] if no token ends an answer, or there are more tokens than any model has.
    pub(super) fn new(tokenizer: &Tokenizer, ends: &HashSet<u32>) -> Result<Self> {
        let size = tokenizer.vocab_size();
        let mut ends: Vec<u32> = ends.iter().copied().filter(|&id| (id as usize) < size).collect();
        ends.sort_unstable();
        let Some(&end) = ends.first() else {
            return Err(Error::Vocabulary {
                problem: "no token of its vocabulary ends an answer".into(),
            });
        };
        let words: Vec<Vec<u8>> = (0..size as u32).map(|id| word(tokenizer, &ends, id)).collect();
        if nodes(&words) >= MAX_NODES {
            return Err(Error::Vocabulary { problem: "its vocabulary has too many tokens".into() });
        }
        let info = TokRxInfo::new(size as u32, end);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let is_space = |&id: &u32| is_space(&words[id as usize]);
        let short = |&id: &u32| (1..=MAX_GAP).contains(&words[id as usize].len());
        let spaces = (0..size as u32).filter(short).filter(is_space).collect();
        Ok(Vocabulary { trie, ends, spaces })
    }

    /// Tokens in it.
    pub(super) fn len(&self) -> usize {
        self.trie.vocab_size()
    }

    /// The bytes that a token adds to the text; the name of a control token.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        match self.trie.token(id) {
            [TokTrie::SPECIAL_TOKEN_MARKER, name @ ..] if !name.is_empty() => name,
            bytes => bytes,
        }
    }
}

/// Whether `bytes` are nothing but white space.
pub(super) fn is_space(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'))
}

/// The bytes of a token for the trie; none for one that must never be chosen, and those of a control
/// token so marked that no text matches it.
fn word(tokenizer: &Tokenizer, ends: &[u32], id: u32) -> Vec<u8> {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    let word = if tokenizer.is_control(id) || ends.binary_search(&id).is_ok() {
        let name = tokenizer.token(id).unwrap_or_else(|| format!("[{id}]"));
        [&[marker], name.as_bytes()].concat()
    } else {
        match tokenizer.token_bytes(id) {
            // It would be taken for a control token; no text has such bytes.
            [first, _, ..] if *first == marker => Vec::new(),
            bytes => bytes.to_vec(),
        }
    };
    if word.len() > MAX_TOKEN { Vec::new() } else { word }
}

/// Nodes of the trie of `words`.
fn nodes(words: &[Vec<u8>]) -> usize {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let shared = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let first = sorted.first().map_or(0, |word| word.len());
    // Words that are equal have a node each.
    let added = |pair: &[&[u8]]| (pair[1].len() - shared(pair[0], pair[1])).max(1);
    1 + first + sorted.windows(2).map(added).sum::<usize>()
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    /// So the model chooses among all tokens that fit, also where only one text is possible. A
    /// tokenizer may cut a text otherwise at its start than within a sentence.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.len()).field("ends", &self.ends).finish()
    }
}

/// How the vocabulary is shared with parsers.
pub(super) type SharedVocabulary = Arc<Vocabulary>;
