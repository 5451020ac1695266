//! The tensors of a model and what each form of file calls them.
//!
//! The graph uses the GGUF names for all forms, so a [`Slot`] is named by its GGUF stem.

/// One kind of tensor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    TokenEmbd,
    /// Learned positions of an encoder.
    PositionEmbd,
    /// What segments add, in an encoder.
    TokenTypes,
    TokenEmbdNorm,
    OutputNorm,
    Output,
    AttnNorm,
    AttnQ,
    AttnK,
    AttnV,
    /// Query, key and value in one matrix.
    AttnQkv,
    AttnQNorm,
    AttnKNorm,
    AttnSinks,
    AttnOut,
    /// The norm of a residual stream behind attention, in an encoder.
    AttnOutNorm,
    PostAttnNorm,
    FfnNorm,
    FfnGate,
    FfnUp,
    /// Gate and up in one matrix.
    FfnGateUp,
    FfnDown,
    PostFfnNorm,
    /// The norm at a layer's end, in an encoder.
    LayerOutNorm,
    Router,
    ExpertsGate,
    ExpertsUp,
    ExpertsDown,
}

/// Stems of the names of one form: without `.weight`, with `{}` for the layer's number.
pub(crate) type Table = &'static [(Slot, &'static str)];

/// What the graph and, but for a few architectures, GGUF files call them.
pub(crate) const GGUF: Table = &[
    (Slot::TokenEmbd, "token_embd"),
    (Slot::PositionEmbd, "position_embd"),
    (Slot::TokenTypes, "token_types"),
    (Slot::TokenEmbdNorm, "token_embd_norm"),
    (Slot::OutputNorm, "output_norm"),
    (Slot::Output, "output"),
    (Slot::AttnNorm, "blk.{}.attn_norm"),
    (Slot::AttnQ, "blk.{}.attn_q"),
    (Slot::AttnK, "blk.{}.attn_k"),
    (Slot::AttnV, "blk.{}.attn_v"),
    (Slot::AttnQkv, "blk.{}.attn_qkv"),
    (Slot::AttnQNorm, "blk.{}.attn_q_norm"),
    (Slot::AttnKNorm, "blk.{}.attn_k_norm"),
    (Slot::AttnSinks, "blk.{}.attn_sinks"),
    (Slot::AttnOut, "blk.{}.attn_output"),
    (Slot::AttnOutNorm, "blk.{}.attn_output_norm"),
    (Slot::PostAttnNorm, "blk.{}.post_attention_norm"),
    (Slot::FfnNorm, "blk.{}.ffn_norm"),
    (Slot::FfnGate, "blk.{}.ffn_gate"),
    (Slot::FfnUp, "blk.{}.ffn_up"),
    (Slot::FfnGateUp, "blk.{}.ffn_gate_up"),
    (Slot::FfnDown, "blk.{}.ffn_down"),
    (Slot::PostFfnNorm, "blk.{}.post_ffw_norm"),
    (Slot::LayerOutNorm, "blk.{}.layer_output_norm"),
    (Slot::Router, "blk.{}.ffn_gate_inp"),
    (Slot::ExpertsGate, "blk.{}.ffn_gate_exps"),
    (Slot::ExpertsUp, "blk.{}.ffn_up_exps"),
    (Slot::ExpertsDown, "blk.{}.ffn_down_exps"),
];

/// What checkpoints call them, behind the prefix of the language model.
pub(crate) const CHECKPOINT: Table = &[
    (Slot::TokenEmbd, "embed_tokens"),
    (Slot::OutputNorm, "norm"),
    (Slot::Output, "lm_head"),
    (Slot::AttnNorm, "layers.{}.input_layernorm"),
    (Slot::AttnQ, "layers.{}.self_attn.q_proj"),
    (Slot::AttnK, "layers.{}.self_attn.k_proj"),
    (Slot::AttnV, "layers.{}.self_attn.v_proj"),
    (Slot::AttnQkv, "layers.{}.self_attn.qkv_proj"),
    (Slot::AttnQNorm, "layers.{}.self_attn.q_norm"),
    (Slot::AttnKNorm, "layers.{}.self_attn.k_norm"),
    (Slot::AttnOut, "layers.{}.self_attn.o_proj"),
    (Slot::FfnNorm, "layers.{}.post_attention_layernorm"),
    (Slot::FfnGate, "layers.{}.mlp.gate_proj"),
    (Slot::FfnUp, "layers.{}.mlp.up_proj"),
    (Slot::FfnGateUp, "layers.{}.mlp.gate_up_proj"),
    (Slot::FfnDown, "layers.{}.mlp.down_proj"),
    (Slot::Router, "layers.{}.mlp.gate"),
    // mlx_lm stacks what the original keeps apart, see `Loader::experts`.
    (Slot::ExpertsGate, "layers.{}.mlp.switch_mlp.gate_proj"),
    (Slot::ExpertsUp, "layers.{}.mlp.switch_mlp.up_proj"),
    (Slot::ExpertsDown, "layers.{}.mlp.switch_mlp.down_proj"),
];

/// Prefixes of the language model in checkpoints: alone, inside multimodal ones, without a head, and
/// an encoder with one.
pub(crate) const PREFIXES: &[&str] =
    &["model.", "language_model.model.", "model.language_model.", "", "bert."];

/// The names of one architecture in one form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// Where the architecture departs from `base`.
    pub(crate) own: Table,
    /// [`GGUF`] or [`CHECKPOINT`].
    pub(crate) base: Table,
}

impl Names {
    /// The stem of a slot's name with the layer filled in.
    pub(crate) fn stem(&self, slot: Slot, layer: usize) -> Option<String> {
        let (_, stem) = self.own.iter().chain(self.base).find(|(s, _)| *s == slot)?;
        Some(stem.replace("{}", &layer.to_string()))
    }
}

/// What the graph calls a slot's tensor, without `.weight`.
pub(crate) fn canonical(slot: Slot, layer: usize) -> String {
    Names { own: &[], base: GGUF }.stem(slot, layer).expect("the table names every slot")
}
