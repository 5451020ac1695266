//! The architectures: what each calls itself and how it departs from the common decoder.

mod bert;
mod gemma;
mod gpt_oss;
mod llama;
mod phi3;
mod qwen;
mod smollm3;

use crate::config::ModelConfig;
use crate::hyper::{Defaults, Hyper};
use crate::loader::Loader;
use crate::names::{self, Names, Table};
use crate::source::Source;
use crate::{Error, Result};

/// One architecture, or several that differ in nothing but the name.
#[derive(Debug)]
pub(crate) struct Family {
    /// What people call it.
    pub(crate) name: &'static str,
    /// `model_type` in `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// `general.architecture` in GGUF files.
    pub(crate) gguf: &'static [&'static str],
    /// Departures from the common tensor names of checkpoints.
    pub(crate) checkpoint_names: Table,
    /// Departures from the common tensor names of GGUF files.
    pub(crate) gguf_names: Table,
    /// Sets what differs from the common config.
    pub(crate) configure: fn(&Hyper<'_>, &mut ModelConfig) -> Result<()>,
    /// Values of keys that files may leave out.
    pub(crate) defaults: Defaults,
    /// Rearranges tensors of a checkpoint that do not lie as the graph wants them.
    pub(crate) prepare: Option<fn(&mut Loader<'_>, &ModelConfig) -> Result<()>>,
}

/// All of them.
pub(crate) const FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &llama::MISTRAL,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN3_MOE,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &phi3::PHI3,
    &smollm3::SMOLLM3,
    &gpt_oss::GPT_OSS,
    &bert::BERT,
    &bert::NOMIC_BERT,
];

/// That of a model of which only packages are there, which name none of the others.
pub(crate) const UNKNOWN: Family =
    Family { name: "unknown", model_types: &[], gguf: &[], ..llama::LLAMA };

impl Family {
    /// The family of a `model_type`.
    pub(crate) fn of_model_type(name: &str) -> Result<&'static Family> {
        find(name, |family| family.model_types)
    }

    /// The family of a GGUF file's architecture.
    pub(crate) fn of_gguf(name: &str) -> Result<&'static Family> {
        find(name, |family| family.gguf)
    }

    /// Its tensor names in a file.
    pub(crate) fn names(&self, source: &Source) -> Names {
        match source {
            Source::Gguf(_) => Names { own: self.gguf_names, base: names::GGUF },
            Source::Checkpoint { .. } => {
                Names { own: self.checkpoint_names, base: names::CHECKPOINT }
            }
        }
    }
}

fn find(
    name: &str,
    names: impl Fn(&'static Family) -> &'static [&'static str],
) -> Result<&'static Family> {
    FAMILIES.iter().copied().find(|family| names(family).contains(&name)).ok_or_else(|| {
        let supported: Vec<&str> = FAMILIES.iter().flat_map(|f| names(f)).copied().collect();
        Error::UnknownArchitecture { name: name.to_owned(), supported: supported.join(", ") }
    })
}
