//! The operations of a graph.
//!
//! They are high-level on purpose: a unit has one tuned kernel for an operation as a whole. Unless
//! said otherwise an operation works on each row (token) of a `(tokens, features)` value by itself.

use std::sync::Arc;

use crate::{StateId, WeightId};

/// One operation. Inputs are listed in the order in which a [`Node`](crate::Node) holds them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// `token[T] -> real[T, hidden]`: rows of `table (rows, hidden)` times `scale`.
    Embedding {
        /// The embedding matrix.
        table: WeightId,
        /// Factor for every element; 1 in most models, `sqrt(hidden)` in Gemma.
        scale: f32,
        /// Which row a token gets.
        lookup: Lookup,
    },
    /// Root-mean-square normalisation.
    RmsNorm(RmsNorm),
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` over all features of a row.
    LayerNorm {
        /// Gain, `(features)`.
        weight: WeightId,
        /// Offset, `(features)`.
        bias: Option<WeightId>,
        /// Added to the variance.
        eps: f32,
    },
    /// Matrix product with weights.
    Linear(Linear),
    /// Features `offset..offset + len` of the input.
    Slice {
        /// First feature.
        offset: usize,
        /// Number of features.
        len: usize,
    },
    /// Rotary position embedding on each head.
    Rope(Rope),
    /// Inputs query, key, value: attends over the sequence as far as its scope says. With [`Op::Pool`]
    /// the one operation that looks at other rows.
    Attention(Attention),
    /// Sum of two values.
    Add,
    /// Element-wise product of two values.
    Mul,
    /// Product with a constant.
    Scale(f32),
    /// Element-wise function.
    Activation(Activation),
    /// `f(gate) * up`. Two inputs, gate and up; or one that holds gate, then up, side by side.
    GatedActivation(Gate),
    /// `cap * tanh(x / cap)`.
    Softcap(f32),
    /// Mixture of experts.
    Moe(Moe),
    /// `real[T, n] -> real[R, n]`: keeps the rows whose output was asked for.
    SelectRows,
    /// `real[T, n] -> real[R, n]`: each row asked for becomes one vector for all new tokens of its
    /// span. A span that is a whole text and asks for its last row gets one vector for the text.
    Pool(Pooling),
}

/// Which row of an embedding matrix a token gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The row of its id: a word embedding.
    Token,
    /// The row of its position in the sequence: a learned position embedding. The matrix bounds the
    /// context, see [`Graph::positions`](crate::Graph::positions).
    Position,
    /// The same row for every token, as that of the first segment in BERT.
    Row(usize),
}

/// How the rows of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first of them, which is that of `[CLS]` in BERT.
    First,
    /// The last of them.
    Last,
}

/// `x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`, over runs of `group` features.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Gain, `(group)`; none means 1.
    pub weight: Option<WeightId>,
    /// Added to the gain: 1 for checkpoints that store it minus one (Gemma), else 0.
    pub weight_offset: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// Features normalised together: all of a row, or `head_dim` for a norm per head.
    pub group: usize,
}

/// `y = x W^T + b` for each part; the parts' outputs lie side by side.
///
/// Models build it with one part. The passes that fuse projections stack several.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// The stacked matrices.
    pub parts: Vec<LinearPart>,
}

/// One matrix of a [`Linear`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearPart {
    /// The matrix, `(out, in)`.
    pub weight: WeightId,
    /// Offset, `(out)`.
    pub bias: Option<WeightId>,
}

/// Which features of a head form the pairs that are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Feature `i` with `i + rotary/2` (Hugging Face checkpoints).
    Half,
    /// Feature `2i` with `2i + 1` (GGUF files of the Llama family, whose rows are permuted).
    Interleaved,
}

/// Rotation of pair `i` at position `p` by the angle `p * inv_freq[i]` (Su et al. 2021,
/// arXiv:2104.09864). All scaling rules (linear, llama3, YaRN, ...) are baked into the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Features of one head.
    pub head_dim: usize,
    /// How pairs are laid out.
    pub layout: RopeLayout,
    /// Angle per position of each pair. The first `2 * len` features of a head rotate, the others
    /// pass through.
    pub inv_freq: Arc<[f32]>,
    /// Factor on sine and cosine: 1, or YaRN's and LongRoPE's attention factor.
    pub magnitude: f32,
}

/// What a token's attention reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The sequence's cache, which the new keys and values are appended to: the token at position
    /// `p` sees positions `j <= p`, and with a window only `j > p - window`.
    Past(StateId),
    /// All of a text, in both directions, and with a window only `|j - p| < window`. Nothing is
    /// cached, so a span must be a whole text.
    Text,
}

/// Scaled dot-product attention.
///
/// Query head `h` reads key-value head `h / (heads / kv_heads)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// What it reaches.
    pub scope: Scope,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Features of one head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Positions that a token sees to either side, itself included.
    pub window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)` before the softmax.
    pub softcap: Option<f32>,
    /// One logit per head, `(heads)`, that takes part in the softmax and is then dropped.
    pub sinks: Option<WeightId>,
}

/// An element-wise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)` with the error function.
    Gelu,
    /// GELU by the tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// How gate and up are joined.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Gate {
    /// `activation(gate) * up`.
    Plain(Activation),
    /// gpt-oss: gate is cut above `limit`, up to `-limit..limit`, then
    /// `gate * sigmoid(alpha * gate) * (up + 1)`.
    Clamped {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
}

/// How router logits become expert weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Softmax over all experts, then the `top_k` largest, divided by their sum if `normalize`.
    SoftmaxThenTopK {
        /// Whether the chosen weights are made to sum to 1.
        normalize: bool,
    },
    /// The `top_k` largest logits, then softmax over those.
    TopKThenSoftmax,
}

/// A mixture of gated feed-forward experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Router, `(experts, hidden)`.
    pub router: WeightId,
    /// Router offset, `(experts)`.
    pub router_bias: Option<WeightId>,
    /// Gate matrices, `(experts, ffn, hidden)`.
    pub gate: WeightId,
    /// Up matrices, `(experts, ffn, hidden)`.
    pub up: WeightId,
    /// Down matrices, `(experts, hidden, ffn)`.
    pub down: WeightId,
    /// Offsets of the experts' matrices.
    pub biases: Option<MoeBiases>,
    /// Number of experts.
    pub experts: usize,
    /// Experts used per token.
    pub top_k: usize,
    /// Inner features of one expert.
    pub ffn: usize,
    /// How experts are weighted.
    pub routing: Routing,
    /// How gate and up are joined.
    pub activation: Gate,
}

/// Offsets of a mixture's expert matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeBiases {
    /// `(experts, ffn)`.
    pub gate: WeightId,
    /// `(experts, ffn)`.
    pub up: WeightId,
    /// `(experts, hidden)`.
    pub down: WeightId,
}

impl Op {
    /// The operation's name in dumps and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embedding { .. } => "embedding",
            Op::RmsNorm(_) => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Linear(_) => "linear",
            Op::Slice { .. } => "slice",
            Op::Rope(_) => "rope",
            Op::Attention(_) => "attention",
            Op::Add => "add",
            Op::Mul => "mul",
            Op::Scale(_) => "scale",
            Op::Activation(_) => "activation",
            Op::GatedActivation(_) => "gated_activation",
            Op::Softcap(_) => "softcap",
            Op::Moe(_) => "moe",
            Op::SelectRows => "select_rows",
            Op::Pool(_) => "pool",
        }
    }

    /// Whether each row of the result depends on the same row of the inputs alone.
    pub fn is_row_wise(&self) -> bool {
        !matches!(self, Op::Attention(_) | Op::SelectRows | Op::Pool(_))
    }

    /// The weights it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embedding { table, .. } => vec![*table],
            Op::RmsNorm(norm) => norm.weight.into_iter().collect(),
            Op::LayerNorm { weight, bias, .. } => std::iter::once(*weight).chain(*bias).collect(),
            Op::Linear(linear) => {
                linear.parts.iter().flat_map(|p| std::iter::once(p.weight).chain(p.bias)).collect()
            }
            Op::Attention(attention) => attention.sinks.into_iter().collect(),
            Op::Moe(moe) => [moe.router, moe.gate, moe.up, moe.down]
                .into_iter()
                .chain(moe.router_bias)
                .chain(moe.biases.into_iter().flat_map(|b| [b.gate, b.up, b.down]))
                .collect(),
            _ => Vec::new(),
        }
    }
}
