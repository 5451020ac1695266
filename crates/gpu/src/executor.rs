//! Runs a plan over ragged batches.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use baton_graph::{
    Batch, Best, ExecError, Executor, Graph, KvBlock, Limits, LogitRow, Logits, Pager, Rows, SeqId,
    Usage,
};

use crate::ahead::{Ahead, Foresight};
use crate::best::{self, Finder};
use crate::kernels;
use crate::kv::Caches;
use crate::landing::{Flight, Landing, Order};
use crate::memory::Buffers;
use crate::plan::{Height, Plan, Work};
use crate::program::Program;
use crate::step::{PAGE, Piece, Room, Sizes, Tables, passes};
use crate::{Gpu, GpuError};

/// Most rows of one pass: what a grid's second dimension has.
const MOST_ROWS: usize = 1 << 15;
/// Bytes of logits that one pass may leave; more are computed in several passes.
const LOGITS_BYTES: usize = 64 << 20;

/// A graph compiled for a GPU.
pub(crate) struct GpuExecutor {
    gpu: Arc<Gpu>,
    graph: Graph,
    plan: Plan,
    limits: Limits,
    room: Room,
    pager: Pager,
    caches: Caches,
    buffers: Buffers,
    program: Program,
    tables: Tables,
    finder: Option<Finder>,
    landing: Landing,
    /// Which of both places the results of the last pass go to.
    place: usize,
    foresight: Foresight,
}

impl GpuExecutor {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        graph: &Graph,
        plan: Plan,
        limits: Limits,
        pass_tokens: usize,
    ) -> Result<Self, ExecError> {
        graph.check_limits(&limits)?;
        let pager = Pager::new(PAGE, &limits);
        let room = room(gpu, &plan, &limits, pass_tokens, pager.pages())?;
        let kept = graph.states().len();
        let caches = Caches::new(gpu, &plan.caches, kept, pager.pages())?;
        let buffers = Buffers::new(gpu, &plan, &room, limits.context)?;
        // Vectors of texts have no best tokens.
        let finder = (!plan.whole_texts)
            .then(|| Finder::new(gpu, plan.result.cols, room.wanted))
            .transpose()?;
        let landing = Landing::new(gpu, &plan, &buffers, finder.as_ref(), &room)?;
        let program = Program::new(gpu, &plan, &buffers, &caches, &room, finder.as_ref())?;
        Ok(GpuExecutor {
            gpu: Arc::clone(gpu),
            graph: graph.clone(),
            plan,
            limits,
            room,
            pager,
            caches,
            buffers,
            program,
            tables: Tables::default(),
            finder,
            landing,
            place: 0,
            foresight: Foresight::default(),
        })
    }

    /// One pass, of whose rows so many best tokens are enough; the batch was checked and its pages are
    /// there.
    fn pass(
        &mut self,
        batch: &Batch,
        pieces: &[Piece],
        best: Option<usize>,
        logits: &mut Logits,
    ) -> Result<(), GpuError> {
        let started = Instant::now();
        self.tables.set(batch, pieces, &self.pager, &self.room, best);
        self.buffers.write(&self.gpu, &self.tables);
        let flight = self.submit(self.tables.sizes, 1)?;
        let first = logits.rows.len();
        logits.rows.extend_from_slice(&self.tables.origins);
        let is_whole = pieces.len() == batch.spans.len();
        self.go_on(batch, &flight.order, best.filter(|_| is_whole))?;
        if best.is_none() {
            self.landing.logits(&self.gpu, flight, &mut logits.values)?;
        } else if logits.rows.len() > first {
            let found = self.landing.best(&self.gpu, flight)?.next().unwrap_or_default();
            logits.best.extend(read(batch, &logits.rows[first..], &found));
            self.foresight.took(started.elapsed());
        }
        self.gpu.check()
    }

    /// Submits passes, the first of which the tables tell of.
    fn submit(&mut self, sizes: Sizes, passes: usize) -> Result<Flight, GpuError> {
        self.place ^= 1;
        let order = Order { sizes, passes, place: self.place };
        let done = self.program.submit(&order, |e| self.landing.copy(e, &order))?;
        Ok(Flight { done, order })
    }

    /// While the device works on passes, the first of which is a batch's: submits what is likely to come behind
    /// them, if so many best tokens are enough for that, and makes ready what comes then.
    fn go_on(&mut self, batch: &Batch, order: &Order, best: Option<usize>) -> Result<(), GpuError> {
        let sizes = order.sizes;
        let mut next = 1;
        if let Some(best) = best.filter(|_| !self.program.is_timed()) {
            let spare = batch.spans.iter().map(|span| self.pager.spare(span.seq)).min();
            // The passes behind the first write there.
            let spare = spare.unwrap_or(0).saturating_sub(order.passes - 1);
            let fits = self.finder.as_ref().map_or(0, |f| f.passes(sizes.wanted as usize));
            let passes = self.foresight.passes(batch, best, order.passes, 0).min(spare).min(fits);
            if passes > 0 {
                let flight = self.submit(sizes, passes)?;
                self.foresight.submitted(flight, best);
                let then = self.foresight.passes(batch, best, passes, order.passes);
                next = then.min(spare - passes).min(fits).max(1);
            }
        }
        let next = Order { sizes, passes: next, place: self.place ^ 1 };
        self.program.prepare(&next, |e| self.landing.copy(e, &next))
    }

    fn run(&mut self, batch: &Batch, best: Option<usize>) -> Result<Logits, GpuError> {
        let mut logits = Logits { vocab: self.plan.result.cols, ..Logits::default() };
        let may_cut = !self.plan.whole_texts;
        for pieces in passes(batch, &self.pager, &self.room, may_cut) {
            self.pass(batch, &pieces, best, &mut logits)?;
        }
        Ok(logits)
    }

    /// The results of a batch whose pass is done or under way.
    fn follow(
        &mut self,
        batch: &Batch,
        ahead: Ahead,
        best: Option<usize>,
    ) -> Result<Logits, GpuError> {
        let found = match ahead {
            Ahead::Landed(found) => found,
            Ahead::Flight(flight, enough) => {
                self.go_on(batch, &flight.order, best)?;
                let mut landed = self.landing.best(&self.gpu, flight)?;
                let first = landed.next().unwrap_or_default();
                self.foresight.landed(landed, enough);
                self.gpu.check()?;
                first
            }
        };
        let rows: Vec<LogitRow> = batch.wanted_rows().into_iter().map(|(_, row)| row).collect();
        let best = read(batch, &rows, &found).collect();
        Ok(Logits { vocab: self.plan.result.cols, rows, best, ..Logits::default() })
    }

    /// Makes the copies that the pager asks for.
    fn copy_pages(&self, copies: &[baton_graph::PageCopy]) -> Result<(), GpuError> {
        if copies.is_empty() {
            return Ok(());
        }
        let encode = |pass: &mut wgpu::ComputePass<'_>| {
            self.caches.copy(pass, copies, &self.buffers.tables);
        };
        self.gpu.submit("a copy of pages", encode).map(|_| ())
    }

    /// Forgets what was appended, after a failure of the device.
    fn take_back(&mut self, appended: impl Iterator<Item = (SeqId, usize)>) {
        for (seq, new) in appended {
            let len = self.pager.len(seq) - new;
            self.pager.truncate(seq, len).expect("it holds what was appended");
        }
    }
}

/// What a pass has found of these rows of a batch, of each as many tokens as it wants.
fn read<'a>(
    batch: &'a Batch,
    rows: &'a [LogitRow],
    found: &'a [u32],
) -> impl Iterator<Item = Best> + 'a {
    let number = |row: &LogitRow| match batch.spans[row.span].rows {
        Rows::Best(number) => number,
        _ => 0,
    };
    best::read(found, rows.iter().map(number))
}

/// The rows that passes may have: as many as the limits ask for, and as the device can address.
fn room(
    gpu: &Gpu,
    plan: &Plan,
    limits: &Limits,
    pass_tokens: usize,
    pages: usize,
) -> Result<Room, ExecError> {
    let most = gpu.limits().max_storage_buffer_binding_size as usize / 4;
    let widest = |height| {
        let slots = plan.slots.iter().filter(|s| s.height == height).map(|s| s.width);
        let mixtures = plan.steps.iter().filter(|s| s.height == height).filter_map(|step| {
            let Work::Moe(moe) = &step.work else { return None };
            Some(moe.spec.top_k * moe.out.cols.max(2 * moe.spec.ffn))
        });
        slots.chain(mixtures).max().unwrap_or(1).max(1)
    };
    let rows =
        limits.batch_tokens.min(pass_tokens).min(MOST_ROWS).min(most / widest(Height::Tokens));
    let text = rows.min(limits.context);
    let wanted = match plan.whole_texts {
        true => rows,
        false => rows.min((LOGITS_BYTES / 4 / plan.result.cols).max(1)),
    };
    let wanted = wanted.min(most / widest(Height::Wanted));
    let longest = limits.context.min(limits.batch_tokens);
    if rows == 0 || wanted == 0 || (plan.whole_texts && text.min(wanted) < longest) {
        return Err(ExecError::Invalid(format!(
            "this GPU computes {rows} tokens at once, too few for whole texts of {longest}; lower \
             the context or use the CPU"
        )));
    }
    let pages = pages.max(limits.context.div_ceil(PAGE));
    Ok(Room { rows, wanted, pages, tile: kernels::tile(gpu, plan) })
}

mod warm;

impl Executor for GpuExecutor {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        batch.check(self.plan.input_vocab, &self.limits)?;
        if self.plan.whole_texts {
            batch.check_whole(|seq| self.len(seq))?;
        }
        self.gpu.check()?;
        let best = best::wanted(batch).filter(|_| self.finder.is_some());
        let ahead = self.foresight.meet(batch, best);
        let copies = match self.pager.append_batch(batch) {
            Ok(copies) => copies,
            Err(error) => {
                // What was taken for this batch is not what comes next.
                self.foresight.forget();
                return Err(error);
            }
        };
        let result = match ahead {
            Some(ahead) => self.follow(batch, ahead, best),
            None => self.copy_pages(&copies).and_then(|()| self.run(batch, best)),
        };
        match &result {
            Ok(logits) => self.foresight.expect(batch, logits),
            Err(_) => {
                self.foresight.forget();
                self.take_back(batch.spans.iter().map(|span| (span.seq, span.tokens.len())));
            }
        }
        Ok(result?)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len(&self, seq: SeqId) -> usize {
        self.pager.len(seq)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        self.foresight.forget();
        self.pager.truncate(seq, len)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        self.foresight.forget();
        self.pager.copy(from, to, len)
    }

    fn free(&mut self, seq: SeqId) {
        self.foresight.forget();
        self.pager.free(seq);
    }

    fn export_kv(&self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError> {
        let mut block = KvBlock::for_range(&self.graph, seq, self.len(seq), &range)?;
        self.caches.export(self.pager.table(seq), range, &mut block)?;
        Ok(block)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        block.check(&self.graph)?;
        KvBlock::check_position(at, self.len(seq))?;
        self.foresight.forget();
        let copies = self.pager.append(&[(seq, block.tokens)])?;
        let table = self.pager.table(seq);
        let result = self.copy_pages(&copies).and_then(|()| self.caches.import(table, at, block));
        if result.is_err() {
            self.take_back(std::iter::once((seq, block.tokens)));
        }
        Ok(result?)
    }

    fn usage(&self) -> Usage {
        Usage {
            weight_bytes: self.plan.weight_bytes,
            kv_bytes: self.caches.bytes(),
            scratch_bytes: self.buffers.bytes()
                + self.program.room_bytes
                + self.finder.as_ref().map_or(0, Finder::bytes)
                + self.landing.bytes(),
            kv_tokens: (self.pager.pages() - self.pager.free_pages()) * PAGE,
            kv_capacity: self.pager.pages() * PAGE,
        }
    }
}

#[cfg(test)]
mod tests;
