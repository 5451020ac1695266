//! Attention over a sequence's whole cache, one query head at a time.

use rayon::prelude::*;

use super::linear::dot;
use super::{Interpreter, LayerCache, Matrix, Place};
use crate::{Attention, ExecError};

impl Interpreter {
    pub(super) fn attention(
        &mut self,
        attention: &Attention,
        [q, k, v]: [&Matrix; 3],
        places: &[Place],
    ) -> Result<Matrix, ExecError> {
        let sinks = attention.sinks.map(|id| self.weight(id)).transpose()?;
        let layer = attention.state.index();
        for (row, place) in places.iter().enumerate() {
            let cache = self.caches.get_mut(&place.seq).expect("made before the first node runs");
            cache[layer].keys.data.extend_from_slice(k.row(row));
            cache[layer].values.data.extend_from_slice(v.row(row));
        }
        let mut out = Matrix::zeros(q.rows(), q.cols);
        let rows = out.data.par_chunks_exact_mut(q.cols).enumerate();
        rows.for_each(|(row, out)| {
            let cache = &self.caches[&places[row].seq][layer];
            let position = places[row].position;
            let dim = attention.head_dim;
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                let query = &q.row(row)[head * dim..(head + 1) * dim];
                let sink = sinks.as_ref().map(|s| s[head]);
                one_head(attention, head, query, sink, cache, position, out);
            }
        });
        Ok(out)
    }
}

fn one_head(
    attention: &Attention,
    head: usize,
    query: &[f32],
    sink: Option<f32>,
    cache: &LayerCache,
    position: usize,
    out: &mut [f32],
) {
    let kv_head = head / (attention.heads / attention.kv_heads);
    let features = kv_head * attention.head_dim..(kv_head + 1) * attention.head_dim;
    let first = attention.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let score = |at: usize| {
        let score = dot(query, &cache.keys.row(at)[features.clone()]) * attention.scale;
        attention.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    };
    let scores: Vec<f32> = (first..=position).map(score).collect();
    let highest = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| (s - highest).exp()).collect();
    let total = weights.iter().sum::<f32>() + sink.map_or(0.0, |s| (s - highest).exp());
    for (weight, at) in weights.iter().zip(first..) {
        let value = &cache.values.row(at)[features.clone()];
        out.iter_mut().zip(value).for_each(|(o, v)| *o += weight / total * v);
    }
}
