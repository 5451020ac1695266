//! An executor whose steps take as long for many tokens as for one, as where memory is what a step
//! waits for.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_graph::{Batch, ExecError, Executor, KvBlock, Limits, Logits, SeqId, Usage};

/// Waits before each step, and before each token of it.
pub struct Paced {
    pub inner: Box<dyn Executor>,
    pub step: Duration,
    pub token: Duration,
    /// Counts the steps.
    pub steps: Arc<AtomicUsize>,
}

impl Paced {
    /// Steps of 3 ms; their number is counted in `steps`.
    pub fn boxed(inner: Box<dyn Executor>, steps: &Arc<AtomicUsize>) -> Box<dyn Executor> {
        let (step, token) = (Duration::from_millis(3), Duration::ZERO);
        Box::new(Paced { inner, step, token, steps: Arc::clone(steps) })
    }
}

impl Executor for Paced {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.step + self.token * batch.tokens() as u32);
        self.inner.forward(batch)
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
        self.inner.export_kv(seq, range)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        self.inner.import_kv(seq, at, block)
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}
