//! Phi-3, Phi-3.5 and Phi-4: fused projections, longrope; Phi-4-mini rotates a part of each head.

use super::Family;
use super::llama::window_on_all;
use crate::names::Slot;

/// Phi-3 and Phi-4.
pub(crate) const PHI3: Family = Family {
    name: "Phi-3",
    model_types: &["phi3"],
    gguf: &["phi3"],
    checkpoint_names: &[],
    // GGUF keeps the name of one half for the matrix that holds both.
    gguf_names: &[(Slot::FfnGateUp, "blk.{}.ffn_up")],
    configure: window_on_all,
    defaults: &[],
    prepare: None,
};
