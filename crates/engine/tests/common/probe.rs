//! A unit that tells what it was asked to do.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use baton_engine::{RelayOptions, RelayUnit};
use baton_graph::reference::Reference;
use baton_graph::{Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, SeqId, Unit, Usage};
use baton_weights::Weights;

/// What an executor was asked to do.
#[derive(Default)]
pub struct Counts {
    pub tokens: AtomicUsize,
    pub exported: AtomicUsize,
    pub imported: AtomicUsize,
    /// Calls of `forward` that succeed before all others fail; none fail at `usize::MAX`.
    pub succeed: AtomicUsize,
    /// What `kv_tokens` of the limits is made.
    pub kv_tokens: Option<usize>,
    /// How long each pass takes at least.
    pub delay: Duration,
    /// When passes ran.
    pub passes: Mutex<Vec<Pass>>,
}

/// One pass.
#[derive(Clone, Debug)]
pub struct Pass {
    pub start: Instant,
    pub end: Instant,
    pub tokens: usize,
    pub sequences: Vec<SeqId>,
}

impl Counts {
    pub fn new() -> Arc<Self> {
        Counts::slow(Duration::ZERO)
    }

    pub fn slow(delay: Duration) -> Arc<Self> {
        let succeed = AtomicUsize::new(usize::MAX);
        Arc::new(Counts { succeed, delay, ..Counts::default() })
    }

    pub fn passes(&self) -> Vec<Pass> {
        self.passes.lock().unwrap().clone()
    }

    pub fn get(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }
}

/// A unit that counts, takes its time, and fails when it is told to.
pub struct Probe<U>(pub U, pub Arc<Counts>);

struct ProbedExecutor {
    inner: Box<dyn Executor>,
    counts: Arc<Counts>,
}

impl<U: Unit> Unit for Probe<U> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let kv_tokens = self.1.kv_tokens.unwrap_or(limits.kv_tokens);
        let inner = self.0.compile(graph, weights, Limits { kv_tokens, ..limits })?;
        Ok(Box::new(ProbedExecutor { inner, counts: Arc::clone(&self.1) }))
    }
}

impl Executor for ProbedExecutor {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        let left = self.counts.succeed.load(Ordering::SeqCst);
        if left == 0 {
            return Err(ExecError::Invalid("the device is lost".into()));
        }
        if left != usize::MAX {
            self.counts.succeed.store(left - 1, Ordering::SeqCst);
        }
        self.counts.tokens.fetch_add(batch.tokens(), Ordering::SeqCst);
        let start = Instant::now();
        std::thread::sleep(self.counts.delay);
        let logits = self.inner.forward(batch)?;
        let sequences = batch.spans.iter().map(|span| span.seq).collect();
        let pass = Pass { start, end: Instant::now(), tokens: batch.tokens(), sequences };
        self.counts.passes.lock().unwrap().push(pass);
        Ok(logits)
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn len(&self, seq: SeqId) -> usize {
        self.inner.len(seq)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        self.inner.truncate(seq, len)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        self.inner.copy(from, to, len)
    }

    fn free(&mut self, seq: SeqId) {
        self.inner.free(seq);
    }

    fn export_kv(&self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError> {
        self.counts.exported.fetch_add(range.len(), Ordering::SeqCst);
        self.inner.export_kv(seq, range)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        self.counts.imported.fetch_add(block.tokens, Ordering::SeqCst);
        self.inner.import_kv(seq, at, block)
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

/// What is handed over in tests; a unit that failed is tried again at once.
pub fn relay_options(crossover: usize, chunk: usize) -> RelayOptions {
    RelayOptions { crossover, chunk, pause: Duration::ZERO }
}

/// A relay of two probed references.
pub fn probed(prefill: &Arc<Counts>, decode: &Arc<Counts>, options: RelayOptions) -> RelayUnit {
    RelayUnit {
        prefill: Box::new(Probe(Reference, Arc::clone(prefill))),
        decode: Box::new(Probe(Reference, Arc::clone(decode))),
        options,
    }
}
