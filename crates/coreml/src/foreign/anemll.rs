//! Packages of Anemll's layout as a program: embeddings, chunks of layers with one cache in a state, the head.

mod plan;

use baton_graph::{Batch, Limits, SeqId};
use half::f16;

pub(super) use self::plan::{Plan, fix};
use crate::executor::chain::{Arrays, Slot};
use crate::executor::mirrors::SequenceStates;
use crate::executor::pages::Pages;
use crate::executor::{Program, first_rows};
use crate::interpret::Tensor;
use crate::layout::names::anemll as names;
use crate::mil::{DataType, TensorType};
use crate::runtime::{ArrayId, Call, Place, Runtime, StateId};
use crate::{Error, Result, memory};

/// A rest of a prompt that is this long is filled up to a batch; less is taken token by token. A batch is taken to
/// cost about as much as so many tokens.
const WORTH_A_BATCH: usize = 4;

/// Runs such packages.
#[derive(Debug)]
pub(super) struct Layers {
    plan: Plan,
    runtime: Box<dyn Runtime>,
    arrays: Arrays,
    /// The cache of a sequence, as chunks have it.
    states: SequenceStates<StateId>,
    pages: Pages,
    weight_bytes: usize,
}

impl Layers {
    pub fn new(
        plan: &Plan,
        runtime: Box<dyn Runtime>,
        cache: [usize; 3],
        limits: &Limits,
        weight_bytes: usize,
    ) -> Layers {
        Layers {
            plan: plan.clone(),
            runtime,
            arrays: Arrays::default(),
            states: SequenceStates::new(limits.kv_tokens / limits.context.max(1)),
            pages: Pages::new(Some(cache), limits),
            weight_bytes,
        }
    }

    fn array(&mut self, purpose: &str, dtype: DataType, shape: &[usize]) -> Result<ArrayId> {
        let slot = Slot::new(purpose, &TensorType::new(dtype, shape));
        let runtime = &mut self.runtime;
        self.arrays.get(&slot, |ty| runtime.array(ty))
    }

    /// An array of hidden states. Functions go to and fro between two.
    fn hidden(&mut self, side: usize, rows: usize) -> Result<ArrayId> {
        let shape = [1, rows, self.plan.hidden];
        self.array(&format!("hidden/{side}"), DataType::Float16, &shape)
    }

    /// The embeddings of up to `rows` tokens, as the hidden states of so many.
    fn embed(&mut self, tokens: &[u32], rows: usize) -> Result<ArrayId> {
        let Plan { looked_up: n, hidden, embeddings: function, .. } = self.plan.clone();
        let ids = self.array("ids", DataType::Int32, &[1, n])?;
        let to = self.hidden(0, rows)?;
        // What they are looked up into is what layers read, if that is as long.
        let found = match rows == n {
            true => to,
            false => self.array("embedded", DataType::Float16, &[1, n, hidden])?,
        };
        for (i, group) in tokens.chunks(n).enumerate() {
            let filled = group.iter().map(|&id| id as i32).chain(std::iter::repeat(0)).take(n);
            self.runtime.set(ids, Tensor::ints(&[1, n], filled.collect()))?;
            self.runtime.call(&Call {
                package: 0,
                function: &function,
                inputs: vec![(names::INPUT_IDS, ids)],
                outputs: vec![(names::HIDDEN_STATES, found)],
                state: None,
            })?;
            if found != to {
                let mut values = vec![f16::ZERO; group.len() * hidden];
                let mut rows = values.chunks_exact_mut(hidden).enumerate();
                self.runtime.get_rows(Place::Array(found), &mut rows)?;
                let mut rows = values.chunks_exact(hidden).enumerate().map(|(j, v)| (i * n + j, v));
                self.runtime.set_rows(Place::Array(to), &mut rows)?;
            }
        }
        Ok(to)
    }

    /// Evaluates some tokens at a position, as many as `function` takes or fewer, keeps their keys and values,
    /// and says where their hidden states lie.
    fn layers(
        &mut self,
        seq: SeqId,
        function: &str,
        tokens: &[u32],
        position: usize,
    ) -> Result<ArrayId> {
        let Plan { batch, context, chunks, last_rows, .. } = self.plan;
        let (rows, last_rows) = if function == names::INFER { (1, 1) } else { (batch, last_rows) };
        let mut hidden = self.embed(tokens, rows)?;
        let positions = self.array("positions", DataType::Int32, &[rows])?;
        let mask = self.array("mask", DataType::Float16, &[1, 1, rows, context])?;
        let current = self.array("position", DataType::Int32, &[1])?;
        let numbers = (position..position + rows).map(|at| at as i32).collect();
        self.runtime.set(positions, Tensor::ints(&[rows], numbers))?;
        self.runtime.set(current, Tensor::ints(&[1], vec![position as i32]))?;
        let mut seen = memory::repeated(0.0, rows * context).map_err(Error::no_memory)?;
        for (row, seen) in seen.chunks_exact_mut(context).enumerate() {
            // A batch may end behind the context.
            seen[context.min(position + row + 1)..].fill(f32::NEG_INFINITY);
        }
        self.runtime.set(mask, Tensor::floats(&[1, 1, rows, context], seen))?;
        let state = self.filled_state(seq, position)?;
        for chunk in 0..chunks {
            let rows = if chunk + 1 == chunks { last_rows } else { rows };
            let output = self.hidden((chunk + 1) % 2, rows)?;
            self.runtime.call(&Call {
                package: 1 + chunk,
                function,
                inputs: vec![
                    (names::HIDDEN_STATES, hidden),
                    (names::POSITION_IDS, positions),
                    (names::CAUSAL_MASK, mask),
                    (names::CURRENT_POS, current),
                ],
                outputs: vec![(names::OUTPUT_HIDDEN_STATES, output)],
                state: Some(state),
            })?;
            hidden = output;
        }
        self.keep(seq, state, position, tokens.len())?;
        Ok(hidden)
    }

    /// The state of a sequence with all that comes before a position. Until it is kept again, nothing of it is
    /// sure.
    fn filled_state(&mut self, seq: SeqId, position: usize) -> Result<StateId> {
        let Layers { states, runtime, pages, plan, .. } = self;
        let of = states.of::<Error>(seq, || runtime.state(1, names::INFER))?;
        let (state, known) = (of.held, of.mirror.has(seq).min(position));
        of.mirror.holds(seq, 0);
        let layers = 0..plan.sizes().cache[0];
        for which in 0..2 {
            let part = which * layers.end..(which + 1) * layers.end;
            let grid = pages.grid_at(&plan.cache.shape, part).ok_or_else(super::other_model)?;
            let mut rows = pages.rows(seq, which, &layers, known..position, grid);
            runtime.set_rows(Place::State(state, names::KV_CACHE), &mut rows)?;
        }
        Ok(state)
    }

    /// Keeps what chunks have put at some positions of the state.
    fn keep(&mut self, seq: SeqId, state: StateId, position: usize, tokens: usize) -> Result<()> {
        let Layers { states, runtime, pages, plan, .. } = self;
        let layers = 0..plan.sizes().cache[0];
        for which in 0..2 {
            let part = which * layers.end..(which + 1) * layers.end;
            let grid = pages.grid_at(&plan.cache.shape, part).ok_or_else(super::other_model)?;
            for at in position..position + tokens {
                let mut rows = pages.rows_mut((seq, at), which, &layers, at, grid);
                runtime.get_rows(Place::State(state, names::KV_CACHE), &mut rows)?;
            }
        }
        states.of::<Error>(seq, || Ok(state))?.mirror.holds(seq, position + tokens);
        Ok(())
    }

    /// The logits of a token by its hidden state.
    fn head(&mut self, hidden: ArrayId, logits: &mut Vec<f32>) -> Result<()> {
        let Plan { chunks, head, logits: pieces, .. } = self.plan.clone();
        let mut outputs = Vec::new();
        for (name, ty) in &pieces {
            outputs.push((name.as_str(), self.array(name, ty.dtype, &ty.shape)?));
        }
        self.runtime.call(&Call {
            package: 1 + chunks,
            function: &head,
            inputs: vec![(names::HIDDEN_STATES, hidden)],
            outputs: outputs.clone(),
            state: None,
        })?;
        for (_, array) in outputs {
            let piece = self.runtime.get(array)?;
            logits.extend_from_slice(piece.as_floats().ok_or_else(super::other_model)?);
        }
        Ok(())
    }

    /// How many of the next tokens of a prompt go into a batch; none if they are better taken one by one.
    fn batched(&self, position: usize, rest: usize) -> Option<usize> {
        let Plan { batch, context, anywhere, .. } = self.plan;
        let begins = anywhere || position.is_multiple_of(batch);
        let fits = position + batch <= context;
        (begins && fits && rest >= WORTH_A_BATCH.min(batch)).then(|| rest.min(batch))
    }
}

impl Program for Layers {
    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }

    fn input_vocab(&self) -> usize {
        self.plan.sizes().vocab
    }

    fn evaluate(&mut self, batch: &Batch, starts: &[usize]) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        for ((span, &start), first) in batch.spans.iter().zip(starts).zip(first_rows(batch)) {
            let mut done = 0;
            while done < span.tokens.len() {
                let (rest, position) = (&span.tokens[done..], start + done);
                // Only the cache is wanted of a batch: of the last chunk, some give one row, and not all the same.
                match self.batched(position, first.saturating_sub(done)) {
                    Some(n) => {
                        self.layers(span.seq, names::PREFILL, &rest[..n], position)?;
                        done += n;
                    }
                    None => {
                        let hidden = self.layers(span.seq, names::INFER, &rest[..1], position)?;
                        if done >= first {
                            self.head(hidden, &mut logits)?;
                        }
                        done += 1;
                    }
                }
            }
        }
        Ok(logits)
    }

    fn forget(&mut self, seq: SeqId, len: usize) {
        self.states.forget(seq, len);
    }

    fn free(&mut self, seq: SeqId) {
        self.states.free(seq);
    }

    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }
}
