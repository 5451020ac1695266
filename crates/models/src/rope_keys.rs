//! Reads the rotary embedding from `config.json`, in its old and new spelling, and from GGUF.

use crate::config::ModelConfig;
use crate::hyper::{self, Hyper, Key};
use crate::rope::{RopeConfig, RopeScaling};
use crate::{Error, Result};

/// Which layers a rotation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All layers, or those without a window.
    Global,
    /// Layers with a window, in models that rotate them otherwise.
    Local,
}

const fn json(name: &'static str) -> Key {
    Key { json: name, gguf: "" }
}

const fn gguf(name: &'static str) -> Key {
    Key { json: "", gguf: name }
}

const FACTOR: Key = Key { json: "factor", gguf: "rope.scaling.factor" };
const ORIGINAL: Key =
    Key { json: "original_max_position_embeddings", gguf: "rope.scaling.original_context_length" };
const BETA_FAST: Key = Key { json: "beta_fast", gguf: "rope.scaling.yarn_beta_fast" };
const BETA_SLOW: Key = Key { json: "beta_slow", gguf: "rope.scaling.yarn_beta_slow" };
const PARTIAL: Key = json("partial_rotary_factor");

/// The rotation that the hyperparameters describe. Factors that GGUF keeps in tensors are added by
/// [`with_factors`].
pub(crate) fn read(h: &Hyper<'_>, config: &ModelConfig, kind: Kind) -> Result<RopeConfig> {
    if h.is_gguf() { read_gguf(h, config, kind) } else { read_json(h, config, kind) }
}

fn read_json(h: &Hyper<'_>, config: &ModelConfig, kind: Kind) -> Result<RopeConfig> {
    // transformers 5 has all in `rope_parameters`, by layer type where layers differ.
    let parameters = h.object("rope_parameters");
    let layer_type = if kind == Kind::Global { "full_attention" } else { "sliding_attention" };
    let by_type = parameters.and_then(|p| p.object(layer_type));
    let old_local = kind == Kind::Local && by_type.is_none();
    let scaling = match by_type.or(parameters) {
        Some(parameters) => Some(parameters),
        None if old_local => None,
        None => h.object("rope_scaling"),
    };
    let theta = if old_local {
        h.f64_opt(json("rope_local_base_freq"))?
    } else {
        match scaling.map(|s| s.f64_opt(hyper::ROPE_THETA)).transpose()?.flatten() {
            Some(theta) => Some(theta),
            None => h.f64_opt(hyper::ROPE_THETA)?,
        }
    };
    let partial = match scaling.map(|s| s.f64_opt(PARTIAL)).transpose()?.flatten() {
        Some(partial) => partial,
        None => h.f64_opt(PARTIAL)?.unwrap_or(1.0),
    };
    Ok(RopeConfig {
        theta: theta.unwrap_or(10000.0),
        rotary_dim: (config.head_dim as f64 * partial) as usize,
        scaling: match scaling.filter(|_| !old_local) {
            Some(scaling) => json_scaling(h, &scaling, config)?,
            None => RopeScaling::None,
        },
    })
}

fn json_scaling(h: &Hyper<'_>, s: &Hyper<'_>, config: &ModelConfig) -> Result<RopeScaling> {
    let kind = match s.text_opt(json("rope_type"))? {
        Some(kind) => kind,
        None => s.text_opt(json("type"))?.unwrap_or_else(|| "default".to_owned()),
    };
    let trained = config.context_length;
    let original = match s.usize_opt(ORIGINAL)? {
        Some(original) => original,
        None => h.usize_opt(ORIGINAL)?.unwrap_or(trained),
    };
    let ratio = trained as f64 / original.max(1) as f64;
    let told_magnitude = s.f64_opt(json("attention_factor"))?;
    Ok(match kind.as_str() {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: s.f64(FACTOR)? },
        "dynamic" => RopeScaling::Dynamic { factor: s.f64(FACTOR)?, trained },
        "llama3" => RopeScaling::Llama3 {
            factor: s.f64(FACTOR)?,
            low: s.f64(json("low_freq_factor"))?,
            high: s.f64(json("high_freq_factor"))?,
            original: s.usize(ORIGINAL)?,
        },
        "yarn" => {
            let factor = s.f64_opt(FACTOR)?.unwrap_or(ratio);
            let whole = s.f64_opt(json("mscale"))?.filter(|m| *m != 0.0);
            let all_dims = s.f64_opt(json("mscale_all_dim"))?.filter(|m| *m != 0.0);
            let magnitude = match (told_magnitude, whole, all_dims) {
                (Some(magnitude), ..) => magnitude,
                (None, Some(a), Some(b)) => yarn_magnitude(factor, a) / yarn_magnitude(factor, b),
                _ => yarn_magnitude(factor, 1.0),
            };
            RopeScaling::Yarn {
                factor,
                original,
                beta_fast: s.f64_opt(BETA_FAST)?.unwrap_or(32.0),
                beta_slow: s.f64_opt(BETA_SLOW)?.unwrap_or(1.0),
                truncate: s.bool_opt(json("truncate"))?.unwrap_or(true),
                magnitude,
            }
        }
        "longrope" | "su" => RopeScaling::LongRope {
            short: s.f64s_opt(json("short_factor"))?.unwrap_or_default(),
            long: s.f64s_opt(json("long_factor"))?.unwrap_or_default(),
            original,
            magnitude: match told_magnitude {
                Some(magnitude) => magnitude,
                None => longrope_magnitude(s.f64_opt(FACTOR)?.unwrap_or(ratio), original),
            },
        },
        _ => return Err(unknown(&kind)),
    })
}

fn read_gguf(h: &Hyper<'_>, config: &ModelConfig, kind: Kind) -> Result<RopeConfig> {
    let rotary_dim = h.usize_opt(hyper::ROTARY_DIM)?.unwrap_or(config.head_dim);
    if kind == Kind::Local {
        // Few files state the local base, those by Ollama under a name of their own.
        let theta = match h.f64_opt(gguf("rope.freq_base_swa"))? {
            Some(theta) => theta,
            None => h.f64_opt(gguf("rope.local.freq_base"))?.unwrap_or(10000.0),
        };
        return Ok(RopeConfig { theta, rotary_dim, scaling: RopeScaling::None });
    }
    let theta = h.f64_opt(hyper::ROPE_THETA)?.unwrap_or(10000.0);
    let named = h.text_opt(gguf("rope.scaling.type"))?;
    let scaling = match named.as_deref() {
        None => {
            // A factor alone is linear's, as under the name it had before there were types.
            let factor = match h.f64_opt(FACTOR)? {
                Some(factor) => Some(factor),
                None => h.f64_opt(gguf("rope.scale_linear"))?,
            };
            // 0 says that there is none.
            let factor = factor.filter(|factor| *factor != 0.0 && *factor != 1.0);
            factor.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor })
        }
        Some("none") => RopeScaling::None,
        // To be filled from tensors; without them no table can be made, and the check says so.
        Some("longrope") => RopeScaling::LongRope {
            short: Vec::new(),
            long: Vec::new(),
            original: config.context_length,
            magnitude: 1.0,
        },
        Some("linear") => RopeScaling::Linear { factor: h.f64(FACTOR)? },
        Some("yarn") => {
            let factor = h.f64(FACTOR)?;
            let told = h.f64_opt(gguf("rope.scaling.yarn_attn_factor"))?;
            let further = h.f64_opt(gguf("rope.scaling.attn_factor"))?.unwrap_or(1.0);
            RopeScaling::Yarn {
                factor,
                original: h.usize_opt(ORIGINAL)?.unwrap_or(config.context_length),
                beta_fast: h.f64_opt(BETA_FAST)?.unwrap_or(32.0),
                beta_slow: h.f64_opt(BETA_SLOW)?.unwrap_or(1.0),
                truncate: true,
                magnitude: told.unwrap_or_else(|| yarn_magnitude(factor, 1.0)) * further,
            }
        }
        Some(other) => return Err(unknown(other)),
    };
    Ok(RopeConfig { theta, rotary_dim, scaling })
}

/// Divisors that a GGUF file keeps in tensors.
#[derive(Default)]
pub(crate) struct Factors {
    /// `rope_freqs.weight`.
    pub(crate) always: Option<Vec<f64>>,
    /// `rope_factors_short.weight`.
    pub(crate) short: Option<Vec<f64>>,
    /// `rope_factors_long.weight`.
    pub(crate) long: Option<Vec<f64>>,
}

/// Puts such divisors into the config's rotation.
pub(crate) fn with_factors(h: &Hyper<'_>, config: &mut ModelConfig, with: Factors) -> Result<()> {
    let scaling = match (with.always, with.short, with.long) {
        (None, None, None) => return Ok(()),
        (Some(divisors), None, None) => RopeScaling::Divisors(divisors),
        (None, Some(short), Some(long)) => {
            let original = h.usize(ORIGINAL)?;
            let magnitude = match h.f64_opt(gguf("rope.scaling.attn_factor"))? {
                Some(magnitude) => magnitude,
                None => {
                    let ratio = config.context_length as f64 / original.max(1) as f64;
                    longrope_magnitude(ratio, original)
                }
            };
            RopeScaling::LongRope { short, long, original, magnitude }
        }
        _ => return Err(unknown("with some of its tensors missing")),
    };
    if !matches!(config.rope.scaling, RopeScaling::None | RopeScaling::LongRope { .. }) {
        return Err(unknown("by metadata and by tensors at once"));
    }
    config.rope.scaling = scaling;
    Ok(())
}

fn yarn_magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

fn longrope_magnitude(factor: f64, original: usize) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() }
}

fn unknown(kind: &str) -> Error {
    Error::Unsupported {
        what: format!("RoPE scaling {kind:?}"),
        instead: "supported are linear, dynamic, llama3, yarn and longrope",
    }
}
