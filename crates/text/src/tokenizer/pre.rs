//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`.
//!
//! A GGUF file holds the name of the rule that splits text into words, not the rule. The rules are
//! those of the models' own `tokenizer.json`: patterns applied one after the other, each to what
//! the one before it left.

use tokenizers::normalizers::Replace;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::pieces::{DecodeRule, Lead, Spelling};
use crate::error::{Error, Result};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_SCRIPTS: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const CJK: &str = "[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
/// The letters with case. The file of this tokenizer spells them out one range after the other,
/// without the mathematical alphabets.
const DEEPSEEK_LETTERS: &str = r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^\x{1D400}-\x{1D7FF}]]+";
const DEEPSEEK_PUNCTUATION: &str = "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+";
const DEEPSEEK_ASIAN: &str = "[一-龥\u{0800}-一가-\u{d7ff}]+";
const BLOOM: &str = " ?[^(\\s|.,!?…。，、।۔،)]+";
/// Threes of digits, counted from the right.
const DIGITS_FROM_THE_RIGHT: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
const BEFORE_THREES_OF_DIGITS: &str = r"(?=(\d{3})+(?!\d))";
const AFMOE_SCRIPTS: &str = "[一-鿿㐀-䶿豈-\u{faff}぀-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}เ-\u{0e7f}຀-\u{0eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+";
const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const DEFAULT_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";

/// What a word is made of before it is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alphabet {
    /// GPT-2's alphabet of bytes.
    Bytes,
    /// Characters, with `▁` for a space and `<0x0A>` for a byte that is in no token.
    Characters,
    /// Characters of words between white space, which is dropped.
    Words,
}

/// A pre-tokenizer and what llama.cpp's converter leaves unsaid with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pre {
    names: &'static [&'static str],
    splits: &'static [&'static str],
    alphabet: Alphabet,
    /// Whether a word that is a token stays one, though no merges lead to it.
    pub ignore_merges: bool,
    /// Whether a text starts with BOS if the file does not say.
    pub add_bos: bool,
    /// Whether the model's own tokenizer composes characters first (Unicode NFC).
    nfc: bool,
}

const fn pre(names: &'static [&'static str], splits: &'static [&'static str]) -> Pre {
    Pre {
        names,
        splits,
        alphabet: Alphabet::Bytes,
        ignore_merges: false,
        add_bos: false,
        nfc: false,
    }
}

const TABLE: &[Pre] = &[
    Pre {
        ignore_merges: true,
        add_bos: true,
        ..pre(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[LLAMA3],
        )
    },
    pre(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3]),
    pre(&["jais-2"], &[JAIS2]),
    Pre {
        nfc: true,
        ..pre(&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"], &[QWEN2])
    },
    Pre { nfc: true, ..pre(&["qwen35"], &[QWEN35]) },
    pre(&["stablelm2", "hunyuan", "solar-open", "grok-2"], &[QWEN2]),
    pre(&["ufakzeka"], &[UFAKZEKA]),
    Pre { ignore_merges: true, ..pre(&["minicpm5"], &[UP_TO_THREE_DIGITS, MINICPM5]) },
    pre(&["laguna"], &["[^\\n]+|[\\n]+", QWEN2]),
    pre(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    pre(&["seed-coder"], &[SEED]),
    pre(&["exaone-moe"], &[EXAONE_MOE]),
    Pre {
        ignore_merges: true,
        ..pre(
            &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"],
            &[GPT4O],
        )
    },
    Pre { nfc: true, ..pre(&["tiny_aya", "cohere2moe"], &[DIGITS_FROM_THE_RIGHT, GPT4O]) },
    Pre { ignore_merges: true, ..pre(&["youtu"], &[YOUTU_SCRIPTS, YOUTU]) },
    Pre { ignore_merges: true, add_bos: true, ..pre(&["tekken"], &[TEKKEN]) },
    pre(&["kimi-k2"], &[KIMI_K2]),
    pre(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[UP_TO_THREE_DIGITS, CJK, DEEPSEEK3],
    ),
    pre(&["spark2_5"], &[UP_TO_THREE_DIGITS, CJK, SPARK, DIGIT]),
    pre(
        &["deepseek-llm"],
        &["[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$", DEEPSEEK_ASIAN, r"\p{N}+"],
    ),
    pre(&["deepseek-coder"], &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_ASIAN, DIGIT]),
    pre(&["falcon"], &[FALCON_PUNCTUATION, GPT2, THREE_DIGITS]),
    pre(
        &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    Pre { nfc: true, ..pre(&["command-r"], &[DIGIT, GPT2]) },
    pre(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    Pre { nfc: true, ..pre(&["olmo", "mpt", "modern-bert"], &[GPT2]) },
    pre(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    pre(&["viking"], &[BLOOM, DIGIT]),
    Pre {
        add_bos: true,
        ..pre(
            &["chameleon"],
            &[
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                "([\\t\\n]|    |  )",
                DIGIT,
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ],
        )
    },
    pre(&["superbpe"], &[r"\p{N}+", BEFORE_THREES_OF_DIGITS]),
    pre(
        &["afmoe"],
        &[
            r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))",
            AFMOE_SCRIPTS,
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
    ),
    Pre {
        alphabet: Alphabet::Characters,
        add_bos: true,
        ..pre(&["gemma4", "granite-embed-multi-311m"], &[])
    },
    Pre { alphabet: Alphabet::Characters, ..pre(&["sarvam-moe"], &[]) },
    Pre { alphabet: Alphabet::Words, ..pre(&["whitespace"], &[]) },
    pre(&["default"], &[DEFAULT_PUNCTUATION, GPT2, r"\p{N}+", THREE_DIGITS]),
];

/// Files made before the name was recorded can be told by a token that only one family has.
const TELLTALES: &[(&str, &str)] = &[
    ("<|begin_of_text|>", "llama-bpe"),
    ("<|start_header_id|>", "llama-bpe"),
    ("<|fim_pad|>", "qwen2"),
    ("<|START_OF_TURN_TOKEN|>", "command-r"),
    ("<|endofprompt|>", "dbrx"),
    ("<|startoftranscript|>", "gpt-2"),
    ("[AVAILABLE_TOOLS]", "tekken"),
];

impl Pre {
    /// The rule of a name. Without a name, or with the name `default`, it is told from the
    /// vocabulary, and failing that guessed, with a warning.
    pub fn find(name: Option<&str>, has_token: impl Fn(&str) -> bool) -> Result<&'static Self> {
        let named = |name: &str| TABLE.iter().find(|pre| pre.names.contains(&name));
        let stated = name.unwrap_or("default");
        if stated != "default" {
            return named(stated).ok_or_else(|| Error::Unsupported {
                what: "pre-tokenizer",
                name: stated.to_owned(),
                known: Self::names().collect::<Vec<_>>().join(", "),
            });
        }
        let told = TELLTALES.iter().find(|(token, _)| has_token(token)).map(|&(_, name)| name);
        match told {
            Some(told) => tracing::warn!(
                "the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre); \
                 by its vocabulary it is {told:?}, which is used"
            ),
            None => tracing::warn!(
                "the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre); a generic \
                 one is used, which may split text otherwise than in training and make answers \
                 worse: get a newer conversion of the model, or use its tokenizer.json"
            ),
        }
        named(told.unwrap_or("default")).ok_or_else(|| Error::BadMetadata {
            reason: "no pre-tokenizer fits the vocabulary".into(),
        })
    }

    /// Every name known.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().flat_map(|pre| pre.names.iter().copied())
    }

    /// How its tokens are decoded.
    pub fn decode_rule(&self) -> DecodeRule {
        let spelling = match self.alphabet {
            Alphabet::Bytes => Spelling::ByteLevel,
            Alphabet::Characters => Spelling::SentencePiece { bytes: true },
            Alphabet::Words => Spelling::Words,
        };
        let lead = match self.alphabet {
            Alphabet::Words => Lead::Spaces(1),
            _ => Lead::Keep,
        };
        DecodeRule { spelling, lead }
    }

    /// Whether bytes that are in no token are written as `<0x0A>`.
    pub fn byte_fallback(&self) -> bool {
        self.alphabet == Alphabet::Characters
    }

    /// What is done to a text before it is split.
    pub fn normalizer(&self) -> Result<Option<NormalizerWrapper>> {
        Ok(match self.alphabet {
            Alphabet::Characters => Some(spaces_to_marks()?),
            _ if self.nfc => Some(NormalizerWrapper::NFC(NFC)),
            _ => None,
        })
    }

    /// What splits a text into words.
    pub fn pre_tokenizer(&self) -> Result<Option<PreTokenizerWrapper>> {
        let mut steps = Vec::with_capacity(self.splits.len() + 1);
        for &split in self.splits {
            let pattern = SplitPattern::Regex(split.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| Error::BadMetadata { reason: error.to_string() })?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        match self.alphabet {
            Alphabet::Bytes => {
                steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
            }
            Alphabet::Words => steps.push(PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit)),
            Alphabet::Characters => {}
        }
        Ok((!steps.is_empty()).then(|| PreTokenizerWrapper::Sequence(Sequence::new(steps))))
    }
}

/// Writes `▁` for each space, as SentencePiece does.
pub(crate) fn spaces_to_marks() -> Result<NormalizerWrapper> {
    Replace::new(" ", "▁")
        .map(NormalizerWrapper::Replace)
        .map_err(|error| Error::BadMetadata { reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    fn split(name: &str, text: &str) -> Vec<String> {
        let pre = Pre::find(Some(name), |_| false).unwrap();
        let mut words = PreTokenizedString::from(text);
        pre.pre_tokenizer().unwrap().unwrap().pre_tokenize(&mut words).unwrap();
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|(_, (start, end), _)| text[*start..*end].to_owned()).collect()
    }

    #[test]
    fn every_rule_compiles_and_loses_nothing() {
        let text = "Hello, World's  123456 €5\r\n\tdef f(x):  # 日本語テスト ｶﾅ 한국어 ไทย e\u{301} <sentinel:3>\n\n  \u{3000}ABC";
        let names: BTreeSet<&str> = Pre::names().collect();
        assert_eq!(names.len(), Pre::names().count(), "a name stands twice");
        for name in names {
            let pre = Pre::find(Some(name), |_| false).unwrap();
            pre.normalizer().unwrap();
            if pre.alphabet == Alphabet::Bytes {
                assert_eq!(split(name, text).concat(), text, "{name}");
            }
        }
    }

    #[test]
    fn digits_are_split_as_each_family_does() {
        assert_eq!(split("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(split("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(split("smollm", "a12"), ["a", "1", "2"]);
        assert_eq!(split("gpt-2", "a 12345"), ["a", " 12345"]);
        assert_eq!(split("tiny_aya", "12345"), ["12", "345"]);
        assert_eq!(split("afmoe", "12345"), ["12", "345"]);
        assert_eq!(split("superbpe", "12345"), ["12", "345"]);
        assert_eq!(split("falcon", "12345"), ["123", "45"]);
        assert_eq!(split("minicpm5", "12345"), ["123", "45"]);
    }

    #[test]
    fn letters_are_split_as_each_family_does() {
        assert_eq!(split("tekken", "fooBar"), ["foo", "Bar"]);
        assert_eq!(split("gpt-4o", "fooBar's"), ["foo", "Bar's"]);
        assert_eq!(split("llama-bpe", "I'LL"), ["I", "'LL"]);
        assert_eq!(split("gpt-2", "I'LL"), ["I", "'", "LL"]);
        assert_eq!(split("kimi-k2", "漢字kanji"), ["漢字", "kanji"]);
        assert_eq!(split("deepseek-v3", "漢字kanji"), ["漢字", "kanji"]);
        // Its range of punctuation contains the unaccented letters.
        assert_eq!(split("deepseek-llm", "naïve 漢"), ["na", "ï", "ve", " ", "漢"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Pre::find(Some("qwen99"), |_| true).unwrap_err().to_string();
        assert!(error.contains("qwen99") && error.contains("llama-bpe"), "{error}");
    }

    #[test]
    fn a_missing_name_is_told_from_the_vocabulary() {
        let pre = Pre::find(None, |token| token == "<|begin_of_text|>").unwrap();
        assert!(pre.names.contains(&"llama-bpe"));
        let pre = Pre::find(Some("default"), |_| false).unwrap();
        assert_eq!(pre.names, ["default"]);
    }
}
