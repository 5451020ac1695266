//! The functions of Baton's own layout: see [`MilLowering`](super::MilLowering).

use std::io::{Seek, Write};

use super::features::{CACHES, HIDDEN_STATE, NEW, PAST, POSITION};
use super::function::{Cache, FunctionLowering, Held};
use super::{Anatomy, MilLowering};
use crate::Result;
use crate::mil::{DataType, Function, TensorType, Var};

/// The input of a chunk that goes on with what an earlier one has come to.
pub(crate) const INCOMING: &str = "incoming";

/// A function of new tokens behind a history.
pub(super) fn prefill<W: Write + Seek>(
    mut f: FunctionLowering<'_, '_, '_, W>,
    history: usize,
) -> Result<Function> {
    let tokens = f.columns;
    inputs(&mut f, history + tokens);
    if let (Some([_, heads, width]), true) = (f.anatomy.cache, history > 0) {
        let shape = [f.part.layers.len(), heads, history, width];
        f.cache = Cache::Stacked(PAST.map(|name| f.input(name, &shape)));
    }
    let hidden = f.layers()?;
    let mut outputs = vec![f.named(HIDDEN_STATE, &hidden)?];
    for (i, name) in NEW.into_iter().enumerate() {
        let layers: Vec<Var> = f.cached[i].values().cloned().collect();
        outputs.extend(match &layers[..] {
            [] => None,
            [only] => Some(f.named(name, only)?),
            _ => Some(f.concat(name, &layers, 0)?),
        });
    }
    Ok(f.b.finish(&outputs))
}

/// The function of a token behind those whose keys and values are in states.
pub(super) fn decode<W: Write + Seek>(
    mut f: FunctionLowering<'_, '_, '_, W>,
    context: usize,
) -> Result<Function> {
    let shape = state_shape(&f, context);
    inputs(&mut f, shape[2]);
    if f.anatomy.cache.is_some() {
        let position = f.ints(POSITION, &[1]);
        let ty = TensorType::new(DataType::Float16, &shape);
        let states = CACHES.map(|name| f.b.state(name, ty.clone()));
        f.cache = Cache::Held(Held { states, first: [0, 0], position, places: shape[2] });
    }
    let hidden = f.layers()?;
    let outputs = [f.named(HIDDEN_STATE, &hidden)?];
    Ok(f.b.finish(&outputs))
}

/// The function of the head.
pub(super) fn head<W: Write + Seek>(mut f: FunctionLowering<'_, '_, '_, W>) -> Result<Function> {
    let hidden = f.input(HIDDEN_STATE, &[1, f.anatomy.hidden, 1, f.columns]);
    let mut outputs = Vec::new();
    for (i, piece) in f.head(hidden)?.iter().enumerate() {
        outputs.push(f.named(&format!("logits_{i}"), piece)?);
    }
    Ok(f.b.finish(&outputs))
}

/// Embeddings or what an earlier chunk has come to, rotations, and masks of so many places.
fn inputs<W: Write + Seek>(f: &mut FunctionLowering<'_, '_, '_, W>, places: usize) {
    let columns = f.columns;
    for i in f.embeddings() {
        let features = f.graph.ty(f.anatomy.embeddings[i].output).features();
        let x = f.input(&Anatomy::embedded(i), &[1, features, 1, columns]);
        f.embed(i, x);
    }
    if let Some(features) = f.incoming() {
        let x = f.input(INCOMING, &[1, features, 1, columns]);
        f.enter(x);
    }
    f.tables(places);
}

/// The shape of each state, `(layers, heads, places, features)`.
fn state_shape<W>(f: &FunctionLowering<'_, '_, '_, W>, context: usize) -> [usize; 4] {
    let [_, heads, width] = f.anatomy.cache.unwrap_or([1, 1, 1]);
    let shape = [f.part.layers.len().max(1), heads, context, width];
    f.options.padded_state(shape, [true; 3])
}

impl MilLowering {
    /// The shape of a state, of which some of the first three dimensions may be raised to powers of two,
    /// and the last to a multiple of 32, if states are padded.
    pub(crate) fn padded_state(&self, shape: [usize; 4], raised: [bool; 3]) -> [usize; 4] {
        if !self.pad_states {
            return shape;
        }
        let [a, b, c, width] = shape;
        let [a, b, c] = [(a, raised[0]), (b, raised[1]), (c, raised[2])]
            .map(|(n, raised)| if raised { n.next_power_of_two() } else { n });
        [a, b, c, width.next_multiple_of(32)]
    }
}
