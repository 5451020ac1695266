//! Encoders that make embeddings: BERT (all-MiniLM, bge, gte, e5, ...) with learned positions, and
//! Nomic's with a rotation and gated feed-forward layers.

use baton_graph::{Activation, Gate};

use super::Family;
use crate::config::{self, EncoderConfig, ModelConfig};
use crate::hyper::{self, Hyper, Key};
use crate::names::Slot;
use crate::{Error, Result};

const POSITIONS: Key = Key { json: "position_embedding_type", gguf: "" };
const TRAINED_POSITIONS: Key = Key { json: "max_trained_positions", gguf: "" };
const PRE_NORM: Key = Key { json: "prenorm", gguf: "" };
const INTERLEAVED: Key = Key { json: "rotary_emb_interleaved", gguf: "" };

/// BERT.
pub(crate) const BERT: Family = Family {
    name: "BERT",
    model_types: &["bert"],
    gguf: &["bert"],
    checkpoint_names: &[
        (Slot::TokenEmbd, "embeddings.word_embeddings"),
        (Slot::PositionEmbd, "embeddings.position_embeddings"),
        (Slot::TokenTypes, "embeddings.token_type_embeddings"),
        (Slot::TokenEmbdNorm, "embeddings.LayerNorm"),
        (Slot::AttnQ, "encoder.layer.{}.attention.self.query"),
        (Slot::AttnK, "encoder.layer.{}.attention.self.key"),
        (Slot::AttnV, "encoder.layer.{}.attention.self.value"),
        (Slot::AttnOut, "encoder.layer.{}.attention.output.dense"),
        (Slot::AttnOutNorm, "encoder.layer.{}.attention.output.LayerNorm"),
        (Slot::FfnUp, "encoder.layer.{}.intermediate.dense"),
        (Slot::FfnDown, "encoder.layer.{}.output.dense"),
        (Slot::LayerOutNorm, "encoder.layer.{}.output.LayerNorm"),
    ],
    gguf_names: &[],
    configure: |h, config| {
        if h.text_opt(POSITIONS)?.is_some_and(|kind| kind != "absolute") {
            return Err(Error::Unsupported {
                what: "BERT with relative positions".into(),
                instead: "use a model with absolute ones",
            });
        }
        configure(h, config, EncoderConfig { learned_positions: true, gated: false })
    },
    defaults: &[(hyper::LAYER_NORM_EPS, 1e-12)],
    prepare: None,
};

/// nomic-embed-text.
pub(crate) const NOMIC_BERT: Family = Family {
    name: "Nomic BERT",
    model_types: &["nomic_bert"],
    gguf: &["nomic-bert"],
    checkpoint_names: &[
        (Slot::TokenEmbd, "embeddings.word_embeddings"),
        (Slot::TokenTypes, "embeddings.token_type_embeddings"),
        (Slot::TokenEmbdNorm, "emb_ln"),
        (Slot::AttnQkv, "encoder.layers.{}.attn.Wqkv"),
        (Slot::AttnOut, "encoder.layers.{}.attn.out_proj"),
        (Slot::AttnOutNorm, "encoder.layers.{}.norm1"),
        (Slot::FfnUp, "encoder.layers.{}.mlp.fc11"),
        (Slot::FfnGate, "encoder.layers.{}.mlp.fc12"),
        (Slot::FfnDown, "encoder.layers.{}.mlp.fc2"),
        (Slot::LayerOutNorm, "encoder.layers.{}.norm2"),
    ],
    gguf_names: &[],
    configure: |h, config| {
        for key in [PRE_NORM, INTERLEAVED] {
            if h.bool_opt(key)?.unwrap_or(false) {
                return Err(Error::Unsupported {
                    what: format!("Nomic BERT with {:?}", key.json),
                    instead: "use nomic-embed-text, which is built without",
                });
            }
        }
        // Beyond these the makers' own code changes the rotation, with worse results.
        let trained = h.usize_opt(TRAINED_POSITIONS)?.unwrap_or(config.context_length);
        config.context_length = config.context_length.min(trained);
        configure(h, config, EncoderConfig { learned_positions: false, gated: true })
    },
    defaults: &[(hyper::LAYER_NORM_EPS, 1e-12), (hyper::ROPE_THETA, 1000.0)],
    prepare: None,
};

fn configure(h: &Hyper<'_>, config: &mut ModelConfig, encoder: EncoderConfig) -> Result<()> {
    if !encoder.gated && config::activation(h, hyper::ACTIVATION)?.is_none() {
        // What BERT has always had, and no key in GGUF for it.
        config.gate = Gate::Plain(Activation::Gelu);
    }
    config.encoder = Some(encoder);
    config.bidirectional = true;
    config.tied = true;
    Ok(())
}
