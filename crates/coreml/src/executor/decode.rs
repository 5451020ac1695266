//! Single tokens by the decode function, which keeps its cache in states.
//!
//! The executor's pages stay what counts. The states are a copy for one sequence, which is brought up to
//! date from the pages where those have changed otherwise, and whose new token goes back to them.

use std::ops::Range;

use baton_graph::SeqId;
use half::slice::HalfFloatSliceExt;

use super::{HIDDEN_STATE, PackageExecutor, no_output, other_model};
use crate::Result;
use crate::host::Places;
use crate::interpret::{Interpreter, States, Tensor};
use crate::lower::{DECODE, INCOMING};

/// The states of keys and of values.
const CACHES: [&str; 2] = ["key_cache", "value_cache"];

/// The states of all chunks.
#[derive(Debug)]
pub(super) struct Decoder {
    states: Vec<States>,
    /// Positions of a sequence that they have room for.
    places: usize,
    /// Whose tokens they hold, and how many of them as the pages do.
    holds: Option<(SeqId, usize)>,
}

impl Decoder {
    /// The decoder of packages whose chunks all have the function.
    ///
    /// # Errors
    /// If its states are not those of the model.
    pub fn new(
        packages: &[Interpreter],
        chunks: &[(usize, Range<usize>)],
        [_, heads, width]: [usize; 3],
    ) -> Result<Option<Decoder>> {
        let (mut states, mut least) = (Vec::new(), usize::MAX);
        for (package, layers) in chunks {
            let Ok(own) = packages[*package].states(DECODE) else { return Ok(None) };
            for name in CACHES {
                match own.get(name).map(Tensor::shape) {
                    Some(&[l, h, places, w]) if l >= layers.len() && h >= heads && w >= width => {
                        least = least.min(places);
                    }
                    _ => return Err(other_model()),
                }
            }
            states.push(own);
        }
        let some = !states.is_empty();
        Ok(some.then_some(Decoder { states, places: least, holds: None }))
    }
}

impl PackageExecutor {
    /// Takes note that a sequence has no more than `len` tokens of what it had.
    pub(super) fn changed(&mut self, seq: SeqId, len: usize) {
        if let Some((holder, held)) = self.decoder.as_mut().and_then(|d| d.holds.as_mut())
            && *holder == seq
        {
            *held = len.min(*held);
        }
    }

    /// Whether the decode function takes a token behind `past` others.
    pub(super) fn decodes(&self, past: usize) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| past < decoder.places)
    }

    /// The hidden state of one token behind `past` others, whose page is there already.
    pub(super) fn decode(&mut self, seq: SeqId, token: u32, past: usize) -> Result<Vec<f32>> {
        let mut decoder = self.decoder.take().expect("the caller has looked");
        let result = self.step(&mut decoder, seq, token, past);
        decoder.holds = result.is_ok().then_some((seq, past + 1));
        self.decoder = Some(decoder);
        result
    }

    fn step(
        &mut self,
        decoder: &mut Decoder,
        seq: SeqId,
        token: u32,
        past: usize,
    ) -> Result<Vec<f32>> {
        let held = match decoder.holds {
            Some((holder, held)) if holder == seq => held.min(past),
            _ => 0,
        };
        let places = decoder.places;
        let shared = self.host.inputs(&[token], past, 1, Places::Cache(places));
        let position = Tensor::ints(&[1], vec![past as i32]);
        let mut hidden = Tensor::floats(&[0], Vec::new());
        for ((package, layers), states) in self.chunks.clone().into_iter().zip(&mut decoder.states)
        {
            self.bring_up(states, seq, &layers, held..past);
            let mut inputs = Vec::new();
            for (input, _) in self.packages[package].inputs(DECODE) {
                let known = shared.iter().find(|(given, _)| given == input);
                match (input, known) {
                    (INCOMING, _) => inputs.push((input, hidden.clone())),
                    ("position", _) => inputs.push((input, position.clone())),
                    (_, Some((_, tensor))) => inputs.push((input, tensor.clone())),
                    // The interpreter says what is missing.
                    (_, None) => {}
                }
            }
            let mut outputs = self.packages[package].run(DECODE, &inputs, states)?;
            hidden = outputs.remove(HIDDEN_STATE).ok_or_else(|| no_output(HIDDEN_STATE))?;
            self.keep(states, seq, &layers, past)?;
        }
        hidden.as_floats().map(<[f32]>::to_vec).ok_or_else(|| no_output(HIDDEN_STATE))
    }

    /// Copies the keys and values of some positions from the pages to the states of a chunk.
    fn bring_up(
        &self,
        states: &mut States,
        seq: SeqId,
        layers: &Range<usize>,
        positions: Range<usize>,
    ) {
        if positions.is_empty() {
            return;
        }
        for (which, name) in CACHES.into_iter().enumerate() {
            let at = self.part(which, layers);
            states.edit(name, |shape, values| {
                for position in positions.clone() {
                    let rows = &self.page(seq, position)[at.clone()];
                    for (row, to) in rows.chunks_exact(self.width()).zip(self.rows(shape, position))
                    {
                        row.convert_to_f32_slice(&mut values[to..to + row.len()]);
                    }
                }
            });
        }
    }

    /// Copies the keys and values of a position from the states of a chunk to its page.
    fn keep(
        &mut self,
        states: &States,
        seq: SeqId,
        layers: &Range<usize>,
        position: usize,
    ) -> Result<()> {
        let width = self.width();
        for (which, name) in CACHES.into_iter().enumerate() {
            let state = states.get(name).ok_or_else(|| no_output(name))?;
            let values = state.as_floats().ok_or_else(|| no_output(name))?;
            let places: Vec<usize> = self.rows(state.shape(), position).collect();
            let at = self.part(which, layers);
            let page = &mut self.page_mut(seq, position)[at];
            for (row, from) in page.chunks_exact_mut(width).zip(places) {
                row.convert_from_f32_slice(&values[from..from + width]);
            }
        }
        Ok(())
    }

    fn width(&self) -> usize {
        self.host.anatomy.cache.map_or(1, |[.., width]| width)
    }

    /// The keys (`which` 0) or values (1) of some layers in a page.
    fn part(&self, which: usize, layers: &Range<usize>) -> Range<usize> {
        let [_, heads, width] = self.host.anatomy.cache.unwrap_or([0; 3]);
        let first = which * self.per_position() + layers.start * heads * width;
        first..first + layers.len() * heads * width
    }

    /// Where each head of each layer has a position in a state `(layers, heads, places, features)`, which
    /// may have more of all than the model.
    fn rows(&self, shape: &[usize], position: usize) -> impl Iterator<Item = usize> + use<> {
        let [_, heads, _] = self.host.anatomy.cache.unwrap_or([0; 3]);
        let (all, places, width) = (shape[1], shape[2], shape[3]);
        let row = move |layer, head| ((layer * all + head) * places + position) * width;
        (0..shape[0]).flat_map(move |layer| (0..heads).map(move |head| row(layer, head)))
    }
}
