//! The calls for some new tokens of a sequence: all chunks, one after the other.

use std::ops::Range;

use baton_graph::SeqId;

use super::other_model;
use super::own::Own;
use crate::host::Host;
use crate::interpret::Tensor;
use crate::lower::{CACHES, DECODE, HIDDEN_STATE, NEW, PAST, POSITION, prefill_name};
use crate::runtime::{ArrayId, Call, Job, Place, StateId};
use crate::{Error, Result};

impl Own {
    /// The function for `tokens` new tokens behind `past` others: the one with the fewest columns that
    /// takes all of them, else the one with the most.
    fn function(&self, tokens: usize, past: usize) -> Option<(usize, usize)> {
        let fits = self.functions.iter().copied().filter(|(_, history)| *history >= past);
        fits.min_by_key(|&(columns, history)| match columns >= tokens {
            true => (0, columns, history),
            false => (1, usize::MAX - columns, history),
        })
    }

    /// Whether a token behind `past` others goes through the decode function.
    pub(super) fn decodes(&self, past: usize) -> bool {
        let places = |ty: &crate::mil::TensorType| ty.shape[2];
        self.decode.as_ref().is_some_and(|states| states.iter().all(|ty| past < places(ty)))
    }

    /// Evaluates the first of some tokens behind `past` others. Returns where their hidden state lies, how
    /// many they were, and the number of its columns.
    pub(super) fn prefill_tokens(
        &mut self,
        seq: SeqId,
        rest: &[u32],
        past: usize,
    ) -> Result<(ArrayId, usize, usize)> {
        let (columns, history) =
            self.function(rest.len(), past).ok_or_else(|| Error::Unsupported {
                what: format!("a history of {past} tokens by this package"),
                instead: "use a shorter context (-c), or compile the model with a larger --context"
                    .into(),
            })?;
        let tokens = &rest[..rest.len().min(columns)];
        let name = prefill_name(columns, history);
        let places = Host::places(past, columns, history);
        self.set_inputs(&name, tokens, past, columns, &places)?;
        let known = self.begin_history(seq, past, history);
        let positions = past..past + tokens.len();
        let mut hidden = None;
        let mut made: Option<usize> = None;
        for chunk in 0..self.chunks.len() {
            self.copy_history(seq, &name, chunk, known..past)?;
            let (job, output) = self.start(&name, chunk, None)?;
            // While this chunk computes, what the one before has made is kept.
            let kept = made.map_or(Ok(()), |made| self.keep(seq, &name, made, &positions));
            self.runtime.wait(job)?;
            kept?;
            (made, hidden) = (Some(chunk), Some(output));
        }
        made.map_or(Ok(()), |made| self.keep(seq, &name, made, &positions))?;
        if history > 0 {
            self.past.0.holds(seq, past);
        }
        Ok((hidden.ok_or_else(other_model)?, tokens.len(), columns))
    }

    /// Evaluates a token at a position with the decode function, and says where its hidden state lies.
    pub(super) fn decode_token(
        &mut self,
        seq: SeqId,
        token: u32,
        position: usize,
    ) -> Result<ArrayId> {
        let places =
            self.decode.as_ref().and_then(|states| states.first()).map_or(0, |ty| ty.shape[2]);
        let places: Vec<Option<usize>> =
            (0..places).map(|place| (place <= position).then_some(place)).collect();
        self.set_inputs(DECODE, &[token], position, 1, &places)?;
        let Own { states, runtime, chunks, .. } = self;
        let packages = chunks.iter().map(|(package, _)| *package);
        let make = || crate::runtime::states(&mut **runtime, packages, DECODE);
        let held = states.of::<Error>(seq, make)?;
        let (states, known) = (held.held.clone(), held.mirror.has(seq));
        // Until all of it was right, nothing is.
        held.mirror.holds(seq, 0);
        let mut hidden = None;
        for (chunk, &state) in states.iter().enumerate() {
            self.fill_state(seq, chunk, state, known..position)?;
            let (job, output) = self.start(DECODE, chunk, Some(state))?;
            self.runtime.wait(job)?;
            self.keep_state(seq, chunk, state, position)?;
            hidden = Some(output);
        }
        self.states.of::<Error>(seq, || Ok(states))?.mirror.holds(seq, position + 1);
        hidden.ok_or_else(other_model)
    }

    /// The array of a slot.
    fn array(&mut self, slot: &super::chain::Slot) -> Result<ArrayId> {
        let runtime = &mut self.runtime;
        self.arrays.get(slot, |ty| runtime.array(ty))
    }

    /// Sets what all chunks are given alike.
    fn set_inputs(
        &mut self,
        name: &str,
        tokens: &[u32],
        start: usize,
        columns: usize,
        places: &[Option<usize>],
    ) -> Result<()> {
        let mut given = self.host.inputs(tokens, start, columns, places);
        given.push((POSITION.into(), Tensor::ints(&[1], vec![start as i32])));
        for (input, tensor) in given {
            let mut inputs = self.bindings[name].iter().flat_map(|chunk| &chunk.inputs);
            if let Some(slot) = inputs.find(|(known, _)| *known == input).map(|(_, slot)| slot) {
                let runtime = &mut self.runtime;
                let array = self.arrays.get(slot, |ty| runtime.array(ty))?;
                runtime.set(array, tensor)?;
            }
        }
        Ok(())
    }

    /// Begins to run a chunk's function, and says where its hidden state will lie.
    fn start(
        &mut self,
        name: &str,
        chunk: usize,
        state: Option<StateId>,
    ) -> Result<(Job, ArrayId)> {
        let bindings = self.bindings[name][chunk].clone();
        let mut arrays = |slots: &'_ [(String, super::chain::Slot)]| {
            slots.iter().map(|(_, slot)| self.array(slot)).collect::<Result<Vec<_>>>()
        };
        let (inputs, outputs) = (arrays(&bindings.inputs)?, arrays(&bindings.outputs)?);
        fn named<'a>(
            slots: &'a [(String, super::chain::Slot)],
            arrays: &[ArrayId],
        ) -> Vec<(&'a str, ArrayId)> {
            slots.iter().map(|(name, _)| name.as_str()).zip(arrays.iter().copied()).collect()
        }
        let call = Call {
            package: self.chunks[chunk].0,
            function: name,
            inputs: named(&bindings.inputs, &inputs),
            outputs: named(&bindings.outputs, &outputs),
            state,
        };
        let hidden = call.outputs.iter().find(|(name, _)| *name == HIDDEN_STATE);
        let hidden = hidden.map(|(_, array)| *array).ok_or_else(other_model)?;
        Ok((self.runtime.start(&[call])?, hidden))
    }

    /// Gives the arrays for other histories back, whose memory is as large as the cache, and says how many of
    /// a sequence's first `past` positions those for this one hold already.
    fn begin_history(&mut self, seq: SeqId, past: usize, history: usize) -> usize {
        if history == 0 {
            return past;
        }
        if self.past.1 != history {
            self.past = (Default::default(), history);
            let unwanted = self.arrays.drain(|slot| slot.is_past());
            unwanted.into_iter().for_each(|array| self.runtime.release(array));
        }
        let known = self.past.0.has(seq).min(past);
        // From now on nothing of another sequence is sure to be there.
        self.past.0.holds(seq, known);
        known
    }

    /// Copies positions of the cache to the inputs of a chunk's function.
    fn copy_history(
        &mut self,
        seq: SeqId,
        name: &str,
        chunk: usize,
        positions: Range<usize>,
    ) -> Result<()> {
        let layers = self.chunks[chunk].1.clone();
        for (which, input) in PAST.into_iter().enumerate() {
            let inputs = &self.bindings[name][chunk].inputs;
            let Some((_, slot)) = inputs.iter().find(|(name, _)| name == input) else { continue };
            let grid = self.pages.grid(&slot.ty.shape, layers.len()).ok_or_else(other_model)?;
            let slot = slot.clone();
            let place = Place::Array(self.array(&slot)?);
            let mut rows = self.pages.rows(seq, which, &layers, positions.clone(), grid);
            self.runtime.set_rows(place, &mut rows)?;
        }
        Ok(())
    }

    /// Keeps the keys and values that a chunk's function made for these positions.
    fn keep(
        &mut self,
        seq: SeqId,
        name: &str,
        chunk: usize,
        positions: &Range<usize>,
    ) -> Result<()> {
        let layers = self.chunks[chunk].1.clone();
        for (which, output) in NEW.into_iter().enumerate() {
            let Some(slot) = self.bindings[name][chunk].output(output).cloned() else { continue };
            let grid = self.pages.grid(&slot.ty.shape, layers.len()).ok_or_else(other_model)?;
            let array = self.array(&slot)?;
            for (column, position) in positions.clone().enumerate() {
                let at = (seq, position);
                let mut rows = self.pages.rows_mut(at, which, &layers, column, grid);
                self.runtime.get_rows(Place::Array(array), &mut rows)?;
            }
        }
        Ok(())
    }

    /// Copies positions of the cache to the state of a chunk.
    fn fill_state(
        &mut self,
        seq: SeqId,
        chunk: usize,
        state: StateId,
        positions: Range<usize>,
    ) -> Result<()> {
        let layers = self.chunks[chunk].1.clone();
        let grid = self.state_grid(chunk)?;
        for (which, name) in CACHES.into_iter().enumerate() {
            let mut rows = self.pages.rows(seq, which, &layers, positions.clone(), grid);
            self.runtime.set_rows(Place::State(state, name), &mut rows)?;
        }
        Ok(())
    }

    /// Keeps what the decode function of a chunk has put at a position of its state.
    fn keep_state(
        &mut self,
        seq: SeqId,
        chunk: usize,
        state: StateId,
        position: usize,
    ) -> Result<()> {
        let layers = self.chunks[chunk].1.clone();
        let grid = self.state_grid(chunk)?;
        for (which, name) in CACHES.into_iter().enumerate() {
            let at = (seq, position);
            let mut rows = self.pages.rows_mut(at, which, &layers, position, grid);
            self.runtime.get_rows(Place::State(state, name), &mut rows)?;
        }
        Ok(())
    }

    fn state_grid(&self, chunk: usize) -> Result<super::pages::Grid> {
        let ty = self.decode.as_ref().and_then(|states| states.get(chunk));
        let layers = self.chunks[chunk].1.len();
        ty.and_then(|ty| self.pages.grid(&ty.shape, layers)).ok_or_else(other_model)
    }
}
