//! `meta.yaml`: what Anemll's programs are told of a folder.

use std::collections::BTreeMap;
use std::path::Path;

use super::order::REMEDY;
use super::{MOST, MOST_TOKENS, yaml};
use crate::layout::names::anemll::{META, meta as fields};
use crate::package::{inside, read};
use crate::{Error, Result};

/// No description is longer.
const MAX_BYTES: u64 = 1 << 16;
/// Chunks have two digits.
const MOST_CHUNKS: usize = 99;

/// What a description says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Meta {
    pub name: Option<String>,
    pub licence: Option<String>,
    pub architecture: Option<String>,
    pub context: usize,
    pub batch: usize,
    pub chunks: usize,
    pub prefix: String,
    /// What each kind of file has at the end of its name: embeddings, layers, head.
    pub luts: [String; 3],
    /// The names of embeddings, head and first layers, without what they end with, where they are given.
    pub files: [Option<String>; 3],
    pub logits: Option<usize>,
    pub vocab: Option<usize>,
    pub logit_sizes: Option<Vec<usize>>,
    /// Whether batches may begin at any position.
    pub anywhere: bool,
}

/// Fields that say of a folder what is not run here, unless they are `false`, with what to do instead.
const UNSUPPORTED: [(&str, &str); 4] = [
    ("argmax_in_model", "convert the model without --argmax, so that it has logits"),
    ("split_rotate", "convert the model with --single-cache"),
    ("update_mask_prefill", "convert the model without an update mask"),
    ("monolithic_model", "convert the model in parts: embeddings, layers, head"),
];

impl Meta {
    /// The description in a folder; none if there is none that tells of such packages.
    ///
    /// # Errors
    /// If it is malformed, or tells of what is not run here.
    pub fn open(folder: &Path) -> Result<Option<Meta>> {
        let path = folder.join(META);
        if !path.exists() {
            return Ok(None);
        }
        let problem = |problem: String| Error::Folder { path: path.clone(), problem };
        let text = String::from_utf8(read(&path, MAX_BYTES)?);
        let damaged = |text: String| problem(format!("{text}; {REMEDY}"));
        let text = text.map_err(|_| damaged("is no text".to_owned()))?;
        if !text.lines().any(|line| line.trim_end() == "model_info:") {
            return Ok(None);
        }
        let values = yaml::parse(&text).map_err(damaged)?;
        let parameters = Fields(&values);
        if let Some((field, instead)) = UNSUPPORTED.iter().find(|(field, _)| parameters.says(field))
        {
            return Err(Error::Unsupported {
                what: format!("{field} of {}", path.display()),
                instead: (*instead).to_owned(),
            });
        }
        Meta::of(&values).map(Some).map_err(damaged)
    }

    fn of(values: &BTreeMap<String, String>) -> std::result::Result<Meta, String> {
        let text = |key: &str| values.get(&format!("model_info.{key}")).cloned();
        let of = Fields(values);
        let need = |key: &str, most| of.number(key, most)?.ok_or_else(|| format!("has no {key}"));
        let mut luts = Vec::new();
        for key in fields::LUTS {
            luts.push(match of.get(key) {
                None | Some("none" | "None" | "null" | "") => String::new(),
                Some(bits) => format!("_lut{}", of.lut(key, bits)?),
            });
        }
        let mut files = Vec::new();
        for key in fields::FILES {
            files.push(of.get(key).map(|name| stem(key, name)).transpose()?);
        }
        let sizes = of.get(fields::LM_HEAD_CHUNK_SIZES).map(|list| {
            let numbers = list.split(',').map(|n| n.trim().parse());
            numbers.collect::<std::result::Result<Vec<usize>, _>>()
        });
        let sizes = sizes.transpose().map_err(|_| {
            format!("has a {} that is no list of numbers", fields::LM_HEAD_CHUNK_SIZES)
        })?;
        let prefix = of.get(fields::MODEL_PREFIX).unwrap_or_default();
        if !prefix.is_empty() {
            stem(fields::MODEL_PREFIX, prefix)?;
        }
        Ok(Meta {
            name: text("name"),
            licence: text("license").filter(|licence| licence != "unknown"),
            architecture: text("architecture"),
            context: need(fields::CONTEXT_LENGTH, MOST)?,
            batch: need(fields::BATCH_SIZE, MOST)?,
            chunks: need(fields::NUM_CHUNKS, MOST_CHUNKS)?,
            prefix: prefix.to_owned(),
            luts: luts.try_into().expect("three kinds"),
            files: files.try_into().expect("three kinds"),
            logits: of.number(fields::SPLIT_LM_HEAD, MOST)?,
            vocab: of.number(fields::VOCAB_SIZE, MOST_TOKENS)?,
            logit_sizes: sizes,
            anywhere: of.says(fields::PREFILL_DYNAMIC_SLICE),
        })
    }
}

/// The fields of `model_info.parameters`.
struct Fields<'a>(&'a BTreeMap<String, String>);

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.get(&format!("model_info.parameters.{key}")).map(String::as_str)
    }

    fn says(&self, key: &str) -> bool {
        self.get(key).is_some_and(|v| !["false", "False", "no", "null", "none", ""].contains(&v))
    }

    fn number(&self, key: &str, most: usize) -> std::result::Result<Option<usize>, String> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let number = text.parse().ok().filter(|n| (1..=most).contains(n));
        number.map(Some).ok_or_else(|| format!("has a {key} of {text:?}, not of 1 to {most}"))
    }

    /// Bits of indices, with which the size of a group may be named.
    fn lut(&self, key: &str, text: &str) -> std::result::Result<u8, String> {
        let bits = text.split(',').next().and_then(|bits| bits.trim().parse().ok());
        bits.filter(|bits| (1..=8).contains(bits))
            .ok_or_else(|| format!("has a {key} of {text:?}, not of 1 to 8 bits, nor none"))
    }
}

/// The name of a file in the folder, without what it ends with.
fn stem(key: &str, name: &str) -> std::result::Result<String, String> {
    let stem = [".mlmodelc", ".mlpackage"].iter().find_map(|end| name.strip_suffix(end));
    let stem = stem.unwrap_or(name);
    // Separators of other systems too.
    match inside(stem).is_some_and(|path| path.components().count() == 1)
        && !stem.contains(['/', '\\', ':', '\0'])
    {
        true => Ok(stem.to_owned()),
        false => Err(format!("has a {key} of {name:?}, which is no name in the folder")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As folders have it that the project has published.
    const PUBLISHED: &str = "model_info:\n  name: a-Qwen3-ctx512\n  version: 0.3.0\n  description: |\n    Runs Qwen3\n    Context length: 512\n  license: MIT\n  architecture: qwen\n  parameters:\n    context_length: 512\n    batch_size: 64\n    lut_embeddings: none\n    lut_ffn: 8\n    lut_lmhead: 6,4\n    num_chunks: 2\n    model_prefix: qwen\n    embeddings: qwen_embeddings.mlmodelc\n    lm_head: qwen_lm_head_lut6.mlmodelc\n    ffn: qwen_FFN_PF_lut8_chunk_01of02.mlmodelc\n    split_lm_head: 16\n";

    fn open(text: &str) -> Result<Option<Meta>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(META), text).unwrap();
        Meta::open(folder.path())
    }

    #[test]
    fn what_a_published_description_says_is_read() {
        let meta = open(PUBLISHED).unwrap().unwrap();
        assert_eq!((meta.context, meta.batch, meta.chunks, meta.logits), (512, 64, 2, Some(16)));
        assert_eq!(meta.luts, ["", "_lut8", "_lut6"]);
        let files = meta.files.map(Option::unwrap);
        assert_eq!(files[1], "qwen_lm_head_lut6");
        assert_eq!(files[2], "qwen_FFN_PF_lut8_chunk_01of02");
        assert!(!meta.anywhere && meta.vocab.is_none());
        // What does not tell of packages is somebody else's.
        assert_eq!(open("title: notes\n").unwrap(), None);
    }

    #[test]
    fn hostile_and_unsupported_descriptions_are_refused() {
        let with =
            |from: &str, to: &str| open(&PUBLISHED.replace(from, to)).unwrap_err().to_string();
        for (from, to, text) in [
            ("context_length: 512", "context_length: 99999999999999999999", "context_length"),
            ("context_length: 512", "context_length: -1", "context_length"),
            ("num_chunks: 2", "num_chunks: 100000", "1 to 99"),
            ("batch_size: 64", "size: 64", "has no batch_size"),
            ("qwen_embeddings.mlmodelc", "../../etc/x.mlmodelc", "no name in the folder"),
            ("qwen_embeddings.mlmodelc", "/etc/passwd", "no name in the folder"),
            ("qwen_lm_head_lut6.mlmodelc", "..\\x.mlmodelc", "no name in the folder"),
            ("model_prefix: qwen", "model_prefix: ..", "no name in the folder"),
            ("lut_ffn: 8", "lut_ffn: 99", "1 to 8 bits"),
            ("split_lm_head: 16", "argmax_in_model: true", "without --argmax"),
            ("split_lm_head: 16", "split_rotate: true", "--single-cache"),
            ("split_lm_head: 16", "lm_head_chunk_sizes: [8, x]", "no list of numbers"),
        ] {
            let error = with(from, to);
            assert!(error.contains(text), "{to}: {error}");
        }
        let long = PUBLISHED.to_owned() + &"# x\n".repeat(20_000);
        assert!(open(&long).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn descriptions_that_were_cut_or_changed_anywhere_are_read_or_refused() {
        for at in 0..PUBLISHED.len() {
            let cut = yaml::parse(&PUBLISHED[..at]);
            drop(cut.map(|values| Meta::of(&values)));
            for byte in [b'\n', b' ', b'"', b'-', b':', b'[', b'9'] {
                let mut bytes = PUBLISHED.as_bytes().to_vec();
                bytes[at] = byte;
                let values = yaml::parse(std::str::from_utf8(&bytes).unwrap());
                if let Ok(Ok(meta)) = values.map(|values| Meta::of(&values)) {
                    assert!(
                        meta.context <= MOST && meta.batch <= MOST && meta.chunks <= MOST_CHUNKS
                    );
                    let names = meta.files.iter().flatten().chain([&meta.prefix]);
                    assert!(names.into_iter().all(|name| !name.contains(['/', '\\'])));
                }
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_description_that_is_no_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(META)).unwrap();
        assert!(Meta::open(folder.path()).unwrap_err().to_string().contains("no file"));
    }
}
