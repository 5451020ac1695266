//! What passes of a model consist of, so that one can say what they would take if nothing but a unit's
//! limits counted.
//!
//! Work is products with weights, two operations for each, and bytes of weights and cache that must
//! be read. Attention's own products are left out: they are few, and no integers. Weights count as
//! many bytes as in the file.

use baton_graph::Roof;
use baton_models::{Model, ModelConfig};

use crate::Result;

/// What passes of a model consist of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassWork {
    /// Weights that every token meets, and their bytes.
    pub dense: (f64, f64),
    /// Weights of the output matrix, which only tokens with logits meet.
    pub head: (f64, f64),
    /// Weights of experts, all of them.
    pub experts: (f64, f64),
    /// Share of the experts that one token uses.
    pub used: f64,
    /// Bytes of cache for each token, and how many tokens of it are seen, layer by layer.
    pub layers: Vec<(f64, Option<usize>)>,
}

impl PassWork {
    /// That of a model.
    ///
    /// # Errors
    /// If its tensors cannot be listed.
    pub fn of(model: &Model) -> Result<PassWork> {
        let config = model.config();
        let mut work = PassWork { used: 1.0, ..PassWork::default() };
        if let Some(experts) = &config.experts {
            work.used = experts.used as f64 / experts.count as f64;
        }
        for tensor in model.source().tensors()? {
            let (elements, bytes) = (tensor.elements() as f64, tensor.bytes as f64);
            let is_embedding = tensor.name.contains("embd") || tensor.name.contains("embed_tokens");
            let is_head = match config.tied {
                true => is_embedding,
                false => tensor.name == "output.weight" || tensor.name.contains("lm_head"),
            };
            let is_expert = tensor.name.contains("_exps") || tensor.name.contains(".experts.");
            let part = match (is_head, is_expert) {
                (true, _) => &mut work.head,
                (_, true) => &mut work.experts,
                // Of an embedding single rows are read.
                _ if is_embedding => continue,
                _ => &mut work.dense,
            };
            *part = (part.0 + elements, part.1 + bytes);
        }
        work.layers = cache_layers(config);
        Ok(work)
    }

    /// Operations and bytes of one pass of `tokens` tokens, after which the cache holds `context`.
    pub fn pass(&self, tokens: usize, wants_logits: bool, context: usize) -> (f64, f64) {
        let n = tokens as f64;
        let (head_ops, head_bytes) = if wants_logits { self.head } else { (0.0, 0.0) };
        // As if each token chose its experts by lot.
        let touched = 1.0 - (1.0 - self.used).powf(n);
        let cache: f64 = self
            .layers
            .iter()
            .map(|(bytes, window)| bytes * window.map_or(context, |w| w.min(context)) as f64)
            .sum();
        let ops = 2.0 * ((self.dense.0 + self.experts.0 * self.used) * n + head_ops);
        (ops, self.dense.1 + self.experts.1 * touched + head_bytes + cache)
    }

    /// The fewest seconds that one pass of `tokens` tokens takes under `roof`.
    pub fn seconds(&self, roof: &Roof, tokens: usize, context: usize) -> f64 {
        let (ops, bytes) = self.pass(tokens, true, context);
        ops / roof.at(ops / bytes.max(1.0)).max(1.0)
    }
}

fn cache_layers(config: &ModelConfig) -> Vec<(f64, Option<usize>)> {
    // Keys and values in f16.
    let bytes = (4 * config.kv_heads * config.head_dim) as f64;
    config.layers.iter().map(|layer| (bytes, layer.window)).collect()
}
