//! Packages of Baton's own layout: prefill, decode and head functions, called one after the other.

use std::collections::BTreeMap;
use std::ops::Range;

use baton_graph::{Batch, Graph, Limits, SeqId, Span};
use baton_weights::Weights;

use super::chain::{Arrays, Bindings, Slot, chain};
use super::mirrors::{Mirror, SequenceStates};
use super::pages::Pages;
use super::roles::Roles;
use super::shapes::{Form, bounded, check_head};
use super::{Program, first_rows, other_model};
use crate::host::Host;
use crate::interpret::{Extreme, Tensor};
use crate::lower::{DECODE, HEAD, HIDDEN_STATE, POSITION};
use crate::mil::{Function, TensorType};
use crate::package::Package;
use crate::runtime::{ArrayId, Call, Runtime, StateId};
use crate::{Error, Result};

/// Runs the functions of a package, or of all packages of a model in chunks.
///
/// Prompts go through the prefill functions; single tokens through the decode function, if there is one,
/// whose states are then a copy of the cache.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) host: Host,
    pub(super) runtime: Box<dyn Runtime>,
    /// The packages of layers, in their order, with the layers of each.
    pub(super) chunks: Vec<(usize, Range<usize>)>,
    /// The packages of the head, in the order of the vocabulary, with their results.
    heads: Vec<(usize, Vec<(String, TensorType)>)>,
    /// What the head reads.
    head_input: TensorType,
    /// New tokens and history of each prefill function, which all chunks have.
    pub(super) functions: Vec<(usize, usize)>,
    /// Places and type of the states of the decode function, for each chunk.
    pub(super) decode: Option<Vec<TensorType>>,
    /// The arrays of each function, by its name and chunk.
    pub(super) bindings: BTreeMap<String, Vec<Bindings>>,
    pub(super) arrays: Arrays,
    /// What the arrays of earlier keys and values hold, and for which history they are.
    pub(super) past: (Mirror, usize),
    pub(super) states: SequenceStates<Vec<StateId>>,
    pub(super) pages: Pages,
    /// Rows of all heads.
    vocab: usize,
    weight_bytes: usize,
}

impl Own {
    /// As [`PackageExecutor::with_runtime`](super::PackageExecutor::with_runtime).
    pub fn new(
        graph: &Graph,
        weights: &Weights,
        packages: &[&Package],
        runtime: Box<dyn Runtime>,
        limits: &Limits,
    ) -> Result<Own> {
        let Roles { chunks, heads, functions, decode, head_rows, factor } =
            Roles::of(packages.iter().copied())?;
        let forms = functions.iter().map(|&(tokens, history)| Form::prefill(tokens, history));
        let mut forms = forms.collect::<Result<Vec<Form>>>()?;
        let longest = functions.iter().map(|(_, history)| *history).max();
        let starts = functions.iter().any(|(_, history)| *history == 0);
        if !starts || longest.is_none_or(|longest| longest + 1 < limits.context) {
            let room = longest.filter(|_| starts).map_or(0, |longest| longest + 1);
            return Err(Error::beyond_packages(limits.context, room));
        }
        let host = Host::new(graph, weights, factor)?;
        let layers = chunks.last().map_or(0, |(_, layers)| layers.end);
        if host.anatomy.cache.is_some_and(|[expected, ..]| expected != layers) {
            return Err(Error::malformed(format!("its {layers} layers are not the model's")));
        }
        let function = |package: usize, name: &str| {
            packages[package].model.program.functions.get(name).ok_or_else(other_model)
        };
        let decode = decode && host.anatomy.cache.is_some();
        let state = |&(package, _): &(usize, _)| {
            let mut states = function(package, DECODE)?.states();
            let first = states.next().map(|(_, ty)| ty.clone());
            first.ok_or_else(|| Error::malformed(format!("its function {DECODE:?} has no state")))
        };
        let decode = decode.then(|| chunks.iter().map(state).collect::<Result<Vec<_>>>());
        let decode = decode.transpose()?;
        let state = decode.as_ref().and_then(|states| states.first());
        forms.extend(state.map(Form::decode).transpose()?);
        let mut known = host.names();
        known.push(POSITION.into());
        let mut bindings = BTreeMap::new();
        for form in forms {
            let found = chunks.iter().map(|(package, _)| function(*package, &form.name));
            let found = found.collect::<Result<Vec<&Function>>>()?;
            for (i, (function, (_, layers))) in found.iter().zip(&chunks).enumerate() {
                // What the others end with is what those behind them read.
                let hidden = (i + 1 == found.len()).then_some(host.anatomy.hidden);
                form.check(function, layers.len(), hidden, &host.anatomy)?;
            }
            let bound = chain(&found, &known)?;
            bindings.insert(form.name, bound);
        }
        bounded(HEAD, host.anatomy.hidden.max(graph.vocab()), head_rows)?;
        let dtype = crate::mil::DataType::Float16;
        let head_input = TensorType::new(dtype, &[1, host.anatomy.hidden, 1, head_rows]);
        let rows = heads.iter().try_fold(0usize, |sum, &package| {
            Ok::<_, Error>(sum.saturating_add(check_head(function(package, HEAD)?, &head_input)?))
        })?;
        if rows != graph.vocab() {
            return Err(other_model());
        }
        let outputs = |&package: &usize| {
            let outputs = function(package, HEAD)?.outputs();
            Ok((package, outputs.map(|(name, ty)| (name.to_owned(), ty.clone())).collect()))
        };
        Ok(Own {
            vocab: rows,
            weight_bytes: packages.iter().map(|package| package.weight_bytes() as usize).sum(),
            heads: heads.iter().map(outputs).collect::<Result<_>>()?,
            head_input,
            pages: Pages::new(host.anatomy.cache, limits),
            // As many as have whole contexts in the cache.
            states: SequenceStates::new(limits.kv_tokens / limits.context.max(1)),
            past: (Mirror::default(), 0),
            arrays: Arrays::default(),
            host,
            runtime,
            chunks,
            functions,
            decode,
            bindings,
        })
    }

    /// Evaluates a span whose pages are there already, and appends the wanted rows of its hidden state.
    fn span(
        &mut self,
        span: &Span,
        start: usize,
        first_row: usize,
        rows: &mut Vec<f32>,
    ) -> Result<()> {
        let mut done = 0;
        while done < span.tokens.len() {
            let (rest, past) = (&span.tokens[done..], start + done);
            let (hidden, tokens, columns) = match rest {
                [token] if self.decodes(past) => (self.decode_token(span.seq, *token, past)?, 1, 1),
                _ => self.prefill_tokens(span.seq, rest, past)?,
            };
            if first_row < done + tokens {
                let hidden = self.runtime.get(hidden)?;
                let hidden = hidden.as_floats().ok_or_else(other_model)?;
                for column in first_row.saturating_sub(done)..tokens {
                    let row = hidden.get(column..).ok_or_else(other_model)?;
                    rows.extend(row.iter().step_by(columns));
                }
            }
            done += tokens;
        }
        Ok(())
    }

    /// Logits of rows of the hidden state.
    fn head(&mut self, rows: &[f32]) -> Result<Vec<f32>> {
        let hidden = self.host.anatomy.hidden;
        let mut logits = Vec::new();
        let columns = self.head_input.shape[3];
        let each = self.runtime.together().saturating_mul(hidden * columns);
        for rows in rows.chunks(each) {
            self.head_calls(rows, &mut logits)?;
        }
        // What many rows at once have taken is not kept.
        let first = Slot::head_call(0);
        let unwanted =
            self.arrays.drain(|slot| slot.is_of_head() && !slot.purpose.starts_with(&first));
        unwanted.into_iter().for_each(|array| self.runtime.release(array));
        let wanted = rows.len() / hidden * self.vocab;
        if logits.len() == wanted { Ok(logits) } else { Err(other_model()) }
    }

    /// As [`Own::head`], with one call of each package for as many rows as it takes at once.
    fn head_calls(&mut self, rows: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        let Own { heads, head_input, arrays, runtime, host, .. } = self;
        let (hidden, columns) = (host.anatomy.hidden, head_input.shape[3]);
        let groups: Vec<&[f32]> = rows.chunks(hidden * columns).collect();
        let mut array = |call: usize, name: &str, ty: &TensorType| {
            arrays.get(&Slot::of_head(call, name, ty), |ty| runtime.array(ty))
        };
        let (mut inputs, mut outputs) = (Vec::new(), vec![Vec::new(); heads.len()]);
        for call in 0..groups.len() {
            inputs.push(array(call, HIDDEN_STATE, head_input)?);
            for (head, (_, results)) in heads.iter().enumerate() {
                let of =
                    |(name, ty): &(String, TensorType)| array(call, &format!("{head}/{name}"), ty);
                outputs[head].push(results.iter().map(of).collect::<Result<Vec<ArrayId>>>()?);
            }
        }
        for (group, &input) in groups.iter().zip(&inputs) {
            let mut x = vec![0.0; hidden * columns];
            for (column, row) in group.chunks_exact(hidden).enumerate() {
                x[column..].iter_mut().step_by(columns).zip(row).for_each(|(x, &v)| *x = v);
            }
            runtime.set(input, Tensor::floats(&head_input.shape, x))?;
        }
        for ((package, results), outputs) in heads.iter().zip(&outputs) {
            let call = |(&input, outputs): (&ArrayId, &Vec<ArrayId>)| Call {
                package: *package,
                function: HEAD,
                inputs: vec![(HIDDEN_STATE, input)],
                outputs: results
                    .iter()
                    .map(|(name, _)| name.as_str())
                    .zip(outputs.iter().copied())
                    .collect(),
                state: None,
            };
            let calls: Vec<Call<'_>> = inputs.iter().zip(outputs).map(call).collect();
            let job = runtime.start(&calls)?;
            runtime.wait(job)?;
        }
        for (call, group) in groups.iter().enumerate() {
            let pieces = outputs.iter().flat_map(|outputs| &outputs[call]);
            let pieces = pieces.map(|&piece| runtime.get(piece)).collect::<Result<Vec<_>>>()?;
            for column in 0..group.len() / hidden {
                for piece in &pieces {
                    let piece = piece.as_floats().ok_or_else(other_model)?;
                    let row = piece.get(column..).ok_or_else(other_model)?;
                    logits.extend(row.iter().step_by(columns));
                }
            }
        }
        Ok(())
    }
}

impl Program for Own {
    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }

    fn input_vocab(&self) -> usize {
        self.host.vocab()
    }

    fn evaluate(&mut self, batch: &Batch, starts: &[usize]) -> Result<Vec<f32>> {
        let mut rows = Vec::new();
        for ((span, &start), first) in batch.spans.iter().zip(starts).zip(first_rows(batch)) {
            self.span(span, start, first, &mut rows)?;
        }
        self.head(&rows)
    }

    fn forget(&mut self, seq: SeqId, len: usize) {
        self.past.0.forget(seq, len);
        self.states.forget(seq, len);
    }

    fn free(&mut self, seq: SeqId) {
        self.states.free(seq);
    }

    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    fn extremes(&self) -> Vec<Extreme> {
        self.runtime.extremes()
    }
}
