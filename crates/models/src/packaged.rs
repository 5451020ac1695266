//! A model of which only packages are there that name no model: those that other projects have converted.
//!
//! Its graph computes nothing that anybody could run: it has the sizes by which memory is planned and caches
//! are kept, and the packages compute in its place.

use std::path::{Path, PathBuf};

use baton_graph::{Graph, GraphBuilder};
use baton_weights::{Checkpoint, GgufFile};

use crate::arch::{FAMILIES, Family, UNKNOWN};
use crate::config::ModelConfig;
use crate::names::PREFIXES;
use crate::source::{Source, TensorSummary, no_model, only_gguf};
use crate::{Error, Result};

/// What says of a checkpoint how texts become tokens.
const TOKENIZER: &str = "tokenizer.json";

/// What packages say of the model that they were made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packaged {
    /// Where they lie, with the model's tokenizer.
    pub folder: PathBuf,
    /// What the model is called.
    pub name: String,
    /// Its licence, if they state one.
    pub licence: Option<String>,
    /// Its architecture, if they name one.
    pub architecture: Option<String>,
    /// How they are laid out.
    pub layout: String,
    /// Its sizes.
    pub sizes: PackagedSizes,
    /// Each package and its bytes.
    pub packages: Vec<(String, u64)>,
    /// Identifies them.
    pub fingerprint: [u8; 32],
}

/// The sizes that packages show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackagedSizes {
    /// Tokens that have logits.
    pub vocab: usize,
    /// Features of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Key-value heads of the cache.
    pub kv_heads: usize,
    /// Features of a head of the cache.
    pub head_dim: usize,
    /// Most tokens of a sequence.
    pub context: usize,
}

impl Packaged {
    pub(crate) fn family(&self) -> &'static Family {
        let plain = |name: &str| name.to_lowercase().replace([' ', '-', '_'], "");
        let named = self.architecture.as_deref().map(plain);
        let is_named = |family: &&&Family| {
            let names = family.model_types.iter().chain(family.gguf).chain([&family.name]);
            names.into_iter().any(|name| Some(plain(name)) == named)
        };
        FAMILIES.iter().find(is_named).copied().unwrap_or(&UNKNOWN)
    }

    pub(crate) fn config(&self) -> Result<ModelConfig> {
        ModelConfig::of_sizes(&self.sizes)
    }

    /// The packages in the place of tensors, of which nothing is known.
    pub(crate) fn tensors(&self) -> Vec<TensorSummary> {
        let tensor = |(name, bytes): &(String, u64)| TensorSummary {
            name: name.clone(),
            shape: vec![0],
            dtype: "package".to_owned(),
            bytes: usize::try_from(*bytes).unwrap_or(usize::MAX),
        };
        self.packages.iter().map(tensor).collect()
    }

    /// Tokens to hidden states to logits, with the cache of each layer.
    pub(crate) fn graph(&self) -> Result<Graph> {
        let PackagedSizes { vocab, hidden, layers, kv_heads, head_dim, .. } = self.sizes;
        let mut b = GraphBuilder::new(&self.name);
        b.fingerprint(self.fingerprint);
        let table = b.weight("packages.embeddings", &[vocab, hidden]);
        for _ in 0..layers {
            b.kv_state(kv_heads, head_dim, None);
        }
        let head = b.weight("packages.head", &[vocab, hidden]);
        let x = b.embedding("embeddings", table, 1.0)?;
        let logits = b.linear("head", x, head, None)?;
        Ok(b.finish(logits)?)
    }
}

/// The files beside packages that tell of texts.
pub(crate) fn source(folder: &Path) -> Result<Source> {
    if folder.join(TOKENIZER).is_file() {
        let files = Checkpoint::without_tensors(folder)?;
        return Ok(Source::Checkpoint { folder: folder.to_owned(), files, prefix: PREFIXES[0] });
    }
    match only_gguf(folder) {
        Ok(path) => Ok(Source::Gguf(GgufFile::open(path)?)),
        Err(Error::NoModel { .. }) => {
            let problem = "has packages of a model, but neither tokenizer.json nor tokenizer.gguf; put the \
                           tokenizer.json of the model that they were made of there, and tokenizer_config.json with \
                           its chat template";
            Err(no_model(folder, problem))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packaged(folder: &Path) -> Packaged {
        let sizes = PackagedSizes {
            vocab: 97,
            hidden: 16,
            layers: 3,
            kv_heads: 2,
            head_dim: 8,
            context: 64,
        };
        Packaged {
            folder: folder.to_owned(),
            name: "a".into(),
            licence: None,
            architecture: Some("Gemma-3".into()),
            layout: "anemll".into(),
            sizes,
            packages: vec![("a_lm_head.mlpackage".into(), 5), ("b".into(), 7)],
            fingerprint: [7; 32],
        }
    }

    #[test]
    fn packages_stand_for_a_model_whose_sizes_they_show() {
        let folder = tempfile::tempdir().unwrap();
        let of = |packaged| crate::Model::of_packages(packaged);
        let error = of(packaged(folder.path())).unwrap_err().to_string();
        assert!(error.contains("put the tokenizer.json"), "{error}");
        std::fs::write(folder.path().join(TOKENIZER), "{}").unwrap();
        let model = of(packaged(folder.path())).unwrap();
        let (graph, weights) = model.build(&crate::BuildOptions { context: 64 }).unwrap();
        assert_eq!((graph.vocab(), graph.states().len()), (97, 3));
        assert_eq!((graph.fingerprint(), weights.stored_bytes()), (&[7; 32], 0));
        assert_eq!((model.packages(), model.architecture()), (Some(folder.path()), "Gemma 3"));
        assert_eq!((model.parameters(), model.stored_bytes()), (0, 12));
        let strange = Packaged { architecture: Some("mamba".into()), ..packaged(folder.path()) };
        assert_eq!(of(strange).unwrap().architecture(), "unknown");
        let mut empty = packaged(folder.path());
        empty.sizes.layers = 0;
        assert!(of(empty).unwrap_err().to_string().contains("0 layers"));
    }
}
