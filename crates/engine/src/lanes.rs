//! The units that an engine computes on, watched: how long each was busy, and what it did when.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, Readiness, Rows, SeqId, Span, Unit,
    Usage, Waker,
};
use baton_weights::Weights;

use crate::speculation::MOST_GUESSES;
use crate::timeline::{Timeline, Work};

/// One unit with its part of the work.
#[derive(Debug)]
pub struct Lane {
    unit: &'static str,
    name: String,
    busy: AtomicU64,
}

/// Who computes the phases of an answer.
#[derive(Clone, Debug)]
pub struct Lanes {
    /// Reads prompts.
    pub prefill: Arc<Lane>,
    /// Writes answers.
    pub decode: Arc<Lane>,
}

impl Lane {
    /// A lane for `role` of a unit.
    pub(crate) fn new(unit: &'static str, role: &str) -> Arc<Self> {
        let name = format!("{unit}: {role}");
        Arc::new(Lane { unit, name, busy: AtomicU64::new(0) })
    }

    /// The unit's name.
    pub fn unit(&self) -> &'static str {
        self.unit
    }

    /// How long it computed since it was made.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy.load(Ordering::Relaxed))
    }
}

impl Lanes {
    /// One unit for both phases.
    pub(crate) fn one(unit: &'static str) -> Lanes {
        let lane = Lane::new(unit, "prefill and decode");
        Lanes { prefill: Arc::clone(&lane), decode: lane }
    }

    /// A unit for each phase.
    pub(crate) fn two(prefill: &'static str, decode: &'static str) -> Lanes {
        Lanes { prefill: Lane::new(prefill, "prefill"), decode: Lane::new(decode, "decode") }
    }

    /// Whether there are two units.
    pub fn is_relay(&self) -> bool {
        !Arc::ptr_eq(&self.prefill, &self.decode)
    }
}

/// A unit whose executors are [`Watched`].
pub(crate) struct WatchedUnit {
    pub(crate) unit: Box<dyn Unit>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) timeline: Option<Arc<Timeline>>,
}

impl Unit for WatchedUnit {
    fn name(&self) -> &'static str {
        self.unit.name()
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let inner = self.unit.compile(graph, weights, limits)?;
        let (lane, timeline) = (Arc::clone(&self.lane), self.timeline.clone());
        Ok(Box::new(Watched { inner, lane, timeline }))
    }
}

/// An executor whose work counts as a lane's, and goes into a timeline if there is one.
struct Watched {
    inner: Box<dyn Executor>,
    lane: Arc<Lane>,
    timeline: Option<Arc<Timeline>>,
}

impl Watched {
    fn done(&self, start: Instant, what: impl FnOnce() -> (Work, usize, Vec<u32>)) {
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.lane.busy.fetch_add(nanos, Ordering::Relaxed);
        if let Some(timeline) = &self.timeline {
            let (work, tokens, sequences) = what();
            timeline.add(&self.lane.name, work, start, tokens, sequences);
        }
    }
}

/// What a batch is: a span that only fills the cache, or of more tokens than can have been guessed,
/// is a part of a prompt.
fn work_of(batch: &Batch) -> Work {
    let of_prompt = |span: &&Span| span.rows == Rows::None || span.tokens.len() > 1 + MOST_GUESSES;
    match batch.spans.iter().filter(of_prompt).count() {
        0 => Work::Decode,
        n if n == batch.spans.len() => Work::Prefill,
        _ => Work::Mixed,
    }
}

impl Executor for Watched {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        let start = Instant::now();
        let logits = self.inner.forward(batch)?;
        self.done(start, || {
            let sequences = batch.spans.iter().map(|span| span.seq.0).collect();
            (work_of(batch), batch.tokens(), sequences)
        });
        Ok(logits)
    }

    fn prepare(&mut self, seq: SeqId, new: usize) -> Readiness {
        self.inner.prepare(seq, new)
    }

    fn on_progress(&mut self, wake: Waker) {
        self.inner.on_progress(wake);
    }

    fn handed_over(&self, seq: SeqId, range: Range<usize>) -> usize {
        self.inner.handed_over(seq, range)
    }

    fn breaker(&self) -> Option<Waker> {
        self.inner.breaker()
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
        let start = Instant::now();
        let block = self.inner.export_kv(seq, range)?;
        self.done(start, || (Work::Export, block.tokens, vec![seq.0]));
        Ok(block)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        let start = Instant::now();
        self.inner.import_kv(seq, at, block)?;
        self.done(start, || (Work::Import, block.tokens, vec![seq.0]));
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}
