//! How attention is split into tasks.
//!
//! A task is a block of one sequence's tokens with one key-value head. Where there are few new
//! tokens and many old ones, as in decoding, the old ones are split too and the parts joined
//! afterwards, as they are where one task does them all.

use std::ops::Range;

use baton_graph::KvType;

use super::spans::{Span, Spans};
use crate::arena::Slots;
use crate::disjoint::Disjoint;
use crate::kernels::attention::{self, Source, Sums, Tile, attend};
use crate::kv::{KvPages, NewRows, PAGE, padded, quant};
use crate::plan::AttentionStep;
use crate::pool::Pool;

/// Most rows (tokens times query heads of a key-value head) of a block: what a block computes on its way
/// stays in the second-level cache.
const BLOCK_ROWS: usize = 128;
/// Most tokens of a block. With more of them, more of their last page is computed in vain, since the first
/// ones do not see it; with fewer, pages are widened more often.
const BLOCK_TOKENS: usize = 32;
/// Most new tokens of a sequence whose old ones are split.
const SPLIT_TOKENS: usize = 8;
/// Query rows times positions below which waking a thread costs more than it saves.
const MIN_SHARED: usize = 512;

#[derive(Debug)]
struct Task {
    span: usize,
    kv_head: usize,
    /// Tokens of the span.
    tokens: Range<usize>,
    pages: Range<usize>,
    /// Where the sums go that are to be joined: part number among all of this pass.
    part: Option<usize>,
}

/// Parts of one block.
#[derive(Debug)]
struct Join {
    span: usize,
    kv_head: usize,
    tokens: Range<usize>,
    parts: Range<usize>,
}

/// Buffers that are filled anew for each layer.
#[derive(Debug, Default)]
pub(super) struct AttentionBuffers {
    tasks: Vec<Task>,
    joins: Vec<Join>,
    /// Parts' sums: for each row the maximum, the total, and the values.
    parts: Vec<f32>,
    /// New pages: span and index in its table.
    writes: Vec<(usize, usize)>,
    /// Queries, turned as quantized keys are.
    turned: Vec<f32>,
}

impl AttentionBuffers {
    pub(super) fn bytes(&self) -> usize {
        4 * (self.parts.capacity() + self.turned.capacity())
    }

    fn plan(&mut self, step: &AttentionStep, spans: &Spans) {
        self.tasks.clear();
        self.joins.clear();
        let group = step.heads / step.kv_heads;
        let mut parts = 0;
        for (index, span) in spans.list.iter().enumerate() {
            let block = (BLOCK_ROWS / group).clamp(1, BLOCK_TOKENS);
            // The last blocks have the longest past: they go first.
            for first in (0..span.tokens).step_by(block).rev() {
                let tokens = first..(first + block).min(span.tokens);
                let (position, end) = (span.position, span.end());
                let seen = step.scoring.visible(position + first, end).start
                    ..step.scoring.visible(position + tokens.end - 1, end).end;
                let pages = seen.start / PAGE..seen.end.div_ceil(PAGE);
                let split = span.tokens <= SPLIT_TOKENS && attention::parts(&pages).count() > 1;
                for kv_head in 0..step.kv_heads {
                    let (span, tokens) = (index, tokens.clone());
                    if !split {
                        let pages = pages.clone();
                        self.tasks.push(Task { span, kv_head, tokens, pages, part: None });
                        continue;
                    }
                    let first_part = parts;
                    for pages in attention::parts(&pages) {
                        let (tokens, part) = (tokens.clone(), Some(parts));
                        self.tasks.push(Task { span, kv_head, tokens, pages, part });
                        parts += 1;
                    }
                    self.joins.push(Join { span, kv_head, tokens, parts: first_part..parts });
                }
            }
        }
    }
}

/// What all tasks of a layer share.
struct Layer<'a> {
    step: &'a AttentionStep,
    spans: &'a Spans,
    slots: &'a Slots<'a>,
    kv: &'a KvPages,
    group: usize,
    /// Floats from the sums of one row to the next.
    stride: usize,
    /// Floats of one part.
    part_len: usize,
    queries: &'a [f32],
    query_stride: usize,
    /// Whether queries are turned as keys are, and sums of values are to be turned back.
    is_turned: bool,
    new: NewRows<'a>,
}

/// Appends the new keys and values, where there is a cache, and attends.
pub(super) fn run(
    pool: &Pool,
    step: &AttentionStep,
    spans: &Spans,
    slots: &Slots<'_>,
    kv: &mut KvPages,
    buffers: &mut AttentionBuffers,
) {
    let rows = spans.positions.len();
    let (key_stride, value_stride) = (step.k.stride, step.v.stride);
    // SAFETY: nobody writes to queries, keys and values during this step.
    let (queries, keys, values) = unsafe {
        (slots.read(&step.q, rows), slots.read(&step.k, rows), slots.read(&step.v, rows))
    };
    let new = NewRows { keys, key_stride, values, value_stride };
    if let Some(layer) = step.layer {
        store(pool, layer, spans, &new, kv, buffers);
    }
    buffers.plan(step, spans);
    let (stride, group) = (padded(step.head_dim), step.heads / step.kv_heads);
    let part_len = SPLIT_TOKENS * group * (stride + 2);
    let count = buffers.joins.last().map_or(0, |join| join.parts.end);
    if buffers.parts.len() < count * part_len {
        buffers.parts.resize(count * part_len, 0.0);
    }
    let kv = &*kv;
    let is_turned = step.layer.is_some_and(|layer| kv.layer(layer).kind != KvType::F16);
    let AttentionBuffers { tasks, joins, parts, turned, .. } = buffers;
    let (queries, query_stride) = match is_turned {
        true => (turn(pool, step, queries, rows, turned), step.heads * step.head_dim),
        false => (queries, step.q.stride),
    };
    let layer = Layer {
        step,
        spans,
        slots,
        kv,
        group,
        stride,
        part_len,
        queries,
        query_stride,
        is_turned,
        new,
    };
    let positions: usize = spans.list.iter().map(|span| span.tokens * span.end()).sum();
    let parts = Disjoint::new(parts);
    in_parallel(pool, tasks.len(), positions * step.heads, |task| {
        layer.attend(pool, &tasks[task], &parts);
    });
    in_parallel(pool, joins.len(), count * group * stride / 32, |join| {
        // SAFETY: all tasks are done, nobody writes to the parts any more.
        layer.join(&joins[join], |range| unsafe { parts.read(range) });
    });
}

fn in_parallel(pool: &Pool, tasks: usize, work: usize, f: impl Fn(usize) + Sync) {
    if work < MIN_SHARED {
        (0..tasks).for_each(f);
    } else {
        pool.run(tasks, |task, _| f(task));
    }
}

/// The queries of `rows` tokens, turned, one token's after another.
fn turn<'a>(
    pool: &Pool,
    step: &AttentionStep,
    queries: &[f32],
    rows: usize,
    turned: &'a mut Vec<f32>,
) -> &'a [f32] {
    let width = step.heads * step.head_dim;
    if turned.len() < rows * width {
        turned.resize(rows * width, 0.0);
    }
    let all = Disjoint::new(turned);
    in_parallel(pool, rows, width * rows / 32, |row| {
        // SAFETY: each row is one task's.
        let own = unsafe { all.part(row * width..(row + 1) * width) };
        own.copy_from_slice(&queries[row * step.q.stride..][..width]);
        own.chunks_exact_mut(step.head_dim).for_each(quant::turn);
    });
    turned
}

/// Writes the new keys and values, one page to a task.
fn store(
    pool: &Pool,
    layer: usize,
    spans: &Spans,
    new: &NewRows<'_>,
    kv: &mut KvPages,
    buffers: &mut AttentionBuffers,
) {
    let writes = &mut buffers.writes;
    writes.clear();
    for (index, span) in spans.list.iter().enumerate() {
        writes.extend(span.new_pages().map(|page| (index, page)));
    }
    let layout = kv.layer(layer);
    let pages = kv.share();
    in_parallel(pool, writes.len(), spans.positions.len() * layout.kv_heads * 8, |write| {
        let (index, page) = writes[write];
        let span = &spans.list[index];
        let first = span.position.max(page * PAGE);
        let last = span.end().min((page + 1) * PAGE);
        let rows = first - span.position + span.row..last - span.position + span.row;
        let id = spans.table(span)[page];
        // SAFETY: a page that is written to belongs to one sequence alone, and a sequence occurs
        // once in a batch; so each task has its own page.
        unsafe { pages.write(pool.isa(), id, &layout, first - page * PAGE, rows, new) };
    });
}

impl Layer<'_> {
    fn attend(&self, pool: &Pool, task: &Task, parts: &Disjoint<'_, f32>) {
        let Layer { step, spans, group, .. } = self;
        let span = &spans.list[task.span];
        let heads = task.kv_head * group..(task.kv_head + 1) * group;
        let first_row = span.row + task.tokens.start;
        let position = span.position + task.tokens.start;
        let source = match step.layer {
            Some(layer) => {
                Source::Pages { kv: self.kv, layer: self.kv.layer(layer), table: spans.table(span) }
            }
            None => Source::Rows { new: self.new, first: span.row },
        };
        let tile = Tile {
            scoring: step.scoring,
            source,
            kv_head: task.kv_head,
            head_dim: step.head_dim,
            pages: task.pages.clone(),
            position,
            tokens: task.tokens.len(),
            end: span.end(),
            group: *group,
            queries: &self.queries[first_row * self.query_stride + heads.start * step.head_dim..],
            query_stride: self.query_stride,
            sinks: self.sinks(task.kv_head),
            is_part: task.part.is_some(),
        };
        attend(pool.isa(), &tile, |sums| match task.part {
            None => self.store(span, task.kv_head, &task.tokens, sums),
            Some(part) => {
                // SAFETY: each part is one task's.
                let part = unsafe { parts.part(part * self.part_len..(part + 1) * self.part_len) };
                let rows = sums.max.len();
                let (max, rest) = part.split_at_mut(rows);
                let (total, values) = rest.split_at_mut(rows);
                max.copy_from_slice(&sums.max);
                total.copy_from_slice(&sums.total);
                values[..sums.values.len()].copy_from_slice(&sums.values);
            }
        });
    }

    /// Divides the sums by their totals: the result of a block.
    fn store(&self, span: &Span, kv_head: usize, tokens: &Range<usize>, sums: &Sums) {
        let dim = self.step.head_dim;
        for row in 0..sums.max.len() {
            let out = self.head_out(span, kv_head, tokens, row);
            let values = &sums.values[row * self.stride..][..dim];
            let factor = 1.0 / sums.total[row];
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value * factor);
            self.turn_back(out);
        }
    }

    /// Turns the result of a head back, where values are turned.
    fn turn_back(&self, out: &mut [f32]) {
        if self.is_turned {
            quant::turn(out);
        }
    }

    /// Where the result of row `row` of a block goes.
    #[allow(clippy::mut_from_ref)]
    fn head_out(
        &self,
        span: &Span,
        kv_head: usize,
        tokens: &Range<usize>,
        row: usize,
    ) -> &mut [f32] {
        let (token, head) = (row / self.group, row % self.group);
        let dim = self.step.head_dim;
        let mut view = self.step.out;
        view.offset += (kv_head * self.group + head) * dim;
        view.cols = dim;
        // SAFETY: each head of each token is in one block, whose task calls this once for it.
        unsafe { self.slots.row(&view, span.row + tokens.start + token) }
    }

    /// Joins the parts of a block; `part` gives elements of the buffer of parts.
    fn join<'b>(&self, join: &Join, part: impl Fn(Range<usize>) -> &'b [f32]) {
        let rows = join.tokens.len() * self.group;
        let (stride, dim) = (self.stride, self.step.head_dim);
        let span = &self.spans.list[join.span];
        let number = |index: usize, at: usize| {
            let at = index * self.part_len + at;
            part(at..at + 1)[0]
        };
        for row in 0..rows {
            let out = self.head_out(span, join.kv_head, &join.tokens, row);
            out.fill(0.0);
            let mut so_far = attention::start(self.sinks(join.kv_head), row % self.group);
            for index in join.parts.clone() {
                let own = (number(index, row), number(index, rows + row));
                let start = index * self.part_len + 2 * rows + row * stride;
                attention::join(&mut so_far, out, own, part(start..start + dim));
            }
            let factor = 1.0 / so_far.1;
            out.iter_mut().for_each(|out| *out *= factor);
            self.turn_back(out);
        }
    }

    /// Logits of the sinks of a key-value head's query heads; empty if there are none.
    fn sinks(&self, kv_head: usize) -> &[f32] {
        match &self.step.sinks[..] {
            [] => &[],
            sinks => &sinks[kv_head * self.group..(kv_head + 1) * self.group],
        }
    }
}
