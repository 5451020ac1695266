//! Vocabularies of BERT.

use baton_weights::Metadata;
use tokenizers::PreTokenizerWrapper;
use tokenizers::models::bpe;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

use super::{DecodeRule, Kind, Lead, Parts, Spelling, Vocab, failed, unknown};
use crate::error::Result;

/// BERT's WordPiece.
pub(super) fn word_piece(metadata: &Metadata, vocab: &Vocab<'_>) -> Result<Parts> {
    let ids = vocab.ids().map(|(token, id)| (bert_spelling(token, vocab.kind(id)), id));
    let ids: bpe::Vocab = ids.collect();
    let unknown = unknown(metadata, vocab)?.unwrap_or("[UNK]");
    let model =
        WordPiece::builder().vocab(ids).unk_token(unknown.to_owned()).build().map_err(failed)?;
    let lowercase = metadata.opt_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip = metadata.opt_bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
    Ok(Parts {
        model: model.into(),
        normalizer: Some(BertNormalizer::new(true, true, Some(strip), lowercase).into()),
        pre_tokenizer: Some(PreTokenizerWrapper::BertPreTokenizer(BertPreTokenizer)),
        rule: DecodeRule { spelling: Spelling::WordPiece { clean: true }, lead: Lead::Spaces(1) },
        add_bos: true,
        add_eos: false,
    })
}

/// A BERT token as its own vocabulary spells it. GGUF files mark the beginnings of words with `▁`
/// instead of the insides with `##`.
pub(super) fn bert_spelling(token: &str, kind: Kind) -> String {
    match token.strip_prefix('▁') {
        _ if matches!(kind, Kind::Control | Kind::Unknown) => token.to_owned(),
        Some(word) => word.to_owned(),
        None => format!("##{token}"),
    }
}
