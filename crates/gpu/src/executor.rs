//! Runs a plan over ragged batches.

use std::ops::Range;
use std::sync::Arc;

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, Pager, SeqId, Usage,
};

use crate::kernels;
use crate::kv::Caches;
use crate::memory::Buffers;
use crate::plan::{Height, Plan, Work};
use crate::program::Program;
use crate::step::{PAGE, Piece, Room, Tables, passes};
use crate::{Gpu, GpuError, Use};

/// Largest limit of any kind: keeps all row and page numbers within 32 bits.
const MOST_TOKENS: usize = 1 << 26;
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
    /// Where logits are copied to.
    staging: wgpu::Buffer,
}

impl GpuExecutor {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        graph: &Graph,
        plan: Plan,
        limits: Limits,
        pass_tokens: usize,
    ) -> Result<Self, ExecError> {
        for (name, limit) in [
            ("context", limits.context),
            ("kv_tokens", limits.kv_tokens),
            ("batch_tokens", limits.batch_tokens),
        ] {
            if limit == 0 || limit > MOST_TOKENS {
                let text = format!("a limit of {limit} for {name}; say 1 to {MOST_TOKENS}");
                return Err(ExecError::Invalid(text));
            }
        }
        graph.check_limits(&limits)?;
        let pager = Pager::new(PAGE, &limits);
        let room = room(gpu, &plan, &limits, pass_tokens, pager.pages())?;
        let kept = graph.states().len();
        let caches = Caches::new(gpu, &plan.caches, kept, pager.pages())?;
        let buffers = Buffers::new(gpu, &plan, &room, limits.context)?;
        let program = Program::new(gpu, &plan, &buffers, &caches, &room)?;
        let bytes = 4 * (room.wanted * plan.result.cols) as u64;
        let staging = gpu.buffer("logits for the host", bytes, Use::Readback)?;
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
            staging,
        })
    }

    /// One pass; the batch was checked and its pages are there.
    fn pass(
        &mut self,
        batch: &Batch,
        pieces: &[Piece],
        logits: &mut Logits,
    ) -> Result<(), GpuError> {
        self.tables.set(batch, pieces, &self.pager, &self.room);
        self.buffers.write(&self.gpu, &self.tables);
        let bytes = 4 * u64::from(self.tables.sizes.wanted) * self.plan.result.cols as u64;
        let result = &self.buffers.slots[self.plan.result.slot];
        let staging = &self.staging;
        let copy = |encoder: &mut wgpu::CommandEncoder| {
            if bytes > 0 {
                encoder.copy_buffer_to_buffer(result, 0, staging, 0, bytes);
            }
        };
        self.program.submit(&self.tables.sizes, copy)?;
        self.program.prepare(&self.tables.sizes, copy)?;
        if bytes > 0 {
            logits.rows.extend_from_slice(&self.tables.origins);
            self.read(bytes, &mut logits.values)?;
        }
        self.gpu.check()
    }

    /// Waits for the pass and appends its logits.
    fn read(&self, bytes: u64, values: &mut Vec<f32>) -> Result<(), GpuError> {
        self.gpu.map_with(&self.staging, bytes, |mapped| match bytemuck::try_cast_slice(mapped) {
            Ok(floats) => values.extend_from_slice(floats),
            Err(_) => values.extend(bytemuck::pod_collect_to_vec::<u8, f32>(mapped)),
        })
    }

    fn run(&mut self, batch: &Batch) -> Result<Logits, GpuError> {
        let mut logits = Logits { vocab: self.plan.result.cols, ..Logits::default() };
        let may_cut = !self.plan.whole_texts;
        for pieces in passes(batch, &self.pager, &self.room, may_cut) {
            self.pass(batch, &pieces, &mut logits)?;
        }
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

impl Executor for GpuExecutor {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        batch.check(self.plan.input_vocab, &self.limits)?;
        if self.plan.whole_texts {
            batch.check_whole(|seq| self.len(seq))?;
        }
        self.gpu.check()?;
        let copies = self.pager.append_batch(batch)?;
        let result = self.copy_pages(&copies).and_then(|()| self.run(batch));
        if result.is_err() {
            self.take_back(batch.spans.iter().map(|span| (span.seq, span.tokens.len())));
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
        self.caches.export(self.pager.table(seq), range, &mut block)?;
        Ok(block)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        block.check(&self.graph)?;
        KvBlock::check_position(at, self.len(seq))?;
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
                + self.staging.size() as usize,
            kv_tokens: (self.pager.pages() - self.pager.free_pages()) * PAGE,
            kv_capacity: self.pager.pages() * PAGE,
        }
    }
}
