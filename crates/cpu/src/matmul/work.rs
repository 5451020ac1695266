//! How a product is split into tasks, and where a kernel puts its results.

use std::ops::Range;

use super::matrix::Matrix;
use super::packed::Layout;
use super::scratch::{Scratch, with_scratch};
use super::{Epilogue, float, portable};
use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::quant::Rows;

/// Bytes of weights below which a task is not split further.
const MIN_TASK_BYTES: usize = 16 << 10;
/// Tasks for each thread: enough to even out threads that are held up.
const TASKS_PER_THREAD: usize = 12;

/// The activation rows that meet a matrix.
#[derive(Clone, Copy)]
pub(super) enum Tokens<'a> {
    /// All of that many.
    All(usize),
    /// Those listed.
    List(&'a [u32]),
}

impl Tokens<'_> {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        match self {
            Tokens::All(n) => *n,
            Tokens::List(list) => list.len(),
        }
    }

    /// The activation row of the `i`th.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> usize {
        match self {
            Tokens::All(_) => i,
            Tokens::List(list) => list[i] as usize,
        }
    }
}

/// One matrix of a product and where its output goes.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) tokens: Tokens<'a>,
    /// Output row of the first token.
    pub(super) first_row: usize,
    /// Output column of the matrix's first row.
    pub(super) first_col: usize,
}

/// A range of one job's matrix rows, as given to a kernel. Ranges of different tasks are disjoint.
pub(super) struct Work<'a> {
    pub(super) x: &'a Rows<'a>,
    pub(super) job: Job<'a>,
    /// Matrix rows to do.
    pub(super) rows: Range<usize>,
    out: &'a Disjoint<'a, f32>,
    stride: usize,
    epilogue: Epilogue<'a>,
}

impl Work<'_> {
    /// Where the products of token `token` with `count` matrix rows from `row` on go, the bias to add to
    /// them, and whether what is there is to be added too.
    ///
    /// # Safety
    /// Nobody else may have that place.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(super) unsafe fn place(
        &self,
        token: usize,
        row: usize,
        count: usize,
    ) -> (&mut [f32], Option<&[f32]>, bool) {
        assert!(self.rows.start <= row && row + count <= self.rows.end);
        let col = self.job.first_col + row;
        let start = (self.job.first_row + token) * self.stride + col;
        // SAFETY: each output belongs to one matrix row of one job, which is in one task's range; within
        // the task the caller sees to it.
        let out = unsafe { self.out.part(start..start + count) };
        (out, self.epilogue.bias.map(|bias| &bias[col..col + count]), self.epilogue.accumulate)
    }

    /// Stores the products of token `token` with the matrix rows that start at `row`; those beyond
    /// the range are dropped.
    #[inline(always)]
    pub(super) fn store(&self, token: usize, row: usize, products: &[f32]) {
        let count = products.len().min(self.rows.end - row);
        // SAFETY: it is given back with this call.
        let (out, bias, accumulate) = unsafe { self.place(token, row, count) };
        for (i, (out, &product)) in out.iter_mut().zip(products).enumerate() {
            let sum = product + bias.map_or(0.0, |bias| bias[i]);
            *out = if accumulate { *out + sum } else { sum };
        }
    }
}

/// Does `jobs` jobs on all threads. `job(i, before)` is the `i`th, given the one before it.
pub(super) fn run<'a>(
    pool: &Pool,
    x: &Rows<'_>,
    jobs: usize,
    job: impl Fn(usize, Option<Job<'a>>) -> Job<'a> + Sync,
    out: &mut [f32],
    stride: usize,
    epilogue: Epilogue<'_>,
) {
    let all = || {
        (0..jobs).scan(None, |before, i| {
            *before = Some(job(i, *before));
            *before
        })
    };
    let isa = pool.isa();
    let unit = Layout::of(isa).rows;
    let panels = |job: &Job<'_>| {
        if job.tokens.len() == 0 { 0 } else { job.matrix.rows().div_ceil(unit) }
    };
    let (total, bytes) = all().fold((0, 0), |(total, bytes), job| {
        (total + panels(&job), bytes + job.matrix.stored_bytes() * job.tokens.len().min(64))
    });
    if total == 0 {
        return;
    }
    let wanted = (bytes / MIN_TASK_BYTES).clamp(1, TASKS_PER_THREAD * pool.threads());
    let each = total.div_ceil(wanted);
    let tasks = all().map(|job| panels(&job).div_ceil(each)).sum();

    let out = Disjoint::new(out);
    pool.run(tasks, |task, _| {
        let mut left = task;
        for job in all() {
            let tasks = panels(&job).div_ceil(each);
            if left < tasks {
                let start = left * each * unit;
                let rows = start..(start + each * unit).min(job.matrix.rows());
                let work = Work { x, job, rows, out: &out, stride, epilogue };
                with_scratch(|scratch| dispatch(isa, &work, scratch));
                return;
            }
            left -= tasks;
        }
    });
}

fn dispatch(isa: Isa, work: &Work<'_>, scratch: &mut Scratch) {
    match isa {
        _ if work.job.matrix.is_float() => float::run(isa, work, scratch),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a pool's instruction set is one that the machine has.
        Isa::Avx2 => unsafe { super::avx2::run(work, scratch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { super::avx512::run(work, scratch) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonI8mm => {
            // SAFETY: a pool's instruction set is one that the machine has.
            unsafe { super::neon::run(work, scratch, isa == Isa::NeonI8mm) }
        }
        _ => portable::run(work, scratch),
    }
}
