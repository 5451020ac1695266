//! The one decoder that most architectures here are variants of, as a graph.

use baton_graph::{Attention, Graph, Moe, MoeBiases, RmsNorm, Rope, Scope, ValueId};
use baton_weights::Weights;

use crate::config::{ExpertsConfig, LayerConfig, ModelConfig};
use crate::loader::Loader;
use crate::names::{Slot, canonical};
use crate::rope::{RopeConfig, RopeTable};
use crate::{Result, embedding};

/// Builds the graph of the model whose tensors `loader` finds, rotating for sequences of up to
/// `context` tokens.
pub(crate) fn build(
    loader: Loader<'_>,
    config: &ModelConfig,
    context: usize,
) -> Result<(Graph, Weights)> {
    let rope = config.rope.table(context);
    let local_rope = config.local_rope.as_ref().map(|rope| rope.table(context));
    let mut decoder = Decoder { loader, config, rope, local_rope };
    let table = decoder.loader.weight(Slot::TokenEmbd, 0, &[config.vocab, config.hidden])?;
    let mut x = decoder.loader.graph.embedding("token_embd", table, config.embedding_scale)?;
    for (i, layer) in config.layers.iter().enumerate() {
        x = decoder.layer(x, i, layer)?;
    }
    x = decoder.norm(x, Slot::OutputNorm, 0, config.hidden)?;
    if let Some(head) = &config.embedding {
        return embedding::finish(decoder.loader, x, head);
    }
    let logits = if config.tied {
        decoder.loader.graph.linear("output", x, table, None)?
    } else {
        decoder.loader.linear(x, Slot::Output, 0, config.vocab, config.hidden)?
    };
    let logits = match config.logit_softcap {
        Some(cap) => decoder.loader.graph.softcap("softcap", logits, cap)?,
        None => logits,
    };
    decoder.loader.finish(logits)
}

struct Decoder<'a> {
    loader: Loader<'a>,
    config: &'a ModelConfig,
    rope: RopeTable,
    local_rope: Option<RopeTable>,
}

impl Decoder<'_> {
    fn layer(&mut self, x: ValueId, i: usize, layer: &LayerConfig) -> Result<ValueId> {
        let hidden = self.config.hidden;
        let normed = self.norm(x, Slot::AttnNorm, i, hidden)?;
        let mut attended = self.attention(normed, i, layer)?;
        if self.config.post_norms {
            attended = self.norm(attended, Slot::PostAttnNorm, i, hidden)?;
        }
        let x = self.loader.graph.add(&format!("blk.{i}.attn_residual"), x, attended)?;
        let normed = self.norm(x, Slot::FfnNorm, i, hidden)?;
        let mut fed = match &self.config.experts {
            Some(experts) if layer.sparse => self.mixture(normed, i, experts)?,
            _ => self.feed_forward(normed, i)?,
        };
        if self.config.post_norms {
            fed = self.norm(fed, Slot::PostFfnNorm, i, hidden)?;
        }
        Ok(self.loader.graph.add(&format!("blk.{i}.ffn_residual"), x, fed)?)
    }

    fn norm(&mut self, x: ValueId, slot: Slot, i: usize, group: usize) -> Result<ValueId> {
        let weight = Some(self.loader.weight(slot, i, &[group])?);
        let (eps, weight_offset) = (self.config.norm_eps, self.config.norm_offset);
        let norm = RmsNorm { weight, weight_offset, eps, group };
        Ok(self.loader.graph.rms_norm(&canonical(slot, i), x, norm)?)
    }

    fn attention(&mut self, x: ValueId, i: usize, layer: &LayerConfig) -> Result<ValueId> {
        let &ModelConfig { heads, kv_heads, head_dim, hidden, .. } = self.config;
        let [mut q, mut k, v] = self.loader.queries_keys_values(x, i, self.config)?;
        if self.config.qk_norm {
            q = self.norm(q, Slot::AttnQNorm, i, head_dim)?;
            k = self.norm(k, Slot::AttnKNorm, i, head_dim)?;
        }
        if !layer.no_rope {
            let rope = self.rope_of(layer);
            q = self.loader.graph.rope(&format!("blk.{i}.rope_q"), q, rope.clone())?;
            k = self.loader.graph.rope(&format!("blk.{i}.rope_k"), k, rope)?;
        }
        let sinks = match self.config.sinks {
            true => Some(self.loader.weight(Slot::AttnSinks, i, &[heads])?),
            false => None,
        };
        let scope = match self.config.bidirectional {
            true => Scope::Text,
            false => Scope::Past(self.loader.graph.kv_state(kv_heads, head_dim, layer.window)),
        };
        let attention = Attention {
            scope,
            heads,
            kv_heads,
            head_dim,
            scale: self.config.attention_scale,
            window: layer.window,
            softcap: self.config.attention_softcap,
            sinks,
        };
        let name = format!("blk.{i}.attn");
        let attended = self.loader.graph.attention(&name, [q, k, v], attention)?;
        self.loader.linear(attended, Slot::AttnOut, i, hidden, heads * head_dim)
    }

    fn rope_of(&self, layer: &LayerConfig) -> Rope {
        let table = match &self.local_rope {
            Some(local) if layer.window.is_some() => local,
            _ => &self.rope,
        };
        Rope {
            head_dim: self.config.head_dim,
            layout: self.config.rope_layout,
            inv_freq: table.inv_freq.clone(),
            magnitude: table.magnitude,
        }
    }

    fn feed_forward(&mut self, x: ValueId, i: usize) -> Result<ValueId> {
        let &ModelConfig { hidden, ffn, gate: kind, .. } = self.config;
        let [gate, up] = self.loader.gate_and_up(x, i, self.config)?;
        let inner = self.loader.graph.gated(&format!("blk.{i}.ffn_act"), gate, up, kind)?;
        self.loader.linear(inner, Slot::FfnDown, i, hidden, ffn)
    }

    fn mixture(&mut self, x: ValueId, i: usize, config: &ExpertsConfig) -> Result<ValueId> {
        let hidden = self.config.hidden;
        let &ExpertsConfig { count, used, ffn, routing, biased } = config;
        let l = &mut self.loader;
        let moe = Moe {
            router: l.weight(Slot::Router, i, &[count, hidden])?,
            router_bias: l.bias(Slot::Router, i, &[count])?,
            gate: l.experts(Slot::ExpertsGate, i, [count, ffn, hidden])?,
            up: l.experts(Slot::ExpertsUp, i, [count, ffn, hidden])?,
            down: l.experts(Slot::ExpertsDown, i, [count, hidden, ffn])?,
            biases: match biased {
                true => Some(MoeBiases {
                    gate: l.expert_bias(Slot::ExpertsGate, i, [count, ffn])?,
                    up: l.expert_bias(Slot::ExpertsUp, i, [count, ffn])?,
                    down: l.expert_bias(Slot::ExpertsDown, i, [count, hidden])?,
                }),
                false => None,
            },
            experts: count,
            top_k: used,
            ffn,
            routing,
            activation: self.config.gate,
        };
        Ok(self.loader.graph.moe(&format!("blk.{i}.ffn_moe"), x, moe)?)
    }
}

/// Bytes that tell one rotation from another, for fingerprints of caches that hold rotated keys.
pub(crate) fn rope_bytes(rope: &RopeConfig, context: usize) -> Vec<u8> {
    let table = rope.table(context);
    let numbers = table.inv_freq.iter().chain(std::iter::once(&table.magnitude));
    numbers.flat_map(|x| x.to_le_bytes()).collect()
}
