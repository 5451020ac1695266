//! Llama 1 to 3.x and what is built like it (SmolLM2, TinyLlama, Yi, ...); Mistral with its window.

use baton_graph::RopeLayout;

use super::Family;
use crate::config::ModelConfig;
use crate::hyper::{self, Hyper};
use crate::{Error, Result};

/// Llama; Mistral as well in GGUF, whose converter gives both one name.
pub(crate) const LLAMA: Family = Family {
    name: "Llama",
    model_types: &["llama"],
    gguf: &["llama"],
    checkpoint_names: &[],
    gguf_names: &[],
    configure: |h, config| {
        if h.usize_opt(hyper::EXPERTS)?.is_some_and(|experts| experts > 0) {
            return Err(Error::Unsupported {
                what: "Llama with experts (Mixtral)".into(),
                instead: "use a dense model, Qwen3-MoE or gpt-oss",
            });
        }
        if h.is_gguf() {
            // Converters permute the rows of query and key so that pairs are neighbours.
            config.rope_layout = RopeLayout::Interleaved;
            return window_on_all(h, config);
        }
        Ok(())
    },
    defaults: &[],
    prepare: None,
};

/// Mistral 7B and its kin, in checkpoints.
pub(crate) const MISTRAL: Family = Family {
    name: "Mistral",
    model_types: &["mistral"],
    gguf: &[],
    checkpoint_names: &[],
    gguf_names: &[],
    configure: window_on_all,
    defaults: &[],
    prepare: None,
};

/// Gives every layer the window, if there is one.
pub(super) fn window_on_all(h: &Hyper<'_>, config: &mut ModelConfig) -> Result<()> {
    config.set_windows(h, h.window()?, |_| true)
}
