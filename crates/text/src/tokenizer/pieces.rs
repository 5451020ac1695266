//! What each token id stands for in the output: its bytes, and whether it is a control token.
//!
//! Decoding is defined on bytes: the pieces of all ids, one after the other, read as UTF-8, with
//! U+FFFD for what is not UTF-8. That is the one definition that a streaming decoder can follow
//! exactly, and it is what the `ByteLevel` decoder does. It differs from the `ByteFallback` decoder
//! only for byte tokens that are not UTF-8, where that one replaces every byte of the run.
//!
//! The kind of pieces is chosen by the decoder the tokenizer declares, never by how tokens look.
//! `clean_up_tokenization_spaces` is not applied: it removes spaces the model wrote.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use tokenizers::DecoderWrapper;
use tokenizers::decoders::wordpiece::cleanup;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

use crate::error::{Error, Result};

/// How tokens spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's alphabet, in which 256 printable characters stand for the 256 bytes.
    ByteLevel,
    /// SentencePiece: `▁` is a space, and, if `bytes`, `<0x0A>` is a byte.
    SentencePiece { bytes: bool },
    /// BERT: a word begins with a space unless it starts with `##`; `clean` drops the space before
    /// punctuation.
    WordPiece { clean: bool },
    /// Tokens are text; a space goes between them.
    Words,
}

/// What happens to the start of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// Nothing.
    Keep,
    /// Up to this many spaces at the very start are dropped.
    Spaces(usize),
    /// Every space at the start of the first token is dropped.
    FirstToken,
}

/// A decoder reduced to two facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodeRule {
    pub spelling: Spelling,
    pub lead: Lead,
}

/// The bytes of every token id.
#[derive(Debug)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end; those of the next id begin there.
    ends: Vec<u32>,
    control: Vec<bool>,
    pub lead: Lead,
}

impl Pieces {
    /// Spells out `tokens`, which are in the order of their ids; `None` is an id nobody uses.
    pub fn new<'a>(
        rule: DecodeRule,
        tokens: impl Iterator<Item = Option<(&'a str, bool)>>,
    ) -> Result<Self> {
        let mut pieces =
            Self { bytes: Vec::new(), ends: Vec::new(), control: Vec::new(), lead: rule.lead };
        for token in tokens {
            let (text, control) = token.unwrap_or(("", false));
            rule.spelling.write(text, &mut pieces.bytes);
            let end = u32::try_from(pieces.bytes.len()).map_err(|_| Error::BadMetadata {
                reason: "the vocabulary has more than 4 GiB of text".into(),
            })?;
            pieces.ends.push(end);
            pieces.control.push(control);
        }
        Ok(pieces)
    }

    /// The same pieces with more control tokens.
    pub fn with_control(&self, ids: &BTreeSet<u32>) -> Self {
        let mut control = self.control.clone();
        for &id in ids {
            if let Some(flag) = control.get_mut(id as usize) {
                *flag = true;
            }
        }
        Self { bytes: self.bytes.clone(), ends: self.ends.clone(), control, lead: self.lead }
    }

    /// One more than the largest id.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token; none for an id outside the vocabulary.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Bytes of the longest token.
    pub fn longest(&self) -> usize {
        (0..self.len() as u32).map(|id| self.get(id).len()).max().unwrap_or(0)
    }

    /// Whether the token is a control token: one that is never text.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }
}

impl Spelling {
    fn write(self, token: &str, out: &mut Vec<u8>) {
        match self {
            Spelling::ByteLevel => {
                let start = out.len();
                for character in token.chars() {
                    match byte_of(character) {
                        Some(byte) => out.push(byte),
                        None => {
                            // An added token written in plain text.
                            out.truncate(start);
                            out.extend_from_slice(token.as_bytes());
                            return;
                        }
                    }
                }
            }
            Spelling::SentencePiece { bytes } => match byte_token(token) {
                Some(byte) if bytes => out.push(byte),
                _ => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
            },
            Spelling::WordPiece { clean } => {
                let text = match token.strip_prefix("##") {
                    Some(rest) => rest.to_owned(),
                    None => format!(" {token}"),
                };
                let text = if clean { cleanup(&text) } else { text };
                out.extend_from_slice(text.as_bytes());
            }
            Spelling::Words => {
                out.push(b' ');
                out.extend_from_slice(token.as_bytes());
            }
        }
    }
}

/// The byte of a token such as `<0x0A>`.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// The byte that a character of GPT-2's alphabet stands for.
///
/// Printable bytes of Latin-1 stand for themselves; the other 68, in order, are U+0100 onwards.
fn byte_of(character: char) -> Option<u8> {
    static SHIFTED: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..=255).filter(|&byte| !is_printable(byte)).collect());
    match u32::from(character) {
        code @ 0..=0xff => {
            let byte = code as u8;
            is_printable(byte).then_some(byte)
        }
        code => SHIFTED.get((code - 0x100) as usize).copied(),
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

impl DecodeRule {
    /// Reads the decoder of a `tokenizer.json`.
    pub fn of(decoder: Option<&DecoderWrapper>) -> Result<Self> {
        let Some(decoder) = decoder else {
            return Ok(Self { spelling: Spelling::Words, lead: Lead::Spaces(1) });
        };
        match decoder {
            DecoderWrapper::ByteLevel(_) => {
                Ok(Self { spelling: Spelling::ByteLevel, lead: Lead::Keep })
            }
            DecoderWrapper::WordPiece(wordpiece) if wordpiece.prefix == "##" => Ok(Self {
                spelling: Spelling::WordPiece { clean: wordpiece.cleanup },
                lead: Lead::Spaces(1),
            }),
            DecoderWrapper::Metaspace(space) if space.get_replacement() == '▁' => Ok(Self {
                spelling: Spelling::SentencePiece { bytes: false },
                lead: match space.prepend_scheme {
                    PrependScheme::Never => Lead::Keep,
                    _ => Lead::FirstToken,
                },
            }),
            DecoderWrapper::Sequence(sequence) => Self::of_sequence(sequence.get_decoders()),
            other => Err(unsupported(other)),
        }
    }

    fn of_sequence(steps: &[DecoderWrapper]) -> Result<Self> {
        if let [only] = steps {
            return Self::of(Some(only));
        }
        let mut bytes = false;
        let mut fused = false;
        let mut lead = Lead::Keep;
        let mut spaces = false;
        for step in steps {
            match step {
                DecoderWrapper::Replace(replace) => {
                    // The fields are private; the serialized form is the public one.
                    let form = serde_json::to_value(replace).unwrap_or_default();
                    if form["pattern"]["String"] != "▁" || form["content"] != " " {
                        return Err(unsupported(step));
                    }
                    spaces = true;
                }
                DecoderWrapper::ByteFallback(_) => bytes = true,
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::Strip(strip)
                    if fused && strip.content == ' ' && strip.stop == 0 =>
                {
                    lead = Lead::Spaces(strip.start);
                }
                DecoderWrapper::Metaspace(_) => {
                    let inner = Self::of(Some(step))?;
                    spaces = true;
                    lead = inner.lead;
                }
                other => return Err(unsupported(other)),
            }
        }
        if spaces {
            Ok(Self { spelling: Spelling::SentencePiece { bytes }, lead })
        } else {
            Err(Error::Unsupported {
                what: "decoder",
                name: serde_json::to_string(steps).unwrap_or_default(),
                known: KNOWN_DECODERS.into(),
            })
        }
    }
}

const KNOWN_DECODERS: &str = "ByteLevel, Metaspace, WordPiece, and sequences of Replace, \
                              ByteFallback, Fuse, Strip and Metaspace";

fn unsupported(decoder: &DecoderWrapper) -> Error {
    Error::Unsupported {
        what: "decoder",
        name: serde_json::to_string(decoder).unwrap_or_default(),
        known: KNOWN_DECODERS.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(spelling: Spelling, token: &str) -> Vec<u8> {
        let mut out = Vec::new();
        spelling.write(token, &mut out);
        out
    }

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> =
            (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn tokens_are_spelled_by_the_declared_rule() {
        assert_eq!(spell(Spelling::ByteLevel, "ĠHi"), b" Hi");
        assert_eq!(spell(Spelling::ByteLevel, "<｜end▁of▁turn｜>"), "<｜end▁of▁turn｜>".as_bytes());
        let sentence = Spelling::SentencePiece { bytes: true };
        assert_eq!(spell(sentence, "▁Hi"), b" Hi");
        assert_eq!(spell(sentence, "<0xE2>"), [0xe2]);
        assert_eq!(spell(sentence, "<0x+1>"), b"<0x+1>");
        assert_eq!(spell(sentence, "Ġ"), "Ġ".as_bytes());
        let wordpiece = Spelling::WordPiece { clean: true };
        assert_eq!(spell(wordpiece, "##ing"), b"ing");
        assert_eq!(spell(wordpiece, "play"), b" play");
        assert_eq!(spell(wordpiece, "."), b".");
    }

    #[test]
    fn ids_outside_the_vocabulary_are_empty() {
        let rule = DecodeRule { spelling: Spelling::ByteLevel, lead: Lead::Keep };
        let pieces = Pieces::new(rule, [Some(("a", false)), None].into_iter()).unwrap();
        assert_eq!(pieces.get(0), b"a");
        assert_eq!(pieces.get(1), b"");
        assert_eq!(pieces.get(u32::MAX), b"");
        assert!(!pieces.is_control(7));
    }
}
