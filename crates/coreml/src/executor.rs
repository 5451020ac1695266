//! Packages as an executor: their functions called one after the other, its cache kept beside them.
//!
//! ```text
//! pages     the cache
//! mirrors   which of it functions have already
//! chain     which arrays functions share
//! own       packages of Baton's own layout
//! roles     what each of those is for
//! shapes    whether its functions have the tensors for that
//! steps     the calls of some new tokens
//! ```

pub(crate) mod chain;
pub(crate) mod mirrors;
mod own;
pub(crate) mod pages;
mod roles;
mod shapes;
mod steps;

use std::fmt;
use std::ops::Range;

use baton_graph::{Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, SeqId, Usage};
use baton_weights::Weights;

use self::own::Own;
use self::pages::Pages;
use crate::files::Hashes;
use crate::interpret::{Extreme, Interpreter};
use crate::package::Package;
use crate::runtime::{Device, Interpreted, Kept, Runtime, Source};
use crate::unit::NAME;
use crate::{Error, Result};

/// Runs the functions of a package, or of all packages of a model.
#[derive(Debug)]
pub struct PackageExecutor {
    graph: Graph,
    limits: Limits,
    program: Box<dyn Program>,
    /// What must stay in the cache of what is compiled.
    kept: Vec<Kept>,
}

/// What packages of a layout compute, and how. The cache that counts is in pages; functions have copies of
/// it.
pub(crate) trait Program: Send + fmt::Debug {
    /// The cache.
    fn pages(&self) -> &Pages;

    /// As [`Program::pages`], to change it.
    fn pages_mut(&mut self) -> &mut Pages;

    /// Tokens that can be looked up.
    fn input_vocab(&self) -> usize;

    /// Evaluates a batch whose pages are there already, each span behind so many tokens of its sequence, and
    /// says the rows of logits that are wanted.
    ///
    /// # Errors
    /// If a function cannot be called.
    fn evaluate(&mut self, batch: &Batch, starts: &[usize]) -> Result<Vec<f32>>;

    /// From position `len` on, a sequence is no longer what functions have of it.
    fn forget(&mut self, seq: SeqId, len: usize);

    /// A sequence is over.
    fn free(&mut self, seq: SeqId);

    /// A sequence has now the first tokens of another.
    fn copied(&mut self, from: SeqId, to: SeqId, len: usize) {
        let _ = (from, to, len);
    }

    /// Whether keys and values up to position `end` may come from elsewhere.
    ///
    /// # Errors
    /// If it could not go on behind them.
    fn can_import(&self, end: usize) -> Result<()> {
        let _ = end;
        Ok(())
    }

    /// Bytes of all weights.
    fn weight_bytes(&self) -> usize;

    /// The largest results so far, if anybody takes note of them.
    fn extremes(&self) -> Vec<Extreme> {
        Vec::new()
    }
}

/// Of each span of a batch the first token whose logits are wanted; its length if none are.
pub(crate) fn first_rows(batch: &Batch) -> Vec<usize> {
    let mut first: Vec<usize> = batch.spans.iter().map(|span| span.tokens.len()).collect();
    for (_, origin) in batch.wanted_rows().into_iter().rev() {
        first[origin.span] = origin.token;
    }
    first
}

impl PackageExecutor {
    /// The executor of packages that were made of `graph`, each with the interpreter that runs it, in the
    /// order of [`Lowering::parts`](crate::lower::Lowering::parts).
    ///
    /// Prompts go through the prefill functions; single tokens through the decode function, if there is one,
    /// whose states are then a copy of the cache.
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
        packages: &[Source],
        hashes: &Hashes,
        limits: Limits,
    ) -> Result<PackageExecutor> {
        let (runtime, kept) = device.open(packages, hashes)?;
        let packages: Vec<&Package> = packages.iter().filter_map(Source::package).collect();
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
        let program = Own::new(graph, weights, packages, runtime, &limits)?;
        Ok(PackageExecutor::of(graph, limits, Box::new(program)))
    }

    /// The executor of a program that computes what a graph does.
    pub(crate) fn of(graph: &Graph, limits: Limits, program: Box<dyn Program>) -> PackageExecutor {
        PackageExecutor { graph: graph.clone(), limits, program, kept: Vec::new() }
    }

    /// The largest results so far of all packages whose interpreters take note of them.
    pub fn extremes(&self) -> Vec<Extreme> {
        self.program.extremes()
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
        batch.check(self.program.input_vocab(), &self.limits)?;
        let starts: Vec<usize> = batch.spans.iter().map(|span| self.len(span.seq)).collect();
        self.program.pages_mut().pager.append_batch(batch)?;
        let values = self.program.evaluate(batch, &starts);
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
        self.program.pages().pager.len(seq)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> std::result::Result<(), ExecError> {
        self.program.pages_mut().pager.truncate(seq, len)?;
        self.program.forget(seq, len);
        Ok(())
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> std::result::Result<(), ExecError> {
        self.program.pages_mut().pager.copy(from, to, len)?;
        self.program.forget(to, 0);
        self.program.copied(from, to, len);
        Ok(())
    }

    fn free(&mut self, seq: SeqId) {
        self.program.forget(seq, 0);
        self.program.free(seq);
        self.program.pages_mut().pager.free(seq);
    }

    fn export_kv(
        &self,
        seq: SeqId,
        range: Range<usize>,
    ) -> std::result::Result<KvBlock, ExecError> {
        self.program.pages().export(&self.graph, seq, range)
    }

    fn import_kv(
        &mut self,
        seq: SeqId,
        at: usize,
        block: &KvBlock,
    ) -> std::result::Result<(), ExecError> {
        block.check(&self.graph)?;
        KvBlock::check_position(at, self.len(seq))?;
        self.program.can_import(at + block.tokens)?;
        self.program.pages_mut().import(seq, at, block)
    }

    fn usage(&self) -> Usage {
        let pages = self.program.pages();
        Usage {
            weight_bytes: self.program.weight_bytes(),
            kv_bytes: pages.bytes(),
            scratch_bytes: 0,
            kv_tokens: pages.tokens(),
            kv_capacity: self.limits.kv_tokens,
        }
    }
}
