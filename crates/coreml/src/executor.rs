//! A package as an executor: its functions called one after the other, its cache kept beside them.

mod decode;
mod roles;

use std::collections::BTreeMap;
use std::ops::Range;

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, Pager, SeqId, Span, Usage,
};
use baton_weights::Weights;
use half::f16;
use half::slice::HalfFloatSliceExt;

use self::decode::Decoder;
use self::roles::Roles;
use crate::host::{Host, Places};
use crate::interpret::{Extreme, Interpreter, States, Tensor};
use crate::lower::{HEAD, INCOMING, prefill_name};
use crate::package::Package;
use crate::unit::NAME;
use crate::{Error, Result};

/// Positions of a page: with one a sequence never shares a part of it.
const PAGE: usize = 1;

/// Names of inputs and outputs: see [`MilLowering`](crate::lower::MilLowering).
const PAST_KEYS: &str = "past_keys";
const PAST_VALUES: &str = "past_values";
const KEYS: &str = "keys";
const VALUES: &str = "values";
const HIDDEN_STATE: &str = "hidden";

/// Runs the functions of a package, or of all packages of a model in chunks: prefill, head, and for single
/// tokens decode, if it is there.
#[derive(Debug)]
pub struct PackageExecutor {
    graph: Graph,
    host: Host,
    packages: Vec<Interpreter>,
    /// The packages of layers, in their order, with the layers of each.
    chunks: Vec<(usize, Range<usize>)>,
    /// The packages of the head, in the order of the vocabulary.
    heads: Vec<usize>,
    /// New tokens and history of each prefill function, which all chunks have.
    functions: Vec<(usize, usize)>,
    head_rows: usize,
    decoder: Option<Decoder>,
    limits: Limits,
    pager: Pager,
    /// Keys, then values, of a position, each `(layers, heads, features)`.
    pages: Vec<Option<Box<[f16]>>>,
    weight_bytes: usize,
}

impl PackageExecutor {
    /// The executor of packages that were made of `graph`, each with the interpreter that runs it, in the
    /// order of [`Lowering::parts`](crate::lower::Lowering::parts).
    ///
    /// # Errors
    /// If they are not all of the graph, or have no functions for contexts as long as the limits say.
    pub fn new(
        graph: &Graph,
        weights: &Weights,
        packages: Vec<(&Package, Interpreter)>,
        limits: Limits,
    ) -> Result<PackageExecutor> {
        let of_packages = packages.iter().map(|(package, _)| *package);
        let Roles { chunks, heads, functions, head_rows, factor } = Roles::of(of_packages)?;
        let longest = functions.iter().map(|(_, history)| *history).max();
        let starts = functions.iter().any(|(_, history)| *history == 0);
        if !starts || longest.is_none_or(|longest| longest + 1 < limits.context) {
            return Err(Error::Unsupported {
                what: format!("a context of {} tokens by this package", limits.context),
                instead: "use a shorter one, or compile functions for longer histories".into(),
            });
        }
        let host = Host::new(graph, weights, factor)?;
        let layers = chunks.last().map_or(0, |(_, layers)| layers.end);
        if host.anatomy.cache.is_some_and(|[expected, ..]| expected != layers) {
            return Err(Error::malformed(format!("its {layers} layers are not the model's")));
        }
        let pager = Pager::new(PAGE, &limits);
        let bytes = packages.iter().map(|(package, _)| package.weight_bytes() as usize).sum();
        let packages: Vec<_> = packages.into_iter().map(|(_, interpreter)| interpreter).collect();
        let decoder = match host.anatomy.cache {
            Some(cache) => Decoder::new(&packages, &chunks, cache)?,
            None => None,
        };
        Ok(PackageExecutor {
            graph: graph.clone(),
            host,
            weight_bytes: bytes,
            packages,
            decoder,
            chunks,
            heads,
            functions,
            head_rows,
            limits,
            pages: vec![None; pager.pages()],
            pager,
        })
    }

    /// The largest results so far of all packages whose interpreters take note of them.
    pub fn extremes(&self) -> Vec<Extreme> {
        self.packages.iter().flat_map(Interpreter::extremes).collect()
    }

    /// Elements of the keys, or of the values, of a position.
    fn per_position(&self) -> usize {
        self.host.anatomy.cache.map_or(0, |[layers, heads, width]| layers * heads * width)
    }

    /// The function for `tokens` new tokens behind `past` others: the one with the fewest columns that
    /// takes all of them, else the one with the most.
    fn function(&self, tokens: usize, past: usize) -> Option<(usize, usize)> {
        let fits = self.functions.iter().copied().filter(|(_, history)| *history >= past);
        fits.min_by_key(|&(columns, history)| match columns >= tokens {
            true => (0, columns, history),
            false => (1, usize::MAX - columns, history),
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
            if let ([token], true) = (rest, self.decodes(past)) {
                let hidden = self.decode(span.seq, *token, past)?;
                if done >= first_row {
                    rows.extend(hidden);
                }
                break;
            }
            let (columns, history) =
                self.function(rest.len(), past).ok_or_else(|| Error::Unsupported {
                    what: format!("a history of {past} tokens by this package"),
                    instead: "compile functions for longer histories".into(),
                })?;
            let tokens = &rest[..rest.len().min(columns)];
            let name = prefill_name(columns, history);
            let shared = self.host.inputs(tokens, past, columns, Places::Behind(history));
            let mut hidden = Tensor::floats(&[0], Vec::new());
            for (package, layers) in self.chunks.clone() {
                let mut inputs = Vec::new();
                for (input, ty) in self.packages[package].inputs(&name) {
                    let known = shared.iter().find(|(given, _)| given == input);
                    let tensor = match (input, known) {
                        (INCOMING, _) => hidden.clone(),
                        (PAST_KEYS | PAST_VALUES, _) => {
                            let which = usize::from(input == PAST_VALUES);
                            self.history(span.seq, which, &layers, past, &ty.shape)?
                        }
                        (_, Some((_, tensor))) => tensor.clone(),
                        // The interpreter says what is missing.
                        (_, None) => continue,
                    };
                    inputs.push((input, tensor));
                }
                let mut outputs =
                    self.packages[package].run(&name, &inputs, &mut States::default())?;
                self.store(span.seq, past..past + tokens.len(), columns, &layers, &outputs)?;
                hidden = outputs.remove(HIDDEN_STATE).ok_or_else(|| no_output(HIDDEN_STATE))?;
            }
            let hidden = hidden.as_floats().ok_or_else(|| no_output(HIDDEN_STATE))?;
            for column in 0..tokens.len() {
                if done + column >= first_row {
                    rows.extend(hidden[column..].iter().step_by(columns));
                }
            }
            done += tokens.len();
        }
        Ok(())
    }

    /// The keys (`which` 0) or values (1) of some layers at the first `past` positions of a sequence,
    /// `(layers, heads, history, features)`.
    fn history(
        &self,
        seq: SeqId,
        which: usize,
        layers: &Range<usize>,
        past: usize,
        shape: &[usize],
    ) -> Result<Tensor> {
        let [_, heads, width] = self.host.anatomy.cache.unwrap_or([0; 3]);
        let history = match *shape {
            [l, h, history, w] if [l, h, w] == [layers.len(), heads, width] => history,
            _ => return Err(other_model()),
        };
        let mut values = vec![0.0; shape.iter().product()];
        let first = which * self.per_position() + layers.start * heads * width;
        for position in 0..past {
            let rows = &self.page(seq, position)[first..first + layers.len() * heads * width];
            for (head, row) in rows.chunks_exact(width).enumerate() {
                let at = (head * history + position) * width;
                row.convert_to_f32_slice(&mut values[at..at + width]);
            }
        }
        Ok(Tensor::floats(shape, values))
    }

    fn page(&self, seq: SeqId, position: usize) -> &[f16] {
        let (page, _) = self.pager.locate(seq, position);
        self.pages[page.0 as usize].as_deref().expect("positions are written before they are read")
    }

    fn page_mut(&mut self, seq: SeqId, position: usize) -> &mut [f16] {
        let (page, _) = self.pager.locate(seq, position);
        let len = 2 * self.per_position();
        let page = &mut self.pages[page.0 as usize];
        page.get_or_insert_with(|| vec![f16::ZERO; len].into())
    }

    /// Keeps the keys and values of some layers that a function made for these positions.
    fn store(
        &mut self,
        seq: SeqId,
        positions: Range<usize>,
        columns: usize,
        layers: &Range<usize>,
        outputs: &BTreeMap<String, Tensor>,
    ) -> Result<()> {
        let Some([_, heads, width]) = self.host.anatomy.cache else { return Ok(()) };
        let (each, first) = (self.per_position(), layers.start * heads * width);
        for (which, name) in [KEYS, VALUES].into_iter().enumerate() {
            let part = floats(outputs, name)?;
            if part.len() != layers.len() * heads * columns * width {
                return Err(other_model());
            }
            for (column, position) in positions.clone().enumerate() {
                let page = self.page_mut(seq, position);
                let page = &mut page[which * each + first..][..layers.len() * heads * width];
                for (head, to) in page.chunks_exact_mut(width).enumerate() {
                    let at = (head * columns + column) * width;
                    to.convert_from_f32_slice(&part[at..at + width]);
                }
            }
        }
        Ok(())
    }

    /// Logits of rows of the hidden state.
    fn head(&self, rows: &[f32]) -> Result<Vec<f32>> {
        let (hidden, columns) = (self.host.anatomy.hidden, self.head_rows);
        let call = |group: &[f32]| {
            let mut x = vec![0.0; hidden * columns];
            for (column, row) in group.chunks_exact(hidden).enumerate() {
                x[column..].iter_mut().step_by(columns).zip(row).for_each(|(x, &v)| *x = v);
            }
            vec![("hidden", Tensor::floats(&[1, hidden, 1, columns], x))]
        };
        let calls: Vec<_> = rows.chunks(hidden * columns).map(call).collect();
        let run = |&head: &usize| self.packages[head].run_all(HEAD, &calls);
        let results = self.heads.iter().map(run).collect::<Result<Vec<_>>>()?;
        let mut logits = Vec::new();
        for (call, group) in rows.chunks(hidden * columns).enumerate() {
            for column in 0..group.len() / hidden {
                for outputs in results.iter().map(|results| &results[call]) {
                    for piece in 0..outputs.len() {
                        let piece = floats(outputs, &format!("logits_{piece}"))?;
                        logits.extend(piece[column..].iter().step_by(columns));
                    }
                }
            }
        }
        let wanted = rows.len() / hidden * self.graph.vocab();
        if logits.len() == wanted { Ok(logits) } else { Err(other_model()) }
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
}

fn floats<'a>(outputs: &'a BTreeMap<String, Tensor>, name: &str) -> Result<&'a [f32]> {
    let found = outputs.get(name).and_then(Tensor::as_floats);
    found.ok_or_else(|| no_output(name))
}

fn no_output(name: &str) -> Error {
    Error::malformed(format!("a function has no output {name:?}"))
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
        let starts: Vec<usize> = batch.spans.iter().map(|span| self.pager.len(span.seq)).collect();
        self.pager.append_batch(batch)?;
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
        self.pager.len(seq)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> std::result::Result<(), ExecError> {
        self.changed(seq, len);
        self.pager.truncate(seq, len)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> std::result::Result<(), ExecError> {
        self.changed(to, 0);
        self.pager.copy(from, to, len)
    }

    fn free(&mut self, seq: SeqId) {
        self.changed(seq, 0);
        self.pager.free(seq);
    }

    fn export_kv(
        &self,
        seq: SeqId,
        range: Range<usize>,
    ) -> std::result::Result<KvBlock, ExecError> {
        let mut block = KvBlock::for_range(&self.graph, seq, self.len(seq), &range)?;
        let (each, width, heads) = (self.per_position(), block.head_dim, block.kv_heads);
        for (token, position) in range.enumerate() {
            let page = self.page(seq, position);
            for (i, row) in page.chunks_exact(width).enumerate() {
                let head = i % (each / width);
                let at = block.offset(head / heads, head % heads, token);
                let part = if i < each / width { &mut block.keys } else { &mut block.values };
                part[at..at + width].copy_from_slice(row);
            }
        }
        Ok(block)
    }

    fn import_kv(
        &mut self,
        seq: SeqId,
        at: usize,
        block: &KvBlock,
    ) -> std::result::Result<(), ExecError> {
        block.check(&self.graph)?;
        KvBlock::check_position(at, self.len(seq))?;
        self.pager.append(&[(seq, block.tokens)])?;
        let (each, width, heads) = (self.per_position(), block.head_dim, block.kv_heads);
        for token in 0..block.tokens {
            for (i, row) in self.page_mut(seq, at + token).chunks_exact_mut(width).enumerate() {
                let head = i % (each / width);
                let from = block.offset(head / heads, head % heads, token);
                let part = if i < each / width { &block.keys } else { &block.values };
                row.copy_from_slice(&part[from..from + width]);
            }
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        let written = self.pages.iter().flatten().count();
        Usage {
            weight_bytes: self.weight_bytes,
            kv_bytes: written * 4 * self.per_position(),
            scratch_bytes: 0,
            kv_tokens: (self.pager.pages() - self.pager.free_pages()) * PAGE,
            kv_capacity: self.limits.kv_tokens,
        }
    }
}
