//! The encoder of the BERT family as a graph: attention in both directions, norms behind each half
//! of a layer.

use baton_graph::{Attention, Gate, Graph, Lookup, Rope, Scope, ValueId};
use baton_weights::Weights;

use crate::config::{EncoderConfig, ModelConfig};
use crate::embedding::{self, EmbeddingConfig};
use crate::loader::Loader;
use crate::names::{Slot, canonical};
use crate::rope::RopeTable;
use crate::{Error, Result};

/// Builds the graph of the model whose tensors `loader` finds, for texts of up to `context` tokens.
pub(crate) fn build(
    loader: Loader<'_>,
    config: &ModelConfig,
    (encoder, head): (&EncoderConfig, &EmbeddingConfig),
    context: usize,
) -> Result<(Graph, Weights)> {
    if encoder.learned_positions && context > config.context_length {
        let most = config.context_length;
        return Err(Error::Unsupported {
            what: format!("a context of {context} tokens for a model of {most} positions"),
            instead: "ask for no more than the model has",
        });
    }
    let rope = (!encoder.learned_positions).then(|| config.rope.table(context));
    let mut build = Encoder { loader, config, gated: encoder.gated, rope };
    let mut x = build.embeddings(encoder)?;
    for i in 0..config.layers.len() {
        x = build.layer(x, i)?;
    }
    embedding::finish(build.loader, x, head)
}

struct Encoder<'a> {
    loader: Loader<'a>,
    config: &'a ModelConfig,
    gated: bool,
    rope: Option<RopeTable>,
}

impl Encoder<'_> {
    /// The sum of what is known of a token before it has seen others: word, position, and segment,
    /// which here is always the first.
    fn embeddings(&mut self, encoder: &EncoderConfig) -> Result<ValueId> {
        let &ModelConfig { vocab, hidden, context_length, .. } = self.config;
        let words = self.loader.weight(Slot::TokenEmbd, 0, &[vocab, hidden])?;
        let mut x = self.loader.graph.embedding("token_embd", words, 1.0)?;
        if encoder.learned_positions {
            let table = self.loader.weight(Slot::PositionEmbd, 0, &[context_length, hidden])?;
            let positions = self.loader.graph.lookup("position_embd", table, Lookup::Position)?;
            x = self.loader.graph.add("word_and_position", x, positions)?;
        }
        if let Some(segments) = self.loader.rows(Slot::TokenTypes, 0) {
            let table = self.loader.weight(Slot::TokenTypes, 0, &[segments, hidden])?;
            let segment = self.loader.graph.lookup("token_types", table, Lookup::Row(0))?;
            x = self.loader.graph.add("word_and_segment", x, segment)?;
        }
        self.norm(x, Slot::TokenEmbdNorm, 0)
    }

    fn layer(&mut self, x: ValueId, i: usize) -> Result<ValueId> {
        let attended = self.attention(x, i)?;
        let x = self.loader.graph.add(&format!("blk.{i}.attn_residual"), x, attended)?;
        let x = self.norm(x, Slot::AttnOutNorm, i)?;
        let fed = self.feed_forward(x, i)?;
        let x = self.loader.graph.add(&format!("blk.{i}.ffn_residual"), x, fed)?;
        self.norm(x, Slot::LayerOutNorm, i)
    }

    fn norm(&mut self, x: ValueId, slot: Slot, i: usize) -> Result<ValueId> {
        let hidden = self.config.hidden;
        let weight = self.loader.weight(slot, i, &[hidden])?;
        let bias = self.loader.bias(slot, i, &[hidden])?;
        let eps = self.config.norm_eps;
        Ok(self.loader.graph.layer_norm(&canonical(slot, i), x, weight, bias, eps)?)
    }

    fn attention(&mut self, x: ValueId, i: usize) -> Result<ValueId> {
        let &ModelConfig { heads, kv_heads, head_dim, hidden, .. } = self.config;
        let [mut q, mut k, v] = self.loader.queries_keys_values(x, i, self.config)?;
        if let Some(table) = &self.rope {
            let rope = Rope {
                head_dim,
                layout: self.config.rope_layout,
                inv_freq: table.inv_freq.clone(),
                magnitude: table.magnitude,
            };
            q = self.loader.graph.rope(&format!("blk.{i}.rope_q"), q, rope.clone())?;
            k = self.loader.graph.rope(&format!("blk.{i}.rope_k"), k, rope)?;
        }
        let attention = Attention {
            scope: Scope::Text,
            heads,
            kv_heads,
            head_dim,
            scale: self.config.attention_scale,
            window: None,
            softcap: None,
            sinks: None,
        };
        let name = format!("blk.{i}.attn");
        let attended = self.loader.graph.attention(&name, [q, k, v], attention)?;
        self.loader.linear(attended, Slot::AttnOut, i, hidden, heads * head_dim)
    }

    fn feed_forward(&mut self, x: ValueId, i: usize) -> Result<ValueId> {
        let &ModelConfig { hidden, ffn, gate: kind, .. } = self.config;
        let name = format!("blk.{i}.ffn_act");
        let inner = match kind {
            Gate::Plain(activation) if !self.gated => {
                let up = self.loader.linear(x, Slot::FfnUp, i, ffn, hidden)?;
                self.loader.graph.activation(&name, up, activation)?
            }
            kind => {
                let [gate, up] = self.loader.gate_and_up(x, i, self.config)?;
                self.loader.graph.gated(&name, gate, up, kind)?
            }
        };
        self.loader.linear(inner, Slot::FfnDown, i, hidden, ffn)
    }
}
