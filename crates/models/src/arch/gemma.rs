//! Gemma 2 (soft caps) and Gemma 3 (norms per head, two rotations), both with alternating windows,
//! scaled embeddings and norms around each half of a layer.

use baton_graph::{Activation, Gate};

use super::Family;
use crate::config::{self, ModelConfig};
use crate::hyper::{self, Hyper, Key};
use crate::names::{Slot, Table};
use crate::rope::RopeScaling;
use crate::{Result, rope_keys};

const ACTIVATION: Key = Key { json: "hidden_activation", gguf: "" };
const QUERY_SCALAR: Key = Key { json: "query_pre_attn_scalar", gguf: "" };
const BIDIRECTIONAL: Key = Key { json: "use_bidirectional_attention", gguf: "" };
const OLLAMA_BASE: Key = Key { json: "", gguf: "rope.global.freq_base" };
const OLLAMA_IMAGES: Key = Key { json: "", gguf: "mm.tokens_per_image" };
const OLD_PATTERN: Key = Key { json: "_sliding_window_pattern", gguf: "" };

const CHECKPOINT_NAMES: Table = &[
    (Slot::PostAttnNorm, "layers.{}.post_attention_layernorm"),
    (Slot::FfnNorm, "layers.{}.pre_feedforward_layernorm"),
    (Slot::PostFfnNorm, "layers.{}.post_feedforward_layernorm"),
];

/// Gemma 2.
pub(crate) const GEMMA2: Family = Family {
    name: "Gemma 2",
    model_types: &["gemma2"],
    gguf: &["gemma2"],
    checkpoint_names: CHECKPOINT_NAMES,
    gguf_names: &[],
    // The 27B model, of 46 layers, scales by the features a head would have.
    configure: |h, config| configure(h, config, 46, 2),
    // GGUF files made before there were keys for them leave them out too.
    defaults: &[
        (hyper::ATTENTION_SOFTCAP, 50.0),
        (hyper::LOGIT_SOFTCAP, 30.0),
        (hyper::WINDOW, 4096.0),
    ],
    prepare: None,
};

/// Gemma 3, the text model; also as the language model inside the multimodal one.
pub(crate) const GEMMA3: Family = Family {
    name: "Gemma 3",
    model_types: &["gemma3_text", "gemma3"],
    gguf: &["gemma3", "gemma-embedding"],
    checkpoint_names: CHECKPOINT_NAMES,
    gguf_names: &[],
    configure: |h, config| {
        config.qk_norm = true;
        if h.is_gguf() {
            undo_ollama(h, config)?;
        }
        configure(h, config, 62, 6)?;
        config.local_rope = Some(rope_keys::read(h, config, rope_keys::Kind::Local)?);
        read_both_ways(h, config)
    },
    // The multimodal checkpoints and files converted by Ollama state only what differs from these.
    defaults: &[
        (hyper::HEADS, 8.0),
        (hyper::KV_HEADS, 4.0),
        (hyper::HEAD_DIM, 256.0),
        (hyper::CONTEXT, 131072.0),
        (hyper::NORM_EPS, 1e-6),
        (hyper::ROPE_THETA, 1e6),
        (QUERY_SCALAR, 256.0),
        // In GGUF a model without the key has no windows.
        (Key { json: hyper::WINDOW.json, gguf: "" }, 4096.0),
    ],
    prepare: None,
};

/// EmbeddingGemma reads in both directions. GGUF has an architecture of its own for it; in files by
/// Ollama it is a Gemma 3 that makes vectors.
fn read_both_ways(h: &Hyper<'_>, config: &mut ModelConfig) -> Result<()> {
    let is_embedding = h.architecture() == "gemma-embedding" || config.embedding.is_some();
    let both_ways = h.bool_opt(BIDIRECTIONAL)?.unwrap_or(h.is_gguf() && is_embedding);
    if both_ways {
        config.bidirectional = true;
        // The window that files state is that of both sides together.
        for window in config.layers.iter_mut().filter_map(|layer| layer.window.as_mut()) {
            *window = *window / 2 + 1;
        }
    }
    Ok(())
}

/// Ollama's own converter, unlike llama.cpp's, names the base of the global rotation otherwise,
/// does not say that it is scaled in models of long context, and writes soft caps that are Gemma
/// 2's. Those with windows, all of Google's, have none.
fn undo_ollama(h: &Hyper<'_>, config: &mut ModelConfig) -> Result<()> {
    let base = h.f64_opt(OLLAMA_BASE)?;
    config.rope.theta = base.unwrap_or(config.rope.theta);
    let by_ollama = base.is_some() || h.states(OLLAMA_IMAGES) || !h.states(hyper::NORM_EPS);
    let unscaled = config.rope.scaling == RopeScaling::None;
    if by_ollama && unscaled && config.context_length >= 131_072 {
        config.rope.scaling = RopeScaling::Linear { factor: 8.0 };
    }
    if h.window()?.is_some() {
        config.attention_softcap = None;
        config.logit_softcap = None;
    }
    Ok(())
}

fn configure(
    h: &Hyper<'_>,
    config: &mut ModelConfig,
    layers_of_27b: usize,
    default_pattern: usize,
) -> Result<()> {
    config.norm_offset = if h.is_gguf() { 0.0 } else { 1.0 };
    config.embedding_scale = (config.hidden as f32).sqrt();
    config.post_norms = true;
    config.tie_by_default(h)?;
    let activation = match config::activation(h, ACTIVATION)? {
        Some(activation) => activation,
        None => Activation::GeluTanh,
    };
    config.gate = Gate::Plain(activation);
    if let Some(scalar) = h.f64_opt(QUERY_SCALAR)? {
        config.attention_scale = scalar.powf(-0.5) as f32;
    } else if h.is_gguf() && config.layers.len() == layers_of_27b {
        // GGUF has no key for it.
        config.attention_scale = ((config.hidden / config.heads) as f32).powf(-0.5);
    }
    // Of each `pattern` layers the last sees everything.
    let pattern = match h.flags_opt(hyper::WINDOW_PATTERN)? {
        Some(flags) if flags.len() == config.layers.len() => {
            let window = h.window()?;
            return config.set_windows(h, window, |i| flags[i]);
        }
        Some(_) => {
            return Err(h.bad(hyper::WINDOW_PATTERN, "does not have one entry for each layer"));
        }
        None => match h.usize_opt(hyper::WINDOW_PATTERN)? {
            Some(pattern) => pattern,
            None => h.usize_opt(OLD_PATTERN)?.unwrap_or(default_pattern),
        },
    };
    if pattern == 0 {
        return Err(h.bad(hyper::WINDOW_PATTERN, "is 0"));
    }
    let window = h.window()?;
    config.set_windows(h, window, |i| (i + 1) % pattern != 0)
}
