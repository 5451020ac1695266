//! A package as an executor: its functions called one after the other, its cache kept beside them.

use std::collections::BTreeMap;
use std::ops::Range;

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, Pager, SeqId, Span, Usage,
};
use baton_weights::Weights;
use half::f16;

use crate::host::Host;
use crate::interpret::{Interpreter, States, Tensor};
use crate::lower::{EMBEDDING_FACTOR, HEAD, prefill_name};
use crate::package::Package;
use crate::unit::NAME;
use crate::{Error, Result};

/// Positions of a page: with one a sequence never shares a part of it.
const PAGE: usize = 1;

/// Runs the prefill functions and the head of a package.
#[derive(Debug)]
pub struct PackageExecutor {
    graph: Graph,
    host: Host,
    interpreter: Interpreter,
    /// New tokens and history of each prefill function.
    functions: Vec<(usize, usize)>,
    head_rows: usize,
    limits: Limits,
    pager: Pager,
    /// Keys, then values, of a position, each `(layers, heads, features)`.
    pages: Vec<Option<Box<[f16]>>>,
    weight_bytes: usize,
}

impl PackageExecutor {
    /// The executor of a package that was made of `graph`.
    ///
    /// # Errors
    /// If the package has no functions for contexts as long as the limits say.
    pub fn new(
        graph: &Graph,
        weights: &Weights,
        package: &Package,
        interpreter: Interpreter,
        limits: Limits,
    ) -> Result<PackageExecutor> {
        let parse = |name: &str| {
            let (tokens, history) = name.strip_prefix("prefill_")?.split_once("_h")?;
            Some((tokens.parse().ok()?, history.parse().ok()?))
        };
        let program = &package.model.program;
        let functions: Vec<(usize, usize)> =
            program.functions.keys().filter_map(|name| parse(name)).filter(|f| f.0 > 0).collect();
        let longest = functions.iter().map(|(_, history)| *history).max();
        let starts = functions.iter().any(|(_, history)| *history == 0);
        if !starts || longest.is_none_or(|longest| longest + 1 < limits.context) {
            return Err(Error::Unsupported {
                what: format!("a context of {} tokens by this package", limits.context),
                instead: "use a shorter one, or compile functions for longer histories".into(),
            });
        }
        let head = program.functions.get(HEAD);
        let head_rows = head
            .and_then(|head| head.tensor_inputs().next())
            .and_then(|(_, ty)| ty.shape.last().copied())
            .filter(|&rows| rows > 0)
            .ok_or_else(|| Error::malformed(format!("it has no function {HEAD:?}")))?;
        let factor = package.model.metadata.user.get(EMBEDDING_FACTOR);
        let factor = factor.map_or(Ok(1.0), |text| text.parse());
        let factor =
            factor.map_err(|_| Error::malformed(format!("{EMBEDDING_FACTOR} is no number")))?;
        let host = Host::new(graph, weights, factor)?;
        let pager = Pager::new(PAGE, &limits);
        Ok(PackageExecutor {
            graph: graph.clone(),
            host,
            interpreter,
            functions,
            head_rows,
            limits,
            pages: vec![None; pager.pages()],
            pager,
            weight_bytes: package.weight_bytes() as usize,
        })
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
            let (columns, history) =
                self.function(rest.len(), past).ok_or_else(|| Error::Unsupported {
                    what: format!("a history of {past} tokens by this package"),
                    instead: "compile functions for longer histories".into(),
                })?;
            let tokens = &rest[..rest.len().min(columns)];
            let mut inputs = self.host.inputs(tokens, past, columns, history);
            if history > 0 && self.per_position() > 0 {
                inputs.extend(self.history(span.seq, past, history));
            }
            let inputs: Vec<(&str, Tensor)> =
                inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
            let name = prefill_name(columns, history);
            let outputs = self.interpreter.run(&name, &inputs, &mut States::default())?;
            self.store(span.seq, past, tokens.len(), columns, &outputs)?;
            let hidden = floats(&outputs, "hidden")?;
            for column in 0..tokens.len() {
                if done + column >= first_row {
                    rows.extend(hidden[column..].iter().step_by(columns));
                }
            }
            done += tokens.len();
        }
        Ok(())
    }

    /// The first `past` positions of a sequence as the inputs of a function, `(layers, heads, history,
    /// features)`.
    fn history(&self, seq: SeqId, past: usize, history: usize) -> [(String, Tensor); 2] {
        let [layers, heads, width] = self.host.anatomy.cache.expect("there is a history");
        let shape = [layers, heads, history, width];
        let mut parts = [0, 1].map(|_| vec![0.0; layers * heads * history * width]);
        let each = self.per_position();
        for position in 0..past {
            let page = self.page(seq, position);
            for (i, part) in parts.iter_mut().enumerate() {
                for (head, values) in page[i * each..(i + 1) * each].chunks_exact(width).enumerate()
                {
                    let at = (head * history + position) * width;
                    let to = &mut part[at..at + width];
                    to.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_f32());
                }
            }
        }
        let [keys, values] = parts.map(|part| Tensor::floats(&shape, part));
        [("past_keys".into(), keys), ("past_values".into(), values)]
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

    /// Keeps the keys and values that a function made.
    fn store(
        &mut self,
        seq: SeqId,
        start: usize,
        tokens: usize,
        columns: usize,
        outputs: &BTreeMap<String, Tensor>,
    ) -> Result<()> {
        let Some([layers, heads, width]) = self.host.anatomy.cache else { return Ok(()) };
        let each = self.per_position();
        let parts = [floats(outputs, "keys")?, floats(outputs, "values")?];
        if parts.iter().any(|part| part.len() != layers * heads * columns * width) {
            return Err(Error::malformed("its keys and values are of another model"));
        }
        for token in 0..tokens {
            let page = self.page_mut(seq, start + token);
            for (i, part) in parts.iter().enumerate() {
                for (head, to) in page[i * each..(i + 1) * each].chunks_exact_mut(width).enumerate()
                {
                    let at = (head * columns + token) * width;
                    let from = &part[at..at + width];
                    to.iter_mut().zip(from).for_each(|(to, &value)| *to = f16::from_f32(value));
                }
            }
        }
        Ok(())
    }

    /// Logits of rows of the hidden state.
    fn head(&self, rows: &[f32]) -> Result<Vec<f32>> {
        let (hidden, columns) = (self.host.anatomy.hidden, self.head_rows);
        let mut logits = Vec::new();
        for group in rows.chunks(hidden * columns) {
            let mut x = vec![0.0; hidden * columns];
            for (column, row) in group.chunks_exact(hidden).enumerate() {
                x[column..].iter_mut().step_by(columns).zip(row).for_each(|(x, &v)| *x = v);
            }
            let x = Tensor::floats(&[1, hidden, 1, columns], x);
            let outputs = self.interpreter.run(HEAD, &[("hidden", x)], &mut States::default())?;
            for column in 0..group.len() / hidden {
                for piece in 0..outputs.len() {
                    let piece = floats(&outputs, &format!("logits_{piece}"))?;
                    logits.extend(piece[column..].iter().step_by(columns));
                }
            }
        }
        Ok(logits)
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
    found.ok_or_else(|| Error::malformed(format!("a function has no output {name:?}")))
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
                self.pager.truncate(span.seq, start)?;
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
        self.pager.truncate(seq, len)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> std::result::Result<(), ExecError> {
        self.pager.copy(from, to, len)
    }

    fn free(&mut self, seq: SeqId) {
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
