//! Runs a plan over ragged batches.

use std::ops::Range;
use std::sync::Arc;

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, Pager, Rows, SeqId, Usage,
};

use crate::ahead::Foresight;
use crate::best::{self, Finder};
use crate::kernels;
use crate::kv::Caches;
use crate::landing::{Flight, Landing};
use crate::memory::Buffers;
use crate::plan::{Height, Plan, Work};
use crate::program::Program;
use crate::step::{PAGE, Piece, Room, Tables, passes};
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
        self.tables.set(batch, pieces, &self.pager, &self.room, best, 0);
        self.buffers.write(&self.gpu, &self.tables);
        let flight = self.submit()?;
        let first = logits.rows.len();
        logits.rows.extend_from_slice(&self.tables.origins);
        self.go_on(batch, pieces, best)?;
        self.land(batch, flight, first, logits)
    }

    /// Submits the pass that the tables tell of.
    fn submit(&mut self) -> Result<Flight, GpuError> {
        self.place ^= 1;
        let (sizes, place, landing) = (self.tables.sizes, self.place, &self.landing);
        let done = self.program.submit(&sizes, place, |e| landing.copy(e, &sizes, place))?;
        Ok(Flight { done, sizes, place })
    }

    /// Waits for a pass and appends its results, whose rows begin with row `first`.
    fn land(
        &mut self,
        batch: &Batch,
        flight: Flight,
        first: usize,
        logits: &mut Logits,
    ) -> Result<(), GpuError> {
        let number = |span: usize| match batch.spans[span].rows {
            Rows::Best(number) => number,
            _ => 0,
        };
        let numbers: Vec<usize> = logits.rows[first..].iter().map(|r| number(r.span)).collect();
        self.landing.land(&self.gpu, flight, numbers.into_iter(), logits)?;
        self.gpu.check()
    }

    /// While the device works on a pass over these pieces: submits what is likely to come next, and
    /// makes ready what comes then.
    fn go_on(
        &mut self,
        batch: &Batch,
        pieces: &[Piece],
        best: Option<usize>,
    ) -> Result<(), GpuError> {
        let has_room = || batch.spans.iter().all(|span| self.pager.spare(span.seq) > 0);
        let is_whole = pieces.len() == batch.spans.len();
        if let Some(best) = best
            && self.foresight.is_likely(batch, Some(best))
            && is_whole
            && !self.program.is_timed()
            && has_room()
        {
            self.tables.set(batch, pieces, &self.pager, &self.room, Some(best), 1);
            self.buffers.write_tables(&self.gpu, &self.tables);
            let flight = self.submit()?;
            self.foresight.submitted(flight, best);
        }
        let (sizes, place, landing) = (self.tables.sizes, self.place ^ 1, &self.landing);
        self.program.prepare(&sizes, place, |e| landing.copy(e, &sizes, place))
    }

    fn run(&mut self, batch: &Batch, best: Option<usize>) -> Result<Logits, GpuError> {
        let mut logits = Logits { vocab: self.plan.result.cols, ..Logits::default() };
        let may_cut = !self.plan.whole_texts;
        for pieces in passes(batch, &self.pager, &self.room, may_cut) {
            self.pass(batch, &pieces, best, &mut logits)?;
        }
        Ok(logits)
    }

    /// The results of a batch whose pass is under way.
    fn follow(
        &mut self,
        batch: &Batch,
        flight: Flight,
        best: Option<usize>,
    ) -> Result<Logits, GpuError> {
        let rows = batch.wanted_rows().into_iter().map(|(_, row)| row).collect();
        let mut logits = Logits { vocab: self.plan.result.cols, rows, ..Logits::default() };
        let pieces = (0..batch.spans.len()).map(|span| Piece { span, start: 0, tokens: 1 });
        let pieces: Vec<Piece> = pieces.collect();
        self.go_on(batch, &pieces, best)?;
        self.land(batch, flight, 0, &mut logits)?;
        Ok(logits)
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
        let flight = self.foresight.meet(batch, best);
        let copies = self.pager.append_batch(batch)?;
        let result = match flight {
            Some(flight) => self.follow(batch, flight, best),
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
