//! Packages of coreml-llm-cli's layout as a program: a window of tokens that moves on, and caches that move
//! with it.
//!
//! Every token is computed with all of its window, so that the tokens of a sequence are remembered, not only
//! what is cached of them.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use baton_graph::{Batch, Limits, SeqId};
use half::f16;
use half::slice::HalfFloatSliceExt;

use self::plan::Chunk;
pub(super) use self::plan::Plan;
use super::other_model;
use crate::executor::chain::{Arrays, Slot};
use crate::executor::mirrors::{SequenceState, SequenceStates};
use crate::executor::pages::Pages;
use crate::executor::{Program, first_rows};
use crate::interpret::Tensor;
use crate::layout::names::llm_cli as names;
use crate::mil::{DataType, TensorType};
use crate::runtime::{ArrayId, Call, Place, Runtime};
use crate::{Error, Result, memory};

/// The tokens of a sequence, as far as they are known.
#[derive(Clone, Debug, Default)]
struct Text {
    tokens: Vec<u32>,
    /// From here on; of what is before it, the cache was imported.
    known: usize,
}

/// The caches of a sequence.
#[derive(Debug)]
struct Caches {
    /// Keys and values of each layer.
    arrays: Vec<[ArrayId; 2]>,
    /// The positions that they hold end here: they are of use for a window that begins here alone.
    end: usize,
}

/// Runs such packages.
#[derive(Debug)]
pub(super) struct Windows {
    plan: Plan,
    runtime: Box<dyn Runtime>,
    arrays: Arrays,
    caches: SequenceStates<Caches>,
    texts: HashMap<SeqId, Text>,
    pages: Pages,
    weight_bytes: usize,
}

impl Windows {
    pub fn new(
        plan: &Plan,
        runtime: Box<dyn Runtime>,
        cache: [usize; 3],
        limits: &Limits,
        weight_bytes: usize,
    ) -> Windows {
        Windows {
            plan: plan.clone(),
            runtime,
            arrays: Arrays::default(),
            caches: SequenceStates::new(limits.kv_tokens / limits.context.max(1)),
            texts: HashMap::new(),
            pages: Pages::new(Some(cache), limits),
            weight_bytes,
        }
    }

    fn array(&mut self, purpose: &str, ty: &TensorType) -> Result<ArrayId> {
        let runtime = &mut self.runtime;
        self.arrays.get(&Slot::new(purpose, ty), |ty| runtime.array(ty))
    }

    /// The array of what is new in the cache of a layer.
    fn new_cache(&mut self, layer: usize, which: usize) -> Result<ArrayId> {
        let ty = self.plan.new.clone();
        self.array(&format!("new/{layer}/{which}"), &ty)
    }

    /// Evaluates the window that begins at `start`, of which the tokens from `first_new` on are new, and appends
    /// the logits of those from `first_row` on. A full window moves into the caches.
    fn window(
        &mut self,
        seq: SeqId,
        tokens: &[u32],
        start: usize,
        first_new: usize,
        first_row: usize,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        let window = self.plan.window;
        let held = self.filled_caches(seq, start)?;
        let chunks = self.plan.chunks.len();
        let int = |shape: &[usize]| TensorType::new(DataType::Int32, shape);
        let ids = self.array(names::INPUT_IDS, &int(&[1, window]))?;
        let length = self.array(names::FULL_SEQUENCE_LENGTH, &int(&[1]))?;
        let filled = tokens.iter().map(|&id| id as i32).chain(std::iter::repeat(0)).take(window);
        self.runtime.set(ids, Tensor::ints(&[1, window], filled.collect()))?;
        self.runtime.set(length, Tensor::ints(&[1], vec![(start + window) as i32]))?;
        for chunk in 0..chunks {
            if chunk + 1 == chunks && first_row >= tokens.len() {
                break;
            }
            self.chunk(chunk, &held)?;
        }
        self.keep(seq, start, first_new..tokens.len())?;
        for row in first_row..tokens.len() {
            for (name, ty) in self.plan.logits.clone() {
                let array = self.array(&name, &ty)?;
                let mut values = vec![f16::ZERO; ty.shape[2]];
                let mut rows = std::iter::once((row, &mut values[..]));
                self.runtime.get_rows(Place::Array(array), &mut rows)?;
                logits.extend(values.to_f32_vec());
            }
        }
        match tokens.len() == window {
            true => self.move_on(seq, start),
            false => {
                self.caches_of(seq)?.mirror.holds(seq, start);
                Ok(())
            }
        }
    }

    fn chunk(&mut self, at: usize, held: &[[ArrayId; 2]]) -> Result<()> {
        let Chunk { function, inputs, outputs, first, layers } = self.plan.chunks[at].clone();
        let caches: Vec<_> = (0..layers).map(|i| (names::cache(i), names::new_cache(i))).collect();
        // Which layer's keys or values have that name.
        let place = |name: &str, new: bool| {
            let matches = |(old, made): &([String; 2], [String; 2])| {
                let names = if new { made } else { old };
                names.iter().position(|own| own == name)
            };
            caches.iter().enumerate().find_map(|(i, both)| Some((i, matches(both)?)))
        };
        // The hidden state goes to and fro between two arrays.
        let side = |name: &str| match name {
            names::X if at > 0 => format!("x/{}", (at + 1) % 2),
            names::X | names::NEW_X => format!("x/{}", at % 2),
            other => other.to_owned(),
        };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (name, ty) in &inputs {
            let array = match place(name, false) {
                Some((layer, which)) => held[first + layer][which],
                None => self.array(&side(name), ty)?,
            };
            reads.push((name.as_str(), array));
        }
        for (name, ty) in &outputs {
            let array = match place(name, true) {
                Some((layer, which)) => self.new_cache(first + layer, which)?,
                None => self.array(&side(name), ty)?,
            };
            writes.push((name.as_str(), array));
        }
        self.runtime.call(&Call {
            package: at,
            function: &function,
            inputs: reads,
            outputs: writes,
            state: None,
        })
    }

    /// The caches of a sequence with what is before a window. Until they are said to hold it, nothing of them is
    /// sure.
    fn filled_caches(&mut self, seq: SeqId, start: usize) -> Result<Vec<[ArrayId; 2]>> {
        let Windows { plan, runtime, caches, pages, .. } = self;
        let make = || {
            let mut made = Vec::new();
            while made.len() < 2 * plan.layers {
                match runtime.array(&plan.cache) {
                    Ok(array) => made.push(array),
                    Err(error) => {
                        made.into_iter().for_each(|array| runtime.release(array));
                        return Err(error);
                    }
                }
            }
            Ok::<_, Error>(Caches { arrays: made.as_chunks::<2>().0.to_vec(), end: 0 })
        };
        let of = caches.of(seq, make)?;
        let held = of.held.arrays.clone();
        // What is in front of the text is hidden.
        let is_there = start == 0 || of.mirror.has(seq) == start && of.held.end == start;
        of.mirror.holds(seq, 0);
        of.held.end = start;
        if is_there {
            return Ok(held);
        }
        let &[_, heads, width, places] = &plan.cache.shape[..] else { unreachable!("checked") };
        let cached = start.saturating_sub(places)..start;
        // A column for each position, the last of them at the end.
        let column = |position: usize| places - (start - position);
        let grid = pages.grid(&[1, heads, 1, width], 1).ok_or_else(other_model)?;
        for (layer, arrays) in held.iter().enumerate() {
            let layers = layer..layer + 1;
            for (which, &array) in arrays.iter().enumerate() {
                let values = memory::repeated(f16::ZERO, heads * width * places);
                let mut values = values.map_err(Error::no_memory)?;
                for position in cached.clone() {
                    let at = position..position + 1;
                    let rows = pages.rows(seq, which, &layers, at, grid);
                    for (head, (_, row)) in rows.enumerate() {
                        for (feature, &value) in row.iter().enumerate() {
                            values[(head * width + feature) * places + column(position)] = value;
                        }
                    }
                }
                let mut rows = values.chunks_exact(places).enumerate();
                runtime.set_rows(Place::Array(array), &mut rows)?;
            }
        }
        Ok(held)
    }

    /// Keeps what layers have made for some tokens of the window.
    fn keep(&mut self, seq: SeqId, start: usize, columns: std::ops::Range<usize>) -> Result<()> {
        let &[_, heads, width, window] = &self.plan.new.shape[..] else { unreachable!("checked") };
        let grid = self.pages.grid(&[1, heads, 1, width], 1).ok_or_else(other_model)?;
        let mut values = vec![f16::ZERO; heads * width * window];
        for layer in 0..self.plan.layers {
            let layers = layer..layer + 1;
            for which in 0..2 {
                let array = self.new_cache(layer, which)?;
                let mut rows = values.chunks_exact_mut(window).enumerate();
                self.runtime.get_rows(Place::Array(array), &mut rows)?;
                for column in columns.clone() {
                    let at = (seq, start + column);
                    let rows = self.pages.rows_mut(at, which, &layers, 0, grid);
                    for (head, (_, row)) in rows.enumerate() {
                        for (feature, value) in row.iter_mut().enumerate() {
                            *value = values[(head * width + feature) * window + column];
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves a full window into the caches.
    fn move_on(&mut self, seq: SeqId, start: usize) -> Result<()> {
        let held = self.caches_of(seq)?.held.arrays.clone();
        let (function, package) = (self.plan.processor.clone(), self.plan.chunks.len());
        let ty = self.plan.cache.clone();
        for (layer, arrays) in held.into_iter().enumerate() {
            let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
            for (which, [old, new, updated]) in names::CACHES.into_iter().enumerate() {
                inputs.extend([(old, arrays[which]), (new, self.new_cache(layer, which)?)]);
                outputs.push((updated, self.array(&format!("spare/{which}"), &ty)?));
            }
            let made = [outputs[0].1, outputs[1].1];
            self.runtime.call(&Call {
                package,
                function: &function,
                inputs,
                outputs,
                state: None,
            })?;
            // What it has read is where it writes the next time, also if a later layer fails.
            self.caches_of(seq)?.held.arrays[layer] = made;
            for (which, array) in arrays.into_iter().enumerate() {
                self.arrays.put(Slot::new(format!("spare/{which}"), &ty), array);
            }
        }
        let end = start + self.plan.window;
        let of = self.caches_of(seq)?;
        of.held.end = end;
        of.mirror.holds(seq, end);
        Ok(())
    }

    /// The caches that a sequence has already.
    fn caches_of(&mut self, seq: SeqId) -> Result<&mut SequenceState<Caches>> {
        self.caches.of(seq, || Err(other_model()))
    }
}

impl Program for Windows {
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
        let window = self.plan.window;
        let mut logits = Vec::new();
        for ((span, &start), first) in batch.spans.iter().zip(starts).zip(first_rows(batch)) {
            let text = self.texts.entry(span.seq).or_default();
            text.tokens.truncate(start);
            if text.tokens.len() < start {
                text.tokens.resize(start, 0);
                text.known = start;
            }
            text.tokens.extend_from_slice(&span.tokens);
            let (known, end) = (text.known, start + span.tokens.len());
            let mut at = start;
            while at < end {
                let begin = at - at % window;
                if known > begin {
                    return Err(imported(window));
                }
                let stop = end.min(begin + window);
                let tokens = self.texts[&span.seq].tokens[begin..stop].to_vec();
                let first_row = (start + first).clamp(at, stop) - begin;
                self.window(span.seq, &tokens, begin, at - begin, first_row, &mut logits)?;
                at = stop;
            }
        }
        Ok(logits)
    }

    fn forget(&mut self, seq: SeqId, len: usize) {
        self.caches.forget(seq, len);
        if len == 0 {
            self.texts.remove(&seq);
        } else if let Some(text) = self.texts.get_mut(&seq) {
            text.tokens.truncate(len);
            text.known = text.known.min(len);
        }
    }

    fn free(&mut self, seq: SeqId) {
        self.caches.free(seq);
    }

    fn copied(&mut self, from: SeqId, to: SeqId, len: usize) {
        let Some(mut text) = self.texts.get(&from).cloned() else { return };
        text.tokens.truncate(len);
        text.known = text.known.min(len);
        self.texts.insert(to, text);
    }

    fn can_import(&self, end: usize) -> Result<()> {
        let window = self.plan.window;
        if end.is_multiple_of(window) { Ok(()) } else { Err(imported(window)) }
    }

    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }
}

/// The tokens behind a cache that was handed over are not known, and the window has to be computed with all of its.
fn imported(window: usize) -> Error {
    Error::Unsupported {
        what: format!(
            "going on behind a cache that was handed over, within a window of {window} tokens,"
        ),
        instead: "answer by another unit, such as --decode cpu, or compute the prompt here"
            .to_owned(),
    }
}
