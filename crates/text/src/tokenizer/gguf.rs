//! Tokenizers from the metadata of a GGUF file.
//!
//! The file lists tokens with a type and, for some kinds, a score or merges. From these the same
//! parts are built that the model's own `tokenizer.json` names, so that the ids agree.

mod bert;

use std::collections::HashSet;

use baton_weights::Metadata;
use baton_weights::gguf::{Array, Strings};
use tokenizers::models::bpe::{self, BPE};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::normalizers::utils::Sequence;
use tokenizers::normalizers::{Prepend, Replace, replace::ReplacePattern};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::pieces::{DecodeRule, Lead, Spelling};
use super::pre::{Pre, spaces_to_marks};
use super::special::Specials;
use super::{Tokenizer, charsmap, merges};
use crate::error::{Error, Result};
use bert::{bert_spelling, word_piece};

/// The values of `tokenizer.ggml.model` that are understood.
const MODELS: &str = "gpt2, llama, gemma4, t5, bert";

/// What a token is for: `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The lists of a GGUF vocabulary, in step with each other.
struct Vocab<'a> {
    tokens: &'a Strings,
    kinds: Vec<Kind>,
    scores: Vec<f32>,
    /// The ids of tokens, in the form the BPE model takes.
    by_token: bpe::Vocab,
    /// Tokens that are spelled like one before them.
    repeated: HashSet<u32>,
}

/// The parts of a tokenizer before they are put together.
struct Parts {
    model: ModelWrapper,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    rule: DecodeRule,
    /// Whether a text starts with BOS, and ends with EOS, if the file does not say.
    add_bos: bool,
    add_eos: bool,
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    ///
    /// Metadata that is missing or contradicts itself, and kinds of tokenizers and pre-tokenizers
    /// that are not known. A file that names no pre-tokenizer is a warning in the log.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let mut vocab = Vocab::read(metadata)?;
        let model = metadata.str("tokenizer.ggml.model")?;
        let parts = match model {
            "gpt2" => byte_pairs(metadata, &mut vocab, metadata.opt_str("tokenizer.ggml.pre")?)?,
            "gemma4" => byte_pairs(metadata, &mut vocab, Some("gemma4"))?,
            "llama" => sentence_piece(metadata, &mut vocab)?,
            "t5" => unigram(metadata, &vocab)?,
            "bert" => word_piece(metadata, &vocab)?,
            other => {
                return Err(Error::Unsupported {
                    what: "tokenizer model",
                    name: other.to_owned(),
                    known: MODELS.to_owned(),
                });
            }
        };
        let specials = specials(metadata, &vocab, &parts, model == "bert")?;
        let mut core = tokenizers::Tokenizer::new(parts.model);
        core.with_normalizer(parts.normalizer);
        core.with_pre_tokenizer(parts.pre_tokenizer);
        core.add_tokens(&vocab.added(model == "bert"));
        Self::assemble(core, parts.rule, specials, vocab.tokens)
    }
}

impl<'a> Vocab<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let tokens = metadata.strings("tokenizer.ggml.tokens")?;
        let size = tokens.len();
        if size == 0 || size > super::json::MAX_VOCAB {
            return Err(bad(format!("it has {size} tokens")));
        }
        let kinds = match metadata.opt_i32s("tokenizer.ggml.token_type")? {
            Some(kinds) => kinds.into_iter().map(Kind::of).collect(),
            None => vec![Kind::Normal; size],
        };
        let scores = match metadata.get("tokenizer.ggml.scores") {
            None => vec![0.0; size],
            // Some converters wrote whole numbers.
            Some(value) if matches!(value.as_array(), Some(Array::I32(_))) => metadata
                .i32s("tokenizer.ggml.scores")?
                .into_iter()
                .map(|score| score as f32)
                .collect(),
            Some(_) => metadata.f32s("tokenizer.ggml.scores")?,
        };
        if kinds.len() != size || scores.len() != size {
            return Err(bad(format!(
                "it has {size} tokens, {} types and {} scores",
                kinds.len(),
                scores.len()
            )));
        }
        let (by_token, repeated) = by_token(tokens);
        Ok(Self { tokens, kinds, scores, by_token, repeated })
    }

    /// Tokens with their ids. Of two tokens that are spelled alike the first is kept.
    fn ids(&self) -> impl Iterator<Item = (&'a str, u32)> {
        self.tokens.iter().zip(0..).filter(|(_, id)| !self.repeated.contains(id))
    }

    /// The same as a map, which is not there afterwards.
    fn take_map(&mut self) -> bpe::Vocab {
        std::mem::take(&mut self.by_token)
    }

    /// The merges that follow from scores, among tokens of these kinds.
    fn scored_merges(
        &self,
        of: impl Fn(Kind) -> bool,
        score: impl Fn(u32) -> f32,
    ) -> Vec<(String, String)> {
        let pieces = self.ids().filter(|&(_, id)| of(self.kind(id)));
        merges::from_scores(pieces.map(|(token, id)| (token, score(id))), |token| {
            self.by_token.get(token).copied().filter(|&id| of(self.kind(id)))
        })
    }

    fn kind(&self, id: u32) -> Kind {
        self.kinds[id as usize]
    }

    fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// The tokens that are found in a text before it is split into words.
    fn added(&self, bert: bool) -> Vec<AddedToken> {
        let mut added = Vec::new();
        for (token, id) in self.ids() {
            let special = match self.kind(id) {
                Kind::Control | Kind::Unknown => true,
                Kind::UserDefined => false,
                _ => continue,
            };
            let token = if bert { bert_spelling(token, self.kind(id)) } else { token.to_owned() };
            added.push(AddedToken::from(token, special).normalized(false));
        }
        added
    }
}

impl Kind {
    fn of(code: i32) -> Self {
        match code {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }
}

/// BPE with a list of merges and, mostly, the alphabet of bytes.
fn byte_pairs(metadata: &Metadata, vocab: &mut Vocab<'_>, pre: Option<&str>) -> Result<Parts> {
    let rule = Pre::find(pre, |token| vocab.by_token.contains_key(token))?;
    let listed = metadata.opt_strings("tokenizer.ggml.merges")?;
    let merges = match listed {
        Some(merges) => pairs(merges).collect(),
        None if pre == Some("kimi-k2") => {
            // Made from a tiktoken vocabulary, where the id is the rank.
            vocab.scored_merges(|kind| kind == Kind::Normal, |id| -(id as f32))
        }
        None => metadata.strings("tokenizer.ggml.merges").map(|_| Vec::new())?,
    };
    let unknown = if rule.byte_fallback() { unknown(metadata, vocab)? } else { None };
    let build = |by_token: bpe::Vocab, merges: Vec<(String, String)>| {
        let mut model =
            BPE::builder().vocab_and_merges(by_token, merges).ignore_merges(rule.ignore_merges);
        if rule.byte_fallback() {
            model = model.byte_fallback(true).fuse_unk(true);
        }
        if let Some(unknown) = unknown {
            model = model.unk_token(unknown.to_owned());
        }
        model.build().map_err(failed)
    };
    let model = match (build(vocab.take_map(), merges), listed) {
        // The builder looks at each merge, so that they are looked at here only if it objects.
        (Err(_), Some(listed)) => {
            let (by_token, _) = by_token(vocab.tokens);
            let merges = possible(listed, &by_token);
            build(by_token, merges)
        }
        (model, _) => model,
    };
    Ok(Parts {
        model: model?.into(),
        normalizer: rule.normalizer()?,
        pre_tokenizer: rule.pre_tokenizer()?,
        rule: rule.decode_rule(),
        add_bos: rule.add_bos,
        add_eos: false,
    })
}

/// The ids of tokens, and those of tokens that are spelled like one before them.
fn by_token(tokens: &Strings) -> (bpe::Vocab, HashSet<u32>) {
    let mut ids = bpe::Vocab::with_capacity(tokens.len());
    let mut repeated = HashSet::new();
    for (token, id) in tokens.iter().zip(0..) {
        if *ids.entry(token.to_owned()).or_insert(id) != id {
            repeated.insert(id);
        }
    }
    (ids, repeated)
}

/// The two parts of each merge of the file.
fn pairs(merges: &Strings) -> impl Iterator<Item = (String, String)> {
    merges.iter().filter_map(|merge| {
        // A part may itself begin with a space, but not be empty.
        let (cut, _) = merge.char_indices().skip(1).find(|&(_, character)| character == ' ')?;
        Some((merge[..cut].to_owned(), merge[cut + 1..].to_owned()))
    })
}

/// The merges of the file without those that lead to no token, which can never happen.
fn possible(merges: &Strings, ids: &bpe::Vocab) -> Vec<(String, String)> {
    let is_possible = |(left, right): &(String, String)| {
        [left, right, &format!("{left}{right}")].iter().all(|&token| ids.contains_key(token))
    };
    let list: Vec<_> = pairs(merges).filter(is_possible).collect();
    let lost = merges.len() - list.len();
    tracing::warn!("{lost} merges of the vocabulary lead to no token");
    list
}

/// SentencePiece BPE: merges follow from scores, and unknown characters are written in bytes.
fn sentence_piece(metadata: &Metadata, vocab: &mut Vocab<'_>) -> Result<Parts> {
    let merges = vocab.scored_merges(
        |kind| matches!(kind, Kind::Normal | Kind::UserDefined),
        |id| vocab.scores[id as usize],
    );
    let mut model = BPE::builder()
        .vocab_and_merges(vocab.take_map(), merges)
        .fuse_unk(true)
        .byte_fallback(vocab.has(Kind::Byte));
    if let Some(unknown) = unknown(metadata, vocab)? {
        model = model.unk_token(unknown.to_owned());
    }
    let prefix = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut steps = vec![spaces_to_marks()?];
    if prefix {
        steps.insert(0, NormalizerWrapper::Prepend(Prepend::new("▁".to_owned())));
    }
    Ok(Parts {
        model: model.build().map_err(failed)?.into(),
        normalizer: Some(Sequence::new(steps).into()),
        pre_tokenizer: None,
        rule: DecodeRule {
            spelling: Spelling::SentencePiece { bytes: true },
            lead: if prefix { Lead::Spaces(1) } else { Lead::Keep },
        },
        add_bos: true,
        add_eos: false,
    })
}

/// SentencePiece unigram: the most likely way to cut the text.
fn unigram(metadata: &Metadata, vocab: &Vocab<'_>) -> Result<Parts> {
    let pieces: Vec<(String, f64)> = vocab
        .tokens
        .iter()
        .zip(&vocab.scores)
        .map(|(token, &score)| (token.to_owned(), f64::from(score)))
        .collect();
    if pieces.iter().any(|(_, score)| score.is_nan()) {
        return Err(bad("a score is not a number"));
    }
    let unknown = metadata.opt_u32("tokenizer.ggml.unknown_token_id")?.unwrap_or(2);
    let model =
        Unigram::from(pieces, Some(unknown as usize), vocab.has(Kind::Byte)).map_err(failed)?;
    let mut steps = Vec::new();
    if let Some(map) = metadata.get("tokenizer.ggml.precompiled_charsmap") {
        let map = match map.as_array() {
            Some(Array::U8(bytes)) => bytes.clone(),
            Some(Array::I8(bytes)) => bytes.iter().map(|&byte| byte as u8).collect(),
            _ => return Err(bad("the precompiled character map is not a list of bytes")),
        };
        if !map.is_empty() {
            charsmap::check(&map)?;
            steps.push(NormalizerWrapper::Precompiled(
                Precompiled::from(&map).map_err(|error| bad(error.to_string()))?,
            ));
        }
    }
    if metadata.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false) {
        let spaces = ReplacePattern::Regex(" {2,}".to_owned());
        steps.push(NormalizerWrapper::Replace(Replace::new(spaces, " ").map_err(failed)?));
    }
    let prefix = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let scheme = if prefix { PrependScheme::Always } else { PrependScheme::Never };
    Ok(Parts {
        model: model.into(),
        normalizer: (!steps.is_empty()).then(|| Sequence::new(steps).into()),
        pre_tokenizer: Some(PreTokenizerWrapper::Metaspace(Metaspace::new('▁', scheme, true))),
        rule: DecodeRule {
            spelling: Spelling::SentencePiece { bytes: vocab.has(Kind::Byte) },
            lead: if prefix { Lead::FirstToken } else { Lead::Keep },
        },
        add_bos: false,
        add_eos: true,
    })
}

/// The special ids the file names.
fn specials(metadata: &Metadata, vocab: &Vocab<'_>, parts: &Parts, bert: bool) -> Result<Specials> {
    let id = |key: &str| -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{key}_token_id");
        let id = metadata.opt_u32(&key)?;
        if let Some(id) = id {
            // Some converters write the largest number for "none".
            if id as usize >= vocab.tokens.len() {
                tracing::warn!("{key} is {id}, which is outside the vocabulary; it is ignored");
                return Ok(None);
            }
        }
        Ok(id)
    };
    let flag = |key: &str| metadata.opt_bool(&format!("tokenizer.ggml.add_{key}_token"));
    let mut specials = Specials { bos: id("bos")?, eos: id("eos")?, ..Specials::default() };
    let separator = id("seperator")?.or(id("separator")?);
    if bert {
        specials.bos = specials.bos.or(id("cls")?);
    }
    specials.set_add_bos(flag("bos")?.unwrap_or(parts.add_bos));
    specials.set_add_eos(flag("eos")?.unwrap_or(parts.add_eos));
    if flag("sep")?.unwrap_or(bert) && specials.suffix.last() != separator.as_ref() {
        specials.suffix.extend(separator);
    }
    specials.eog.extend(specials.eos);
    specials.eog.extend(id("eot")?);
    specials.eog.extend(id("eom")?);
    Ok(specials)
}

/// The token for what is in no token.
fn unknown<'a>(metadata: &Metadata, vocab: &Vocab<'a>) -> Result<Option<&'a str>> {
    let id = metadata.opt_u32("tokenizer.ggml.unknown_token_id")?;
    let id = id.map(|id| id as usize).or(vocab.kinds.iter().position(|&k| k == Kind::Unknown));
    Ok(id.and_then(|id| vocab.tokens.get(id)))
}

fn bad(reason: impl Into<String>) -> Error {
    Error::BadMetadata { reason: reason.into() }
}

fn failed(error: tokenizers::Error) -> Error {
    bad(error.to_string())
}

#[cfg(test)]
mod tests;
