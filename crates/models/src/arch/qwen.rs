//! Qwen2 and 2.5 (offsets on query, key and value), Qwen3 (norms per head), Qwen3-MoE.

use baton_graph::Routing;

use super::Family;
use crate::Result;
use crate::config::ModelConfig;
use crate::hyper::{Hyper, Key};

const USE_WINDOW: Key = Key { json: "use_sliding_window", gguf: "" };
const FULL_LAYERS: Key = Key { json: "max_window_layers", gguf: "" };
const NORMALIZE: Key = Key { json: "norm_topk_prob", gguf: "" };
const DENSE_LAYERS: Key = Key { json: "mlp_only_layers", gguf: "" };
const SPARSE_STEP: Key = Key { json: "decoder_sparse_step", gguf: "" };

/// Qwen2 and Qwen2.5. Whether there are offsets is seen from the tensors.
pub(crate) const QWEN2: Family = Family {
    name: "Qwen2",
    model_types: &["qwen2"],
    gguf: &["qwen2"],
    checkpoint_names: &[],
    gguf_names: &[],
    configure: windows,
    defaults: &[],
    prepare: None,
};

/// Qwen3.
pub(crate) const QWEN3: Family = Family {
    name: "Qwen3",
    model_types: &["qwen3"],
    gguf: &["qwen3"],
    checkpoint_names: &[],
    gguf_names: &[],
    configure: |h, config| {
        config.qk_norm = true;
        windows(h, config)
    },
    defaults: &[],
    prepare: None,
};

/// Qwen3 with experts.
pub(crate) const QWEN3_MOE: Family = Family {
    name: "Qwen3-MoE",
    model_types: &["qwen3_moe"],
    gguf: &["qwen3moe"],
    checkpoint_names: &[],
    gguf_names: &[],
    configure: |h, config| {
        config.qk_norm = true;
        // GGUF has no key for it; every published model of this kind normalises.
        let normalize = h.bool_opt(NORMALIZE)?.unwrap_or(h.is_gguf());
        config.set_experts(h, Routing::SoftmaxThenTopK { normalize })?;
        let step = h.usize_opt(SPARSE_STEP)?.unwrap_or(1);
        if step == 0 {
            return Err(h.bad(SPARSE_STEP, "is 0"));
        }
        let dense = h.f64s_opt(DENSE_LAYERS)?.unwrap_or_default();
        for (i, layer) in config.layers.iter_mut().enumerate() {
            layer.sparse = (i + 1) % step == 0 && !dense.contains(&(i as f64));
        }
        windows(h, config)
    },
    defaults: &[],
    prepare: None,
};

/// Layers from `max_window_layers` on have the window, in the rare model that switches it on.
fn windows(h: &Hyper<'_>, config: &mut ModelConfig) -> Result<()> {
    if !h.bool_opt(USE_WINDOW)?.unwrap_or(false) {
        return Ok(());
    }
    let window = h.window()?;
    let full = h.usize_opt(FULL_LAYERS)?.unwrap_or(config.layers.len());
    config.set_windows(h, window, |i| i >= full)
}
