//! Runs a plan over ragged batches.

mod attention;
mod moe;
mod rows;
mod spans;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, KvType, Limits, Logits, Pager, SeqId, Timing, Usage,
};

use crate::arena::{Arena, Slots};
use crate::kv::{KvPages, PAGE};
use crate::matmul::{Epilogue, Matrix, matmul};
use crate::pages::Floats;
use crate::plan::{Plan, Product, View, Work, zeroed};
use crate::pool::Pool;
use crate::quant::{QuantizedRows, Rows};
use attention::AttentionBuffers;
use moe::MoeBuffers;
use spans::Spans;

/// A graph compiled for the CPU.
pub(crate) struct CpuExecutor {
    graph: Graph,
    plan: Plan,
    pool: Arc<Pool>,
    limits: Limits,
    pager: Pager,
    kv: KvPages,
    arena: Arena,
    /// Angles of each of the plan's rotations, a row for each token.
    angles: Vec<Floats>,
    spans: Spans,
    quantized: QuantizedRows,
    attention: AttentionBuffers,
    moe: MoeBuffers,
    timing: Timing,
}

impl CpuExecutor {
    pub(crate) fn new(
        graph: &Graph,
        plan: Plan,
        pool: Arc<Pool>,
        limits: Limits,
        kv_type: KvType,
    ) -> Result<Self, ExecError> {
        limits.check_range()?;
        graph.check_limits(&limits)?;
        let rows = limits.batch_tokens;
        let width = plan.slot_widths.iter().sum();
        let arena = Arena::new(zeroed(width, rows, &limits)?, &plan.slot_widths);
        let angles = plan.ropes.iter().map(|rope| zeroed(2 * rope.inv_freq.len(), rows, &limits));
        let pager = Pager::new(PAGE, &limits);
        Ok(CpuExecutor {
            graph: graph.clone(),
            angles: angles.collect::<Result<_, _>>()?,
            moe: MoeBuffers::new(&plan, &limits)?,
            timing: Timing::from_env(&plan.labels),
            kv: KvPages::new(graph, kv_type, pager.pages())?,
            plan,
            pool,
            limits,
            pager,
            arena,
            spans: Spans::default(),
            quantized: QuantizedRows::new(),
            attention: AttentionBuffers::default(),
        })
    }

    /// The pass itself; the batch was checked and its pages are there.
    fn run(&mut self) {
        let CpuExecutor { plan, pool, kv, arena, spans, timing, .. } = self;
        let pool = &**pool;
        arena.set_rows(spans.positions.len());
        let decode = spans.list.len() == spans.positions.len();
        rows::angles(pool, &plan.ropes, &spans.positions, &mut self.angles);
        for step in &plan.steps {
            let start = timing.is_on().then(Instant::now);
            let slots = arena.share();
            match &step.work {
                Work::Rows { ops, height } => {
                    let context = rows::Context { slots: &slots, spans, angles: &self.angles };
                    rows::run(pool, ops, spans.rows(*height), &context);
                }
                Work::Product(step) => product(pool, step, spans, &slots, &mut self.quantized),
                Work::Attention(step) => {
                    attention::run(pool, step, spans, &slots, kv, &mut self.attention);
                }
                Work::Moe(step) => {
                    let rows = spans.rows(step.height);
                    self.moe.run(pool, step, rows, &slots, &mut self.quantized);
                }
                Work::Select { x, out } => rows::select(x, out, &spans.wanted, &slots),
                Work::Pool { how, x, out } => rows::pool(*how, x, out, spans, &slots),
            }
            if let Some(start) = start {
                timing.add(step.label, decode, start.elapsed());
            }
        }
        timing.pass(decode, spans.positions.len());
    }
}

fn product(
    pool: &Pool,
    step: &Product,
    spans: &Spans,
    slots: &Slots<'_>,
    quantized: &mut QuantizedRows,
) {
    let rows = spans.rows(step.height);
    if rows == 0 {
        return;
    }
    // SAFETY: no other step runs, and input and output lie in different slots.
    let (x, out) = unsafe { (slots.read(&step.x, rows), slots.all(&step.out, rows)) };
    let x = match step.quantize {
        true => quantized.quantize(pool, x, step.x.cols, step.rounding()),
        false => Rows::floats(x, step.x.cols),
    };
    let bias = (!step.bias.is_empty()).then_some(&step.bias[..]);
    let epilogue = Epilogue { bias, accumulate: step.accumulate };
    multiply(pool, &x, &step.matrices, out, &step.out, epilogue);
}

fn multiply(
    pool: &Pool,
    x: &Rows<'_>,
    matrices: &[Matrix],
    out: &mut [f32],
    view: &View,
    epilogue: Epilogue<'_>,
) {
    // Nearly all products have one part, or the few of a fused one.
    match matrices {
        [one] => matmul(pool, x, &[one], out, view.stride, epilogue),
        [a, b] => matmul(pool, x, &[a, b], out, view.stride, epilogue),
        [a, b, c] => matmul(pool, x, &[a, b, c], out, view.stride, epilogue),
        many => {
            let all: Vec<&Matrix> = many.iter().collect();
            matmul(pool, x, &all, out, view.stride, epilogue);
        }
    }
}

impl Executor for CpuExecutor {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        batch.check(self.plan.input_vocab, &self.limits)?;
        if self.plan.whole_texts {
            batch.check_whole(|seq| self.len(seq))?;
        }
        let copies = self.pager.append_batch(batch)?;
        copies.into_iter().for_each(|copy| self.kv.copy(copy));
        self.spans.set(batch, &self.pager);
        self.kv.mark(&self.spans.pages);
        let rows: Vec<_> = self.spans.origins.clone();
        self.arena.logits = vec![0.0; rows.len() * self.plan.vocab];
        self.run();
        let values = std::mem::take(&mut self.arena.logits);
        Ok(Logits { vocab: self.plan.vocab, rows, values, ..Logits::default() })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len(&self, seq: SeqId) -> usize {
        self.pager.len(seq)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        self.pager.truncate(seq, len)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        self.pager.copy(from, to, len)
    }

    fn free(&mut self, seq: SeqId) {
        self.pager.free(seq);
    }

    fn export_kv(&self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError> {
        let mut block = KvBlock::for_range(&self.graph, seq, self.len(seq), &range)?;
        for (page, inside, token) in pieces(&range) {
            self.kv.export(self.pager.table(seq)[page], inside, &mut block, token);
        }
        Ok(block)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        block.check(&self.graph)?;
        KvBlock::check_position(at, self.len(seq))?;
        let copies = self.pager.append(&[(seq, block.tokens)])?;
        copies.into_iter().for_each(|copy| self.kv.copy(copy));
        for (page, inside, token) in pieces(&(at..at + block.tokens)) {
            self.kv.import(self.pager.table(seq)[page], inside, block, token);
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        let angles: usize = self.angles.iter().map(|angles| 4 * angles.len()).sum();
        Usage {
            weight_bytes: self.plan.weight_bytes,
            kv_bytes: self.kv.bytes(),
            scratch_bytes: self.arena.bytes() + angles + self.moe.bytes() + self.attention.bytes(),
            kv_tokens: (self.pager.pages() - self.pager.free_pages()) * PAGE,
            kv_capacity: self.pager.pages() * PAGE,
        }
    }
}

/// The pages that positions `range` lie in: index, positions within it, and where in the range they
/// begin.
fn pieces(range: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>, usize)> + use<> {
    let Range { start, end } = *range;
    let pages = if start < end { start / PAGE..end.div_ceil(PAGE) } else { 0..0 };
    pages.map(move |page| {
        let first = start.max(page * PAGE);
        let last = end.min((page + 1) * PAGE);
        (page, first - page * PAGE..last - page * PAGE, first - start)
    })
}

impl Drop for CpuExecutor {
    fn drop(&mut self) {
        self.timing.print(&self.plan.labels);
    }
}
