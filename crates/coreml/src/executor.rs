//! A package as an executor: its functions called one after the other, its cache kept beside them.
//!
//! ```text
//! roles     what each package is for
//! shapes    whether its functions have the tensors for that
//! chain     which arrays functions share
//! pages     the cache
//! mirrors   which of it functions have already
//! steps     the calls of some new tokens
//! ```

mod chain;
mod mirrors;
mod pages;
mod roles;
mod shapes;
mod steps;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use baton_graph::{Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, SeqId, Span, Usage};
use baton_weights::Weights;

use self::chain::{Arrays, Bindings, Slot, chain};
use self::mirrors::{Mirror, SequenceStates};
use self::pages::Pages;
use self::roles::Roles;
use self::shapes::{Form, bounded, check_head};
use crate::files::Hashes;
use crate::host::Host;
use crate::interpret::{Extreme, Interpreter, Tensor};
use crate::lower::{DECODE, HEAD, HIDDEN_STATE, POSITION};
use crate::mil::{Function, TensorType};
use crate::package::Package;
use crate::runtime::{ArrayId, Call, Device, Interpreted, Kept, Runtime};
use crate::unit::NAME;
use crate::{Error, Result};

/// Runs the functions of a package, or of all packages of a model in chunks.
///
/// Prompts go through the prefill functions; single tokens through the decode function, if there is one,
/// whose states are then a copy of the cache.
#[derive(Debug)]
pub struct PackageExecutor {
    graph: Graph,
    host: Host,
    runtime: Box<dyn Runtime>,
    /// The packages of layers, in their order, with the layers of each.
    chunks: Vec<(usize, Range<usize>)>,
    /// The packages of the head, in the order of the vocabulary, with their results.
    heads: Vec<(usize, Vec<(String, TensorType)>)>,
    /// What the head reads.
    head_input: TensorType,
    /// New tokens and history of each prefill function, which all chunks have.
    functions: Vec<(usize, usize)>,
    /// Places and type of the states of the decode function, for each chunk.
    decode: Option<Vec<TensorType>>,
    /// The arrays of each function, by its name and chunk.
    bindings: BTreeMap<String, Vec<Bindings>>,
    arrays: Arrays,
    /// What the arrays of earlier keys and values hold, and for which history they are.
    past: (Mirror, usize),
    states: SequenceStates,
    limits: Limits,
    pages: Pages,
    weight_bytes: usize,
    kept: Vec<Kept>,
}

impl PackageExecutor {
    /// The executor of packages that were made of `graph`, each with the interpreter that runs it, in the
    /// order of [`Lowering::parts`](crate::lower::Lowering::parts).
    ///
    /// # Errors
    /// If they are not all of the graph, have no functions for contexts as long as the limits say, or have some
    /// whose tensors are not what their names and the graph say.
    pub fn new(
        graph: &Graph,
        weights: &Weights,
        packages: Vec<(&Package, Interpreter)>,
        limits: Limits,
    ) -> Result<PackageExecutor> {
        let (packages, interpreters): (Vec<_>, Vec<_>) = packages.into_iter().unzip();
        let runtime = Box::new(Interpreted::new(interpreters));
        PackageExecutor::with_runtime(graph, weights, &packages, runtime, limits)
    }

    /// As [`PackageExecutor::new`], with packages at their paths that a device runs, and what is known of
    /// their files.
    ///
    /// # Errors
    /// As [`PackageExecutor::new`], and as [`Device::open`].
    pub(crate) fn on(
        device: &Device,
        graph: &Graph,
        weights: &Weights,
        packages: &[(PathBuf, Package)],
        hashes: &Hashes,
        limits: Limits,
    ) -> Result<PackageExecutor> {
        let opened: Vec<_> = packages.iter().map(|(path, package)| (&**path, package)).collect();
        let (runtime, kept) = device.open(&opened, hashes)?;
        let packages: Vec<&Package> = packages.iter().map(|(_, package)| package).collect();
        let executor = PackageExecutor::with_runtime(graph, weights, &packages, runtime, limits)?;
        Ok(executor.keeping(kept))
    }

    /// Keeps things in the cache of what is compiled as long as it lives.
    pub(crate) fn keeping(mut self, kept: impl IntoIterator<Item = Kept>) -> PackageExecutor {
        self.kept.extend(kept);
        self
    }

    /// As [`PackageExecutor::new`], with something else that runs the packages, which it was given in the
    /// same order.
    ///
    /// # Errors
    /// As [`PackageExecutor::new`].
    pub fn with_runtime(
        graph: &Graph,
        weights: &Weights,
        packages: &[&Package],
        runtime: Box<dyn Runtime>,
        limits: Limits,
    ) -> Result<PackageExecutor> {
        let Roles { chunks, heads, functions, decode, head_rows, factor } =
            Roles::of(packages.iter().copied())?;
        let forms = functions.iter().map(|&(tokens, history)| Form::prefill(tokens, history));
        let mut forms = forms.collect::<Result<Vec<Form>>>()?;
        let longest = functions.iter().map(|(_, history)| *history).max();
        let starts = functions.iter().any(|(_, history)| *history == 0);
        if !starts || longest.is_none_or(|longest| longest + 1 < limits.context) {
            return Err(Error::Unsupported {
                what: format!("a context of {} tokens by this package", limits.context),
                instead: "use a shorter one (-c), or compile the model with a larger --context"
                    .into(),
            });
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
        Ok(PackageExecutor {
            graph: graph.clone(),
            weight_bytes: packages.iter().map(|package| package.weight_bytes() as usize).sum(),
            heads: heads.iter().map(outputs).collect::<Result<_>>()?,
            head_input,
            pages: Pages::new(host.anatomy.cache, &limits),
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
            limits,
            kept: Vec::new(),
        })
    }

    /// The largest results so far of all packages whose interpreters take note of them.
    pub fn extremes(&self) -> Vec<Extreme> {
        self.runtime.extremes()
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
        let wanted = rows.len() / hidden * self.graph.vocab();
        if logits.len() == wanted { Ok(logits) } else { Err(other_model()) }
    }

    /// As [`PackageExecutor::head`], with one call of each package for as many rows as it takes at once.
    fn head_calls(&mut self, rows: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        let PackageExecutor { heads, head_input, arrays, runtime, host, .. } = self;
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

    fn evaluate(&mut self, batch: &Batch, starts: &[usize]) -> Result<Vec<f32>> {
        let wanted = batch.wanted_rows();
        let mut rows = Vec::new();
        for (at, (span, &start)) in batch.spans.iter().zip(starts).enumerate() {
            let first = wanted.iter().find(|(_, origin)| origin.span == at);
            let first = first.map_or(usize::MAX, |(_, origin)| origin.token);
            self.span(span, start, first, &mut rows)?;
        }
        self.head(&rows)
    }

    /// From position `len` on, a sequence is no longer what functions have of it.
    fn forget(&mut self, seq: SeqId, len: usize) {
        self.past.0.forget(seq, len);
        self.states.forget(seq, len);
    }
}

fn other_model() -> Error {
    Error::malformed("its tensors are those of another model")
}

impl From<Error> for ExecError {
    fn from(error: Error) -> Self {
        match error {
            Error::Unsupported { what, instead } => {
                ExecError::Unsupported { unit: NAME, what, instead }
            }
            Error::Weights(error) => ExecError::Weights(error),
            other => ExecError::Invalid(other.to_string()),
        }
    }
}

impl Executor for PackageExecutor {
    fn forward(&mut self, batch: &Batch) -> std::result::Result<Logits, ExecError> {
        batch.check(self.host.vocab(), &self.limits)?;
        let starts: Vec<usize> = batch.spans.iter().map(|span| self.len(span.seq)).collect();
        self.pages.pager.append_batch(batch)?;
        let values = self.evaluate(batch, &starts);
        if values.is_err() {
            for (span, &start) in batch.spans.iter().zip(&starts) {
                self.truncate(span.seq, start)?;
            }
        }
        let rows = batch.wanted_rows().into_iter().map(|(_, origin)| origin).collect();
        Ok(Logits { vocab: self.graph.vocab(), rows, values: values?, ..Logits::default() })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len(&self, seq: SeqId) -> usize {
        self.pages.pager.len(seq)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> std::result::Result<(), ExecError> {
        self.forget(seq, len);
        self.pages.pager.truncate(seq, len)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> std::result::Result<(), ExecError> {
        self.forget(to, 0);
        self.pages.pager.copy(from, to, len)
    }

    fn free(&mut self, seq: SeqId) {
        self.forget(seq, 0);
        self.states.free(seq);
        self.pages.pager.free(seq);
    }

    fn export_kv(
        &self,
        seq: SeqId,
        range: Range<usize>,
    ) -> std::result::Result<KvBlock, ExecError> {
        self.pages.export(&self.graph, seq, range)
    }

    fn import_kv(
        &mut self,
        seq: SeqId,
        at: usize,
        block: &KvBlock,
    ) -> std::result::Result<(), ExecError> {
        block.check(&self.graph)?;
        self.pages.import(seq, at, block)
    }

    fn usage(&self) -> Usage {
        Usage {
            weight_bytes: self.weight_bytes,
            kv_bytes: self.pages.bytes(),
            scratch_bytes: 0,
            kv_tokens: self.pages.tokens(),
            kv_capacity: self.limits.kv_tokens,
        }
    }
}
