//! The hyperparameters of a model, typed and checked, whatever file they came from.

use baton_graph::{Activation, Gate, RopeLayout, Routing};

use crate::embedding::EmbeddingConfig;
use crate::hyper::{self, Hyper};
use crate::packaged::PackagedSizes;
use crate::rope::{RopeConfig, RopeScaling};
use crate::{Error, Result, rope_keys};

/// Most layers of a model: four times as many as the deepest one published.
const MAX_LAYERS: usize = 1024;
/// Bound for every other size, so that no product of three overflows.
const MAX_SIZE: usize = 1 << 20;
/// Vocabularies and contexts may be larger than layers are wide.
const MAX_LENGTH: usize = 1 << 30;

/// A transformer as every architecture here is described.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Features of the residual stream.
    pub hidden: usize,
    /// Inner features of a dense feed-forward layer.
    pub ffn: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Features of one head.
    pub head_dim: usize,
    /// Context that the model was trained for, in tokens.
    pub context_length: usize,
    /// Each layer, in order.
    pub layers: Vec<LayerConfig>,
    /// Whether the output matrix is the embedding matrix.
    pub tied: bool,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Added to the gains of norms as they are stored.
    pub norm_offset: f32,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Factor on attention scores.
    pub attention_scale: f32,
    /// Soft cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Whether the results of attention and feed-forward are normalised before they are added.
    pub post_norms: bool,
    /// Whether each head has a sink logit.
    pub sinks: bool,
    /// How gate and up are joined.
    pub gate: Gate,
    /// Rotation of layers without a window, or of all.
    pub rope: RopeConfig,
    /// Rotation of layers with a window, where it differs.
    pub local_rope: Option<RopeConfig>,
    /// How the rotated pairs lie in the file's query and key rows.
    pub rope_layout: RopeLayout,
    /// The mixture of experts, if there is one.
    pub experts: Option<ExpertsConfig>,
    /// Whether tokens see what comes after them.
    pub bidirectional: bool,
    /// What makes a vector of a text, in embedding models; they have no head.
    pub embedding: Option<EmbeddingConfig>,
    /// What encoders of the BERT family differ in; all others are decoders.
    pub encoder: Option<EncoderConfig>,
}

/// What encoders of the BERT family differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Whether positions are embedded by a matrix, which bounds the context, instead of rotated in.
    pub learned_positions: bool,
    /// Whether feed-forward layers are gated.
    pub gated: bool,
}

/// What layers of one model differ in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerConfig {
    /// Positions that a token sees to either side, itself included.
    pub window: Option<usize>,
    /// Whether queries and keys are not rotated (NoPE).
    pub no_rope: bool,
    /// Whether the feed-forward is the mixture of experts.
    pub sparse: bool,
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// Experts in a layer.
    pub count: usize,
    /// Experts used for a token.
    pub used: usize,
    /// Inner features of one expert.
    pub ffn: usize,
    /// How they are weighted.
    pub routing: Routing,
    /// Whether router and experts have offsets.
    pub biased: bool,
}

impl ModelConfig {
    /// Reads what all architectures share. What one does otherwise, its own file changes after.
    ///
    /// `vocab` is the number of rows of the embedding matrix, `has_head` whether the file has an
    /// output matrix.
    pub(crate) fn read(h: &Hyper<'_>, vocab: usize, has_head: bool) -> Result<Self> {
        let layers = h.usize(hyper::LAYERS)?;
        if layers == 0 || layers > MAX_LAYERS {
            return Err(h.bad(hyper::LAYERS, format!("is {layers}, not from 1 to {MAX_LAYERS}")));
        }
        let hidden = h.usize(hyper::HIDDEN)?;
        let heads = h.usize(hyper::HEADS)?;
        if heads == 0 {
            return Err(h.bad(hyper::HEADS, "is 0"));
        }
        let head_dim = h.usize_opt(hyper::HEAD_DIM)?.unwrap_or(hidden / heads);
        if h.usize_opt(hyper::VALUE_DIM)?.is_some_and(|value_dim| value_dim != head_dim) {
            return Err(
                h.bad(hyper::VALUE_DIM, "differs from that of keys, which no model here has")
            );
        }
        let tied = match h.bool_opt(hyper::TIED)? {
            Some(tied) => tied,
            None => !has_head,
        };
        let config = ModelConfig {
            vocab,
            hidden,
            ffn: h.usize(hyper::FFN)?,
            heads,
            kv_heads: h.usize_opt(hyper::KV_HEADS)?.unwrap_or(heads),
            head_dim,
            context_length: h.usize(hyper::CONTEXT)?,
            layers: vec![LayerConfig::default(); layers],
            tied,
            norm_eps: match h.f64_opt(hyper::NORM_EPS)? {
                Some(eps) => eps as f32,
                None => match h.f64_opt(hyper::LAYER_NORM_EPS)? {
                    Some(eps) => eps as f32,
                    None => return Err(h.missing(hyper::NORM_EPS)),
                },
            },
            norm_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale: match h.f64_opt(hyper::ATTENTION_SCALE)? {
                Some(scale) if scale != 0.0 => scale as f32,
                _ => (head_dim as f32).powf(-0.5),
            },
            attention_softcap: h.softcap(hyper::ATTENTION_SOFTCAP)?,
            logit_softcap: h.softcap(hyper::LOGIT_SOFTCAP)?,
            qk_norm: false,
            post_norms: false,
            sinks: false,
            gate: Gate::Plain(activation(h, hyper::ACTIVATION)?.unwrap_or(Activation::Silu)),
            rope: RopeConfig { theta: 10000.0, rotary_dim: head_dim, scaling: RopeScaling::None },
            local_rope: None,
            rope_layout: RopeLayout::Half,
            experts: None,
            bidirectional: h.bool_opt(hyper::CAUSAL)? == Some(false),
            embedding: None,
            encoder: None,
        };
        // Before any tensor or table is sized by them.
        config.check_sizes()?;
        if let Some(told) = h.usize_opt(hyper::VOCAB)?.filter(|told| *told != vocab) {
            let problem = format!("is {told}, but the embedding matrix has {vocab} rows");
            return Err(h.bad(hyper::VOCAB, problem));
        }
        let rope = rope_keys::read(h, &config, rope_keys::Kind::Global)?;
        Ok(ModelConfig { rope, ..config })
    }

    /// That of a model of which no more is known than sizes; what is not, is as in most models.
    ///
    /// # Errors
    /// If a size is that of no model.
    pub(crate) fn of_sizes(sizes: &PackagedSizes) -> Result<Self> {
        let &PackagedSizes { vocab, hidden, layers, kv_heads, head_dim, context } = sizes;
        if layers == 0 || layers > MAX_LAYERS {
            return Err(Error::Unsupported {
                what: format!("packages of {layers} layers"),
                instead: "take those of a model of 1 to 1024",
            });
        }
        let config = ModelConfig {
            vocab,
            hidden,
            ffn: 0,
            heads: kv_heads,
            kv_heads,
            head_dim,
            context_length: context,
            layers: vec![LayerConfig::default(); layers],
            tied: false,
            norm_eps: 1e-5,
            norm_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale: (head_dim as f32).powf(-0.5),
            attention_softcap: None,
            logit_softcap: None,
            qk_norm: false,
            post_norms: false,
            sinks: false,
            gate: Gate::Plain(Activation::Silu),
            rope: RopeConfig { theta: 10000.0, rotary_dim: head_dim, scaling: RopeScaling::None },
            local_rope: None,
            rope_layout: RopeLayout::Half,
            experts: None,
            bidirectional: false,
            embedding: None,
            encoder: None,
        };
        Ok(config)
    }

    /// Ties the output matrix to the embedding unless the file says or shows otherwise: for
    /// architectures whose configs leave that out.
    pub(crate) fn tie_by_default(&mut self, h: &Hyper<'_>) -> Result<()> {
        self.tied = h.bool_opt(hyper::TIED)?.unwrap_or(self.tied || !h.is_gguf());
        Ok(())
    }

    /// Gives each layer the window that `layer_types` names, or else that `has_window` says.
    pub(crate) fn set_windows(
        &mut self,
        h: &Hyper<'_>,
        window: Option<usize>,
        has_window: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let types = h.texts_opt(hyper::LAYER_TYPES)?;
        if types.as_ref().is_some_and(|types| types.len() != self.layers.len()) {
            return Err(h.bad(hyper::LAYER_TYPES, "does not have one entry for each layer"));
        }
        if window == Some(0) {
            return Err(h.bad(hyper::WINDOW, "is 0"));
        }
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let windowed = match types.as_ref().map(|types| types[i].as_str()) {
                None => has_window(i),
                Some("sliding_attention") => true,
                Some("full_attention") => false,
                Some(other) => {
                    return Err(
                        h.bad(hyper::LAYER_TYPES, format!("has the unknown type {other:?}"))
                    );
                }
            };
            layer.window = window.filter(|_| windowed);
        }
        Ok(())
    }

    /// Reads the mixture of experts, which is then that of every layer.
    pub(crate) fn set_experts(&mut self, h: &Hyper<'_>, routing: Routing) -> Result<()> {
        let count = match h.usize_opt(hyper::EXPERTS)? {
            Some(count) => count,
            None => h.usize(hyper::Key { json: "num_local_experts", ..hyper::EXPERTS })?,
        };
        let used = h.usize(hyper::EXPERTS_USED)?;
        let ffn = h.usize_opt(hyper::EXPERT_FFN)?.unwrap_or(self.ffn);
        self.experts = Some(ExpertsConfig { count, used, ffn, routing, biased: false });
        self.layers.iter_mut().for_each(|layer| layer.sparse = true);
        Ok(())
    }

    /// Checks the whole, once the architecture has had its say.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_sizes()?;
        if self.bidirectional && self.embedding.is_none() {
            return Err(Error::Unsupported {
                what: "a model that reads texts as a whole but does not say how to make a vector \
                       of one"
                    .into(),
                instead: "an embedding model needs its modules.json, or pooling_type in GGUF",
            });
        }
        for rope in std::iter::once(&self.rope).chain(&self.local_rope) {
            if let Some(problem) = rope.problem(self.head_dim) {
                return Err(impossible(format!("rotary embedding {problem}")));
            }
        }
        let positive = |x: f32| x.is_finite() && x > 0.0;
        for (what, value) in [
            ("norm epsilon", Some(self.norm_eps)),
            ("embedding scale", Some(self.embedding_scale)),
            ("attention scale", Some(self.attention_scale)),
            ("attention soft cap", self.attention_softcap),
            ("logit soft cap", self.logit_softcap),
        ] {
            if let Some(value) = value.filter(|v| !positive(*v)) {
                return Err(impossible(format!("{what} is {value}")));
            }
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("hidden size", self.hidden, MAX_SIZE),
            ("feed-forward size", self.ffn, MAX_SIZE),
            ("number of heads", self.heads, MAX_SIZE),
            ("number of key-value heads", self.kv_heads, MAX_SIZE),
            ("head_dim", self.head_dim, MAX_SIZE),
            ("number of heads times head_dim", self.heads.saturating_mul(self.head_dim), MAX_SIZE),
            ("vocabulary size", self.vocab, MAX_LENGTH),
            ("context length", self.context_length, MAX_LENGTH),
        ];
        let experts = self.experts.iter().flat_map(|experts| {
            [
                ("number of experts", experts.count, MAX_SIZE),
                ("number of experts per token", experts.used, experts.count),
                ("expert feed-forward size", experts.ffn, MAX_SIZE),
            ]
        });
        for (what, size, most) in sizes.into_iter().chain(experts) {
            if size == 0 || size > most {
                return Err(impossible(format!("{what} is {size}, not from 1 to {most}")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return Err(impossible(format!("{heads} heads share {kv_heads} key-value heads")));
        }
        Ok(())
    }
}

fn impossible(what: String) -> Error {
    let instead = "the file is damaged or of an architecture that only looks alike";
    Error::Unsupported { what: format!("a model whose {what}"), instead }
}

/// The activation function that a key names.
pub(crate) fn activation(h: &Hyper<'_>, key: hyper::Key) -> Result<Option<Activation>> {
    let Some(name) = h.text_opt(key)? else { return Ok(None) };
    match name.as_str() {
        "silu" | "swish" | "swiglu" => Ok(Some(Activation::Silu)),
        "gelu" => Ok(Some(Activation::Gelu)),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Some(Activation::GeluTanh)),
        "relu" => Ok(Some(Activation::Relu)),
        _ => Err(h.bad(key, format!("names the unknown activation {name:?}"))),
    }
}
