//! Attention of one query head at a time, over a sequence's whole cache or over a whole text.

use std::ops::Range;

use rayon::prelude::*;

use super::linear::dot;
use super::{Interpreter, LayerCache, Matrix, Place};
use crate::{Attention, ExecError, Scope};

impl Interpreter {
    pub(super) fn attention(
        &mut self,
        attention: &Attention,
        [q, k, v]: [&Matrix; 3],
        places: &[Place],
    ) -> Result<Matrix, ExecError> {
        let sinks = attention.sinks.map(|id| self.weight(id)).transpose()?;
        if let Scope::Past(state) = attention.scope {
            for (row, place) in places.iter().enumerate() {
                let sequence = self.sequences.get_mut(&place.seq);
                let sequence = sequence.expect("made before the first node runs");
                let layer = &mut sequence.layers[state.index()];
                layer.keys.data.extend_from_slice(k.row(row));
                layer.values.data.extend_from_slice(v.row(row));
            }
        }
        let text = LayerCache { keys: k.clone(), values: v.clone() };
        let mut out = Matrix::zeros(q.rows(), q.cols);
        let rows = out.data.par_chunks_exact_mut(q.cols).enumerate();
        rows.for_each(|(row, out)| {
            let place = &places[row];
            // Where the keys and values are, and which rows of them belong to the sequence.
            let (cache, first, end) = match attention.scope {
                Scope::Past(state) => {
                    let layers = &self.sequences[&place.seq].layers;
                    (&layers[state.index()], 0, place.position + 1)
                }
                Scope::Text => (&text, place.rows.0, place.rows.1),
            };
            let own = first + place.position;
            let window = attention.window.unwrap_or(usize::MAX);
            let seen =
                first.max((own + 1).saturating_sub(window))..end.min(own.saturating_add(window));
            let dim = attention.head_dim;
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                let query = &q.row(row)[head * dim..(head + 1) * dim];
                let sink = sinks.as_ref().map(|s| s[head]);
                one_head(attention, head, query, sink, cache, seen.clone(), out);
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
    seen: Range<usize>,
    out: &mut [f32],
) {
    let kv_head = head / (attention.heads / attention.kv_heads);
    let features = kv_head * attention.head_dim..(kv_head + 1) * attention.head_dim;
    let score = |at: usize| {
        let score = dot(query, &cache.keys.row(at)[features.clone()]) * attention.scale;
        attention.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    };
    let scores: Vec<f32> = seen.clone().map(score).collect();
    let highest = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| (s - highest).exp()).collect();
    let total = weights.iter().sum::<f32>() + sink.map_or(0.0, |s| (s - highest).exp());
    for (weight, at) in weights.iter().zip(seen) {
        let value = &cache.values.row(at)[features.clone()];
        out.iter_mut().zip(value).for_each(|(o, v)| *o += weight / total * v);
    }
}
