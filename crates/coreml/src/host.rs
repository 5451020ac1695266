//! What the caller of a package's functions computes: embeddings, tables of rotations, masks.

use baton_graph::{Graph, Lookup, Rope, RopeLayout};
use baton_weights::{Tensor as WeightTensor, Weights};

use crate::Result;
use crate::interpret::Tensor;
use crate::lower::{Anatomy, HIDDEN};

/// The inputs of a graph's functions for given tokens.
#[derive(Debug)]
pub(crate) struct Host {
    pub anatomy: Anatomy,
    /// The matrix of each embedding.
    tables: Vec<WeightTensor>,
    /// What embeddings are multiplied with beside their own factor.
    factor: f32,
}

impl Host {
    pub fn new(graph: &Graph, weights: &Weights, factor: f32) -> Result<Host> {
        let anatomy = Anatomy::of(graph)?;
        let table = |embedding: &crate::lower::Embedding| {
            let name = &graph.weights()[embedding.table.index()].name;
            Ok(weights.tensor(name)?.clone())
        };
        let tables = anatomy.embeddings.iter().map(table).collect::<Result<_>>()?;
        Ok(Host { anatomy, tables, factor })
    }

    /// Rows of the embedding of tokens, which bound their ids.
    pub fn vocab(&self) -> usize {
        let by_token =
            |(embedding, _): &(&crate::lower::Embedding, _)| embedding.lookup == Lookup::Token;
        let mut tables = self.anatomy.embeddings.iter().zip(&self.tables);
        tables.find(by_token).map_or(usize::MAX, |(_, table)| table.shape()[0])
    }

    /// The names of all that [`Host::inputs`] makes.
    pub fn names(&self) -> Vec<String> {
        let Anatomy { embeddings, ropes, windows, .. } = &self.anatomy;
        let embedded = (0..embeddings.len()).map(Anatomy::embedded);
        let rotations = (0..ropes.len()).flat_map(Anatomy::rotation);
        embedded.chain(rotations).chain(windows.iter().map(|&w| Anatomy::mask(w))).collect()
    }

    /// The places of a prefill function's masks: those of `history` earlier tokens, of which the first
    /// `start` are there, then the new ones'. The position of each, if there is a token.
    pub fn places(start: usize, columns: usize, history: usize) -> Vec<Option<usize>> {
        let earlier = (0..history).map(|place| (place < start).then_some(place));
        earlier.chain((start..start + columns).map(Some)).collect()
    }

    /// Embeddings, rotations and masks of `tokens`, which begin at position `start`, for a function of
    /// `columns` columns and masks over places with these positions.
    pub fn inputs(
        &self,
        tokens: &[u32],
        start: usize,
        columns: usize,
        places: &[Option<usize>],
    ) -> Vec<(String, Tensor)> {
        let mut inputs = Vec::new();
        for (i, (embedding, table)) in self.anatomy.embeddings.iter().zip(&self.tables).enumerate()
        {
            let features = table.cols();
            let mut values = vec![0.0; features * columns];
            let mut row = vec![0.0; features];
            for (column, &token) in tokens.iter().enumerate() {
                let at = match embedding.lookup {
                    Lookup::Token => token as usize,
                    Lookup::Position => start + column,
                    Lookup::Row(row) => row,
                };
                table.dequantize_row(at, &mut row);
                let scale = embedding.scale * self.factor;
                for (feature, value) in row.iter().enumerate() {
                    values[feature * columns + column] = value * scale;
                }
            }
            let tensor = Tensor::floats(&[1, features, 1, columns], values);
            inputs.push((Anatomy::embedded(i), tensor));
        }
        for (i, rope) in self.anatomy.ropes.iter().enumerate() {
            let shape = [1, 1, rope.head_dim, columns];
            let tables = rotation_tables(rope, start, columns);
            let tables = tables.map(|values| Tensor::floats(&shape, values));
            inputs.extend(Anatomy::rotation(i).into_iter().zip(tables));
        }
        for &window in &self.anatomy.windows {
            let mut mask = vec![HIDDEN; columns * places.len()];
            for (column, row) in mask.chunks_exact_mut(places.len()).enumerate() {
                let own = start + column;
                let first = window.map_or(0, |window| (own + 1).saturating_sub(window));
                for (position, value) in places.iter().zip(row) {
                    if position.is_some_and(|position| (first..=own).contains(&position)) {
                        *value = 0.0;
                    }
                }
            }
            let tensor = Tensor::floats(&[1, 1, columns, places.len()], mask);
            inputs.push((Anatomy::mask(window), tensor));
        }
        inputs
    }
}

/// Cosines and sines `(1, 1, head_dim, columns)` of the positions from `start` on. The sines have the
/// sign of the feature that they are multiplied for.
pub(crate) fn rotation_tables(rope: &Rope, start: usize, columns: usize) -> [Vec<f32>; 2] {
    let dim = rope.head_dim;
    let mut cos = vec![1.0; dim * columns];
    let mut sin = vec![0.0; dim * columns];
    for (feature, pair, sign) in turns(rope) {
        for column in 0..columns {
            let angle = (start + column) as f64 * f64::from(rope.inv_freq[pair]);
            cos[feature * columns + column] = angle.cos() as f32 * rope.magnitude;
            sin[feature * columns + column] = sign * angle.sin() as f32 * rope.magnitude;
        }
    }
    [cos, sin]
}

/// The features of a head that turn, each with its pair and the sign of its sine.
pub(crate) fn turns(rope: &Rope) -> impl Iterator<Item = (usize, usize, f32)> + '_ {
    let pairs = rope.inv_freq.len();
    (0..pairs).flat_map(move |i| {
        let (first, second) = match rope.layout {
            RopeLayout::Half => (i, i + pairs),
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
        };
        [(first, i, -1.0), (second, i, 1.0)]
    })
}
