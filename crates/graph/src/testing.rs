//! Small models with pseudo-random weights for tests of executors, and the suite that all must pass.

mod best;
mod cases;
pub mod conformance;
mod texts;

use baton_weights::{Tensor, Weight, Weights};

use crate::{
    Activation, Attention, Gate, Graph, GraphBuilder, GraphError, RmsNorm, Rope, RopeLayout, Scope,
};

/// A deterministic stream of numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// A number in `-1..1`.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Shape of a test model.
#[derive(Clone, Debug)]
pub struct Tiny {
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Features of the hidden state.
    pub hidden: usize,
    /// Features inside the feed-forward layer.
    pub ffn: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Window of every second layer, from the first on.
    pub window: Option<usize>,
    /// Soft cap of the attention scores.
    pub softcap: Option<f32>,
    /// Whether attention has sinks.
    pub sinks: bool,
    /// Layout of rotated pairs.
    pub layout: RopeLayout,
}

impl Default for Tiny {
    fn default() -> Self {
        Tiny {
            layers: 3,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            hidden: 64,
            ffn: 96,
            vocab: 97,
            window: Some(7),
            softcap: None,
            sinks: false,
            layout: RopeLayout::Half,
        }
    }
}

impl Tiny {
    /// The graph, as an architecture builds it, without passes.
    ///
    /// # Errors
    /// If the shape makes no sense.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        let mut b = GraphBuilder::new("tiny");
        b.fingerprint([1; 32]);
        let (hidden, dim) = (self.hidden, self.head_dim);
        let (q_len, kv_len) = (self.heads * dim, self.kv_heads * dim);
        let embed = b.weight("embed", &[self.vocab, hidden]);
        let inv_freq: Vec<f32> =
            (0..dim / 2).map(|i| 100f32.powf(-2.0 * i as f32 / dim as f32)).collect();
        let rope =
            Rope { head_dim: dim, layout: self.layout, inv_freq: inv_freq.into(), magnitude: 1.0 };
        let mut x = b.embedding("embed", embed, 1.0)?;
        for layer in 0..self.layers {
            let name = |part: &str| format!("{layer}.{part}");
            let norm = |b: &mut GraphBuilder, part: &str, group: usize| RmsNorm {
                weight: Some(b.weight(&name(part), &[group])),
                weight_offset: 0.0,
                eps: 1e-6,
                group,
            };
            let linear = |b: &mut GraphBuilder, part: &str, x, out: usize| {
                let weight = b.weight(&name(part), &[out, b.ty(x).features()]);
                b.linear(&name(part), x, weight, None)
            };
            let attn_norm = norm(&mut b, "attn_norm", hidden);
            let normed = b.rms_norm(&name("attn_norm"), x, attn_norm)?;
            let q = linear(&mut b, "q", normed, q_len)?;
            let k = linear(&mut b, "k", normed, kv_len)?;
            let v = linear(&mut b, "v", normed, kv_len)?;
            let q_norm = norm(&mut b, "q_norm", dim);
            let q = b.rms_norm(&name("q_norm"), q, q_norm)?;
            let q = b.rope(&name("q_rope"), q, rope.clone())?;
            let k = b.rope(&name("k_rope"), k, rope.clone())?;
            let window = self.window.filter(|_| layer % 2 == 0);
            let attention = Attention {
                scope: Scope::Past(b.kv_state(self.kv_heads, dim, window)),
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: dim,
                scale: (dim as f32).powf(-0.5),
                window,
                softcap: self.softcap,
                sinks: self.sinks.then(|| b.weight(&name("sinks"), &[self.heads])),
            };
            let mixed = b.attention(&name("attn"), [q, k, v], attention)?;
            let mixed = linear(&mut b, "o", mixed, hidden)?;
            x = b.add(&name("attn_add"), x, mixed)?;
            let ffn_norm = norm(&mut b, "ffn_norm", hidden);
            let normed = b.rms_norm(&name("ffn_norm"), x, ffn_norm)?;
            let gate = linear(&mut b, "gate", normed, self.ffn)?;
            let up = linear(&mut b, "up", normed, self.ffn)?;
            let inner = b.gated(&name("gated"), gate, up, Gate::Plain(Activation::Silu))?;
            let down = linear(&mut b, "down", inner, hidden)?;
            x = b.add(&name("ffn_add"), x, down)?;
        }
        let weight = Some(b.weight("norm", &[hidden]));
        let norm = RmsNorm { weight, weight_offset: 0.0, eps: 1e-6, group: hidden };
        let x = b.rms_norm("norm", x, norm)?;
        let logits = b.linear("head", x, embed, None)?;
        b.finish(logits)
    }
}

/// F32 weights for every weight of `graph`: vectors around 1, matrices scaled so that values keep
/// their size from layer to layer.
pub fn random_weights(graph: &Graph, seed: u64) -> Weights {
    let mut random = Random::new(seed);
    let mut weights = Weights::new();
    for spec in graph.weights() {
        let n: usize = spec.shape.iter().product();
        let values: Vec<f32> = match spec.shape[..] {
            [_] => (0..n).map(|_| 1.0 + 0.3 * random.signed()).collect(),
            _ => {
                let cols = *spec.shape.last().expect("weights have dimensions");
                let size = (3.0 / cols as f32).sqrt();
                (0..n).map(|_| size * random.signed()).collect()
            }
        };
        let tensor = Tensor::from_f32(&spec.name, &spec.shape, &values);
        weights.insert(&spec.name, Weight::One(tensor));
    }
    weights
}

/// `n` tokens of a vocabulary.
pub fn random_tokens(n: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.below(vocab) as u32).collect()
}

/// The largest absolute difference of two equally long slices.
///
/// # Panics
/// If their lengths differ.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "slices differ in length");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
