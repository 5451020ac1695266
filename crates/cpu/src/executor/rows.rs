//! Steps that work on each row by itself.

use std::ops::Range;

use baton_graph::{Lookup, Pooling};

use super::spans::Spans;
use crate::arena::Slots;
use crate::disjoint::Disjoint;
use crate::kernels::{norm, pointwise, rope};
use crate::pages::Floats;
use crate::plan::{RopeTable, RowOp, View};
use crate::pool::Pool;

/// Elements below which waking a thread costs more than it saves.
const MIN_TASK: usize = 16 << 10;

/// What rows are computed from beside each other.
pub(super) struct Context<'a> {
    pub(super) slots: &'a Slots<'a>,
    pub(super) spans: &'a Spans,
    /// Angles of rotation, a row for each token.
    pub(super) angles: &'a [Floats],
}

/// Takes `rows` rows through `ops`.
pub(super) fn run(pool: &Pool, ops: &[RowOp], rows: usize, context: &Context<'_>) {
    let width: usize = ops.iter().map(|op| op.out().cols).sum();
    each_chunk(pool, rows, width, |chunk| {
        for op in ops {
            for row in chunk.clone() {
                // SAFETY: a row is in one task's chunk only.
                unsafe { apply(pool, op, row, context) };
            }
        }
    });
}

/// Calls `f` for ranges that make up `0..rows`, on all threads if there is enough to do.
pub(super) fn each_chunk(pool: &Pool, rows: usize, width: usize, f: impl Fn(Range<usize>) + Sync) {
    let least = (MIN_TASK / width.max(1)).max(1);
    let each = rows.div_ceil(4 * pool.threads()).max(least);
    match rows.div_ceil(each) {
        0 => {}
        1 => f(0..rows),
        tasks => pool.run(tasks, |task, _| f(task * each..((task + 1) * each).min(rows))),
    }
}

impl RowOp {
    fn out(&self) -> &View {
        match self {
            RowOp::Embed { out, .. }
            | RowOp::RmsNorm { out, .. }
            | RowOp::LayerNorm { out, .. }
            | RowOp::Rope { out, .. }
            | RowOp::Unary { out, .. }
            | RowOp::Binary { out, .. }
            | RowOp::Gated { out, .. } => out,
        }
    }
}

/// # Safety
/// No other thread may work on that row.
unsafe fn apply(pool: &Pool, op: &RowOp, row: usize, context: &Context<'_>) {
    let isa = pool.isa();
    let slots = context.slots;
    let out = op.out();
    // An operation's input is its output, or lies in another slot; so these do not overlap.
    // SAFETY: the row is ours.
    let read = |x: &View| (x != out).then(|| unsafe { slots.read_row(x, row) });
    // SAFETY: as above.
    let to = unsafe { slots.row(out, row) };
    match op {
        RowOp::Embed { table, lookup, scale, .. } => {
            let index = match *lookup {
                Lookup::Token => context.spans.tokens[row] as usize,
                Lookup::Position => context.spans.positions[row],
                Lookup::Row(index) => index,
            };
            table.dequantize_row(index, to);
            if *scale != 1.0 {
                pointwise::unary(isa, pointwise::Unary::Scale(*scale), None, to);
            }
        }
        RowOp::RmsNorm { x, gain, eps, group, .. } => {
            norm::rms_norm(isa, read(x), gain, *eps, *group, to);
        }
        RowOp::LayerNorm { x, gain, bias, eps, .. } => {
            norm::layer_norm(isa, read(x), gain, bias, *eps, to);
        }
        RowOp::Rope { x, layout, head_dim, table, angles, .. } => {
            if let Some(x) = read(x) {
                to.copy_from_slice(x);
            }
            let angles = &context.angles[*table][row * angles..][..*angles];
            rope::rotate(isa, *layout, *head_dim, angles, to);
        }
        RowOp::Unary { f, x, .. } => pointwise::unary(isa, *f, read(x), to),
        RowOp::Binary { f, a, b, .. } => {
            if let Some(a) = read(a) {
                to.copy_from_slice(a);
            }
            // SAFETY: `b` lies in another slot than the output, and only this thread uses the row.
            pointwise::binary(isa, *f, unsafe { slots.read_row(b, row) }, to);
        }
        RowOp::Gated { kind, gate, up, .. } => {
            // SAFETY: `up` lies in another slot than the output.
            pointwise::gated(isa, *kind, read(gate), unsafe { slots.read_row(up, row) }, to);
        }
    }
}

/// Computes the angles of all new positions.
pub(super) fn angles(pool: &Pool, ropes: &[RopeTable], positions: &[usize], out: &mut [Floats]) {
    for (rope, out) in ropes.iter().zip(out) {
        let len = 2 * rope.inv_freq.len();
        let out = Disjoint::new(out);
        // A sine costs as much as some hundred additions.
        each_chunk(pool, positions.len(), 128 * len, |chunk| {
            for row in chunk {
                // SAFETY: a row is in one task's chunk only.
                let out = unsafe { out.part(row * len..(row + 1) * len) };
                rope::angles(positions[row], &rope.inv_freq, rope.magnitude, out);
            }
        });
    }
}

/// Gathers rows.
pub(super) fn select(x: &View, out: &View, wanted: &[usize], slots: &Slots<'_>) {
    for (to, &from) in wanted.iter().enumerate() {
        // SAFETY: only this thread runs, and the two lie in different slots.
        unsafe { slots.row(out, to).copy_from_slice(slots.read_row(x, from)) };
    }
}

/// Makes one vector of the rows of a span for each row that is wanted of it.
pub(super) fn pool(how: Pooling, x: &View, out: &View, spans: &Spans, slots: &Slots<'_>) {
    for (to, origin) in spans.origins.iter().enumerate() {
        let span = &spans.list[origin.span];
        let rows = match how {
            Pooling::Mean => span.row..span.row + span.tokens,
            Pooling::First => span.row..span.row + 1,
            Pooling::Last => span.row + span.tokens - 1..span.row + span.tokens,
        };
        let share = 1.0 / rows.len() as f32;
        // SAFETY: only this thread runs, and the two lie in different slots.
        let to = unsafe { slots.row(out, to) };
        to.fill(0.0);
        for row in rows {
            // SAFETY: as above.
            let from = unsafe { slots.read_row(x, row) };
            to.iter_mut().zip(from).for_each(|(to, from)| *to += share * from);
        }
    }
}
