//! Tokenizers from `tokenizer.json` and the small JSON files beside it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use baton_weights::gguf::Strings;
use baton_weights::read_regular;
use serde_json::Value;
use tokenizers::{Encoding, ModelWrapper, PostProcessor as _, PostProcessorWrapper, Token};

use super::Tokenizer;
use super::pieces::{DecodeRule, Pieces};
use super::special::{Mark, Specials, ends_by_name};
use crate::error::{Error, Result};

/// Vocabularies end far below this; an id above it would only make tables huge.
pub(super) const MAX_VOCAB: usize = 1 << 24;

impl Tokenizer {
    /// Reads a `tokenizer.json`, and `tokenizer_config.json`, `special_tokens_map.json` and
    /// `generation_config.json` if they lie beside it.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or does not hold what its name says.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut tokenizer = Self::from_json_bytes(&read(path)?)?;
        let beside = |name| {
            let path = path.with_file_name(name);
            if path.is_file() { read(&path).map(Some) } else { Ok(None) }
        };
        if let Some(config) = beside("special_tokens_map.json")? {
            tokenizer.add_special_tokens_map(&config)?;
        }
        if let Some(config) = beside("tokenizer_config.json")? {
            tokenizer.add_tokenizer_config(&config)?;
        }
        if let Some(config) = beside("generation_config.json")? {
            tokenizer.add_generation_config(&config)?;
        }
        Ok(tokenizer)
    }

    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// The bytes are not a tokenizer, or one with a decoder that cannot be streamed.
    pub fn from_json_bytes(bytes: &[u8]) -> Result<Self> {
        super::charsmap::check_json(bytes)?;
        let core = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| Error::Json { what: "tokenizer.json", reason: error.to_string() })?;
        let rule = DecodeRule::of(core.get_decoder())?;
        let around = core.get_post_processor().map(tokens_around).unwrap_or_default();
        let specials = Specials { prefix: around.0, suffix: around.1, ..Specials::default() };
        Self::assemble(core, rule, specials, &Strings::new())
    }

    /// Puts a tokenizer together: spells out the pieces and finds the ends of generation by name.
    ///
    /// `listed` has the tokens in the order of their ids where the file lists them so; of those
    /// that are spelled alike `core` knows only one.
    pub(super) fn assemble(
        mut core: tokenizers::Tokenizer,
        rule: DecodeRule,
        mut specials: Specials,
        listed: &Strings,
    ) -> Result<Self> {
        // Padding and cutting are for training batches.
        core.with_padding(None);
        core.with_truncation(None)
            .map_err(|error| Error::Json { what: "tokenizer.json", reason: error.to_string() })?;
        core.set_encode_special_tokens(false);
        let mut as_text = core.get_added_vocabulary().clone();
        as_text.set_encode_special_tokens(true);

        specials.eog.extend(ends_by_name(|name| {
            let id = core.token_to_id(name)?;
            let added = core.get_added_vocabulary().get_added_tokens_decoder().get(&id);
            let mark = match added {
                Some(token) if token.special => Mark::Control,
                Some(_) => Mark::Added,
                None => Mark::Text,
            };
            Some((id, mark))
        }));
        if specials.bos.is_none() {
            // The only token before a text, if it is a control token, is its beginning.
            if let [first] = specials.prefix[..] {
                specials.bos = Some(first);
            }
        }
        let mut tokenizer = Self {
            core,
            as_text,
            pieces: Arc::new(Pieces::new(rule, std::iter::empty())?),
            specials,
        };
        tokenizer.spell(rule, listed)?;
        Ok(tokenizer)
    }

    /// Makes the table of pieces.
    fn spell(&mut self, rule: DecodeRule, listed: &Strings) -> Result<()> {
        // Copying a large vocabulary takes long, and most list their tokens as they spell them.
        let respelled = matches!(self.core.get_model(), ModelWrapper::WordPiece(_));
        let vocab = match listed.len() {
            1.. if !respelled => HashMap::new(),
            _ => self.core.get_vocab(true),
        };
        let size = vocab.values().map(|&id| id as usize + 1).max().unwrap_or(0).max(listed.len());
        if size > MAX_VOCAB {
            return Err(Error::Json {
                what: "tokenizer.json",
                reason: format!("it has a token with the id {}", size - 1),
            });
        }
        let added = self.core.get_added_vocabulary().get_added_tokens_decoder();
        let ends = |id: u32| self.specials.eog.contains(&id);
        let mut tokens: Vec<Option<(&str, bool)>> =
            listed.iter().zip(0..).map(|(token, id)| Some((token, ends(id)))).collect();
        tokens.resize(size, None);
        for (token, &id) in &vocab {
            tokens[id as usize] = Some((token, ends(id)));
        }
        for (&id, token) in added {
            if let Some(slot) = tokens.get_mut(id as usize) {
                *slot = Some((&token.content, token.special || ends(id)));
            }
        }
        self.pieces = Arc::new(Pieces::new(rule, tokens.into_iter())?);
        Ok(())
    }

    /// Takes over what a `tokenizer_config.json` says of BOS and EOS.
    ///
    /// # Errors
    ///
    /// The bytes are not JSON.
    pub fn add_tokenizer_config(&mut self, bytes: &[u8]) -> Result<()> {
        let config = parse("tokenizer_config.json", bytes)?;
        self.name_specials(&config);
        if let Some(add) = config["add_bos_token"].as_bool() {
            self.specials.set_add_bos(add);
        }
        if let Some(add) = config["add_eos_token"].as_bool() {
            self.specials.set_add_eos(add);
        }
        Ok(())
    }

    /// Takes over what a `special_tokens_map.json` says of BOS and EOS.
    ///
    /// # Errors
    ///
    /// The bytes are not JSON.
    pub fn add_special_tokens_map(&mut self, bytes: &[u8]) -> Result<()> {
        let config = parse("special_tokens_map.json", bytes)?;
        self.name_specials(&config);
        Ok(())
    }

    /// Takes over every end of generation that a `generation_config.json` lists.
    ///
    /// # Errors
    ///
    /// The bytes are not JSON.
    pub fn add_generation_config(&mut self, bytes: &[u8]) -> Result<()> {
        let config = parse("generation_config.json", bytes)?;
        let ends = match &config["eos_token_id"] {
            Value::Array(ids) => ids.as_slice(),
            one => std::slice::from_ref(one),
        };
        self.add_ends(ends.iter().filter_map(Value::as_u64).filter_map(|id| id.try_into().ok()));
        if self.specials.bos.is_none() {
            let bos = config["bos_token_id"].as_u64().and_then(|id| id.try_into().ok());
            self.specials.bos = bos.filter(|&id: &u32| (id as usize) < self.vocab_size());
        }
        Ok(())
    }

    /// Reads `bos_token` and `eos_token`, each a string or an object with the `content`.
    fn name_specials(&mut self, config: &Value) {
        let id = |key: &str| {
            let token = &config[key];
            let text = token.as_str().or_else(|| token["content"].as_str())?;
            self.core.token_to_id(text)
        };
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        self.specials.bos = bos.or(self.specials.bos);
        self.specials.eos = eos.or(self.specials.eos);
        self.add_ends(eos.into_iter());
    }

    /// Adds ids that end an answer; from now on they are control tokens.
    pub(super) fn add_ends(&mut self, ids: impl Iterator<Item = u32>) {
        let size = self.vocab_size();
        let ids: BTreeSet<u32> = ids.filter(|&id| (id as usize) < size).collect();
        if !ids.is_subset(&self.specials.eog) {
            self.pieces = Arc::new(self.pieces.with_control(&ids));
            self.specials.eog.extend(ids);
        }
    }
}

/// The ids a post-processor puts before and after a text.
fn tokens_around(processor: &PostProcessorWrapper) -> (Vec<u32>, Vec<u32>) {
    // An id that no vocabulary has marks the place of the text.
    let text = Token::new(u32::MAX, String::new(), (0, 0));
    let encoding = Encoding::from_tokens(vec![text], 0);
    let Ok(encoding) = processor.process(encoding, None, true) else { return Default::default() };
    match encoding.get_ids().iter().position(|&id| id == u32::MAX) {
        Some(at) => {
            let ids = encoding.get_ids();
            (ids[..at].to_vec(), ids[at + 1..].to_vec())
        }
        None => Default::default(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    read_regular(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

pub(crate) fn parse(what: &'static str, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|error| Error::Json { what, reason: error.to_string() })
}
