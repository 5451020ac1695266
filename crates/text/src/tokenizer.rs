//! The tokenizer: text to ids and back, and what the special ids mean.
//!
//! Splitting and merging is the `tokenizers` crate's work, whichever file the vocabulary came from.
//! This module decides which control tokens are read in a text, puts the model's own tokens around
//! it, and knows which ids end an answer.

mod charsmap;
mod gguf;
pub(crate) mod json;
mod merges;
pub(crate) mod pieces;
mod pre;
mod special;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{
    AddedVocabulary, Model as _, ModelWrapper, NormalizedString, NormalizerWrapper,
    OffsetReferential, OffsetType, PreTokenizer as _,
};

use self::pieces::Pieces;
use self::special::Specials;
use crate::detokenizer::Detokenizer;
use crate::error::{Error, Result};
use crate::guard::GUARD;

/// A vocabulary with the rules for using it.
#[derive(Debug)]
pub struct Tokenizer {
    core: tokenizers::Tokenizer,
    /// The added tokens, but with control tokens read as the text they look like.
    as_text: AddedVocabulary,
    pieces: Arc<Pieces>,
    specials: Specials,
}

impl Tokenizer {
    /// The ids of `text`, in which the names of control tokens stand for those tokens.
    ///
    /// For text that the program wrote. With `add_special` the model's own tokens are put around it,
    /// but never a second BOS: if the text already starts with one, it stays alone.
    ///
    /// # Errors
    ///
    /// The text has a character that the vocabulary can express in no way.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(self.core.get_added_vocabulary(), text, add_special, None)
    }

    /// The ids of `text` as plain text: `<|im_end|>` in it is seven ordinary characters and some,
    /// not the token of that name.
    ///
    /// For text of users, who must not be able to end their turn and speak as someone else.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn encode_as_text(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(&self.as_text, text, add_special, None)
    }

    /// The ids of a chat template's text, rendered from messages that [`Tokenizer::guard`] prepared:
    /// control tokens are read where the template wrote their names, not where a message has them.
    /// Nothing is put around it, since a rendered template contains what it needs.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn encode_guarded(&self, rendered: &str) -> Result<Vec<u32>> {
        self.encode_with(self.core.get_added_vocabulary(), rendered, false, Some(GUARD))
    }

    pub(crate) fn added_tokens(&self) -> &AddedVocabulary {
        self.core.get_added_vocabulary()
    }

    fn encode_with(
        &self,
        added: &AddedVocabulary,
        text: &str,
        add_special: bool,
        dropped: Option<char>,
    ) -> Result<Vec<u32>> {
        let failed = |error: tokenizers::Error| Error::Encode { reason: error.to_string() };
        let normalizer: Option<&NormalizerWrapper> = self.core.get_normalizer();
        let mut words = added.extract_and_normalize(normalizer, text);
        if let Some(dropped) = dropped.filter(|&dropped| text.contains(dropped)) {
            let drop = |word: &mut NormalizedString| {
                word.filter(|character| character != dropped);
                Ok(())
            };
            words.normalize(drop).map_err(failed)?;
        }
        let pre_tokenizer: Option<&PreTokenizerWrapper> = self.core.get_pre_tokenizer();
        if let Some(pre_tokenizer) = pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut words).map_err(failed)?;
        }
        let model = self.core.get_model();
        words.tokenize(|word| model.tokenize(word.get())).map_err(failed)?;
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special {
            ids.extend_from_slice(&self.specials.prefix);
        }
        let start = ids.len();
        for (_, _, tokens) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|token| token.id));
        }
        if add_special {
            self.specials.close(&mut ids, start);
        }
        Ok(ids)
    }

    /// Cuts `ids`, which were encoded with `add_special`, to `most`: at the end of the text, before
    /// what the model wants behind it. Nothing is cut that the model itself has put around it.
    pub fn truncate(&self, ids: &mut Vec<u32>, most: usize) {
        let suffix = &self.specials.suffix;
        let kept = if ids.ends_with(suffix) { suffix.len() } else { 0 };
        let start = self.specials.prefix.len();
        let end = ids.len() - kept;
        let cut = most.saturating_sub(kept).max(start);
        if ids.len() > most && cut < end {
            ids.drain(cut..end);
        }
    }

    /// A number of tokens that `text` has at least, known without tokenizing it: no token stands for
    /// more than the bytes of the longest one.
    ///
    /// What tokenizers may drop does not count, which is white space, control characters and guards;
    /// and a character counts as one byte, as those of several may be composed to one of fewer.
    /// Nothing counts for vocabularies in which one token stands for anything unknown.
    pub fn least_tokens(&self, text: &str) -> usize {
        let swallows = match self.core.get_model() {
            ModelWrapper::BPE(bpe) => bpe.unk_token.is_some() && bpe.fuse_unk && !bpe.byte_fallback,
            ModelWrapper::Unigram(unigram) => !unigram.byte_fallback(),
            _ => true,
        };
        if swallows {
            return 0;
        }
        let stays = |c: &char| !c.is_whitespace() && !c.is_control() && *c != GUARD;
        text.chars().filter(stays).count().div_ceil(self.pieces.longest().max(1))
    }

    /// The text of `ids`. With `skip_special` control tokens are left out.
    ///
    /// Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary are nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = self.detokenizer(skip_special);
        let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        text += &detokenizer.finish();
        text
    }

    /// A decoder for ids that come one at a time.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.pieces), skip_special)
    }

    /// A decoder that leaves out control tokens except for those in `visible`, such as the markers in
    /// [`OutputFormat::visible_tokens`](crate::OutputFormat::visible_tokens).
    pub fn detokenizer_showing(&self, visible: &[u32]) -> Detokenizer {
        self.detokenizer(true).showing(visible)
    }

    /// The token of an id as the vocabulary writes it, such as `Ġthe` or `▁the`.
    pub fn token(&self, id: u32) -> Option<String> {
        self.core.id_to_token(id)
    }

    /// The bytes an id adds to the text, such as ` the`; they need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    /// The id of a token as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.core.token_to_id(token)
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// Whether an id is a control token, which is never shown to a reader.
    pub fn is_control(&self, id: u32) -> bool {
        self.pieces.is_control(id)
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.specials.bos
    }

    /// The token the model's files call its end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.specials.eos
    }

    /// Every id that ends an answer: each end of sequence, turn or message the model names.
    pub fn eog(&self) -> &BTreeSet<u32> {
        &self.specials.eog
    }

    /// Whether [`Tokenizer::encode`] with `add_special` starts a text with BOS.
    pub fn add_bos(&self) -> bool {
        self.specials.bos.is_some() && self.specials.prefix.first() == self.specials.bos.as_ref()
    }
}
