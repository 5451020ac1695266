//! What an executor does in a forward pass: steps over rows of f32 in one arena.
//!
//! ```text
//! lower     graph nodes become steps; what can be done in place is
//! weights   names become matrices and vectors
//! memory    values that do not live at the same time share memory
//! ```
//!
//! Cheap operations on rows that follow each other form one step, in which each thread takes its
//! rows through all of them.

mod lower;
mod memory;
mod weights;

use baton_graph::{ExecError, passes};
use baton_graph::{Gate, Graph, Limits, Lookup, Moe, Pooling, RopeLayout, StateSpec};
use baton_weights::{Tensor, Weights};

use crate::cache::{PackedCache, Saving};
use crate::kernels::attention::Scoring;
use crate::kernels::pointwise::{Binary, Unary};
use crate::matmul::{Matrix, pack_cached};
use crate::pages::Floats;
use crate::pool::Pool;
use crate::quant::Rounding;

pub(crate) use baton_graph::{Height, View};

/// An operation on single rows. One whose input is its output works in place; else the two lie in
/// different slots.
#[derive(Debug)]
pub(crate) enum RowOp {
    Embed {
        table: Tensor,
        lookup: Lookup,
        scale: f32,
        out: View,
    },
    RmsNorm {
        x: View,
        out: View,
        gain: Vec<f32>,
        eps: f32,
        group: usize,
    },
    LayerNorm {
        x: View,
        out: View,
        gain: Vec<f32>,
        bias: Vec<f32>,
        eps: f32,
    },
    /// A row of `table` has `angles` elements.
    Rope {
        x: View,
        out: View,
        layout: RopeLayout,
        head_dim: usize,
        table: usize,
        angles: usize,
    },
    Unary {
        f: Unary,
        x: View,
        out: View,
    },
    /// `a` is in place or is copied to `out` first; `b` lies in another slot than `out`.
    Binary {
        f: Binary,
        a: View,
        b: View,
        out: View,
    },
    /// `gate` may be `out`; `up` lies in another slot.
    Gated {
        kind: Gate,
        gate: View,
        up: View,
        out: View,
    },
}

/// A matrix product.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) x: View,
    pub(crate) out: View,
    pub(crate) height: Height,
    pub(crate) matrices: Vec<Matrix>,
    /// As long as a row of the product, or empty.
    pub(crate) bias: Vec<f32>,
    /// Whether the product is added to what `out` holds.
    pub(crate) accumulate: bool,
    /// Whether `x` is to be quantized: some matrix is.
    pub(crate) quantize: bool,
}

impl Product {
    /// How its input is rounded. Rows of logits are few, so that their weights are all that takes time.
    pub(crate) fn rounding(&self) -> Rounding {
        match self.height {
            Height::Tokens => Rounding::Coarse,
            Height::Wanted => Rounding::Fine,
        }
    }
}

/// Attention of one layer.
#[derive(Debug)]
pub(crate) struct AttentionStep {
    pub(crate) q: View,
    pub(crate) k: View,
    pub(crate) v: View,
    pub(crate) out: View,
    /// Where keys and values are cached; without it attention is over whole texts.
    pub(crate) layer: Option<usize>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scoring: Scoring,
    /// One per head, or empty.
    pub(crate) sinks: Vec<f32>,
}

/// A mixture of experts.
#[derive(Debug)]
pub(crate) struct MoeStep {
    pub(crate) x: View,
    pub(crate) out: View,
    pub(crate) height: Height,
    pub(crate) spec: Moe,
    pub(crate) router: Matrix,
    pub(crate) router_bias: Vec<f32>,
    /// Matrices of each expert.
    pub(crate) gate: Vec<Matrix>,
    pub(crate) up: Vec<Matrix>,
    pub(crate) down: Vec<Matrix>,
    /// Offsets, all experts' after each other, or empty.
    pub(crate) gate_bias: Vec<f32>,
    pub(crate) up_bias: Vec<f32>,
    pub(crate) down_bias: Vec<f32>,
}

impl MoeStep {
    pub(crate) fn quantizes_input(&self) -> bool {
        [&self.gate, &self.up].into_iter().flatten().any(|m| !m.is_float())
            || !self.router.is_float()
    }

    pub(crate) fn quantizes_inner(&self) -> bool {
        self.down.iter().any(|m| !m.is_float())
    }
}

/// One step, done by all threads together before the next begins.
#[derive(Debug)]
pub(crate) enum Work {
    Rows {
        ops: Vec<RowOp>,
        height: Height,
    },
    Product(Product),
    Attention(AttentionStep),
    Moe(Box<MoeStep>),
    /// Gathers the rows whose logits are wanted.
    Select {
        x: View,
        out: View,
    },
    /// Makes one vector of the rows of a span for each row that is wanted of it.
    Pool {
        how: Pooling,
        x: View,
        out: View,
    },
}

/// A step and what it is called in the table of times.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) label: usize,
}

/// Angles of rotation, computed once in a pass for all layers that share them.
#[derive(Debug, PartialEq)]
pub(crate) struct RopeTable {
    pub(crate) inv_freq: std::sync::Arc<[f32]>,
    pub(crate) magnitude: f32,
}

/// The steps and the memory that they need.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) labels: Vec<String>,
    pub(crate) ropes: Vec<RopeTable>,
    /// Widest row of each memory slot; slot [`LOGITS`] is the result's and not counted here.
    pub(crate) slot_widths: Vec<usize>,
    pub(crate) vocab: usize,
    /// Rows of the embedding table.
    pub(crate) input_vocab: usize,
    /// Whether a span must be a whole text.
    pub(crate) whole_texts: bool,
    pub(crate) weight_bytes: usize,
    /// Packed weights on their way to the cache.
    pub(crate) saving: Option<Saving>,
}

/// The slot that is the result of the pass.
pub(crate) const LOGITS: usize = usize::MAX;

/// Switches for finding out what a wrong answer comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches<'a> {
    /// Whether steps are joined and values are overwritten in place.
    pub(crate) fuse: bool,
    /// Graph passes not to run.
    pub(crate) disabled_passes: &'a [&'a str],
}

impl Plan {
    /// Plans a graph.
    ///
    /// # Errors
    /// If a weight is missing or misshapen, or something has no kernel.
    pub(crate) fn new(
        graph: &Graph,
        weights: &Weights,
        switches: Switches<'_>,
    ) -> Result<Plan, ExecError> {
        let mut graph = graph.clone();
        passes::run(&mut graph, switches.disabled_passes)?;
        for state in graph.states() {
            if !matches!(state, StateSpec::Kv { .. }) {
                return Err(unsupported(format!("state {state:?}"), "use another unit"));
            }
        }
        let mut plan = lower::lower(&graph, weights, switches.fuse)?;
        memory::assign(&mut plan);
        Ok(plan)
    }

    /// Packs all weight matrices for the pool, or finds them packed in the cache.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(crate) fn pack(
        &mut self,
        pool: &Pool,
        cache: Option<&PackedCache>,
    ) -> Result<(), ExecError> {
        let matrices = self.steps.iter_mut().flat_map(|step| step.work.matrices()).collect();
        let saving = pack_cached(pool, matrices, cache);
        self.saving = saving.map_err(|error| ExecError::Invalid(error.to_string()))?;
        Ok(())
    }
}

impl Work {
    /// Every weight matrix.
    fn matrices(&mut self) -> Vec<&mut Matrix> {
        match self {
            Work::Product(product) => product.matrices.iter_mut().collect(),
            Work::Moe(moe) => {
                let MoeStep { router, gate, up, down, .. } = &mut **moe;
                std::iter::once(router).chain(gate).chain(up).chain(down).collect()
            }
            Work::Rows { .. } | Work::Attention(_) | Work::Select { .. } | Work::Pool { .. } => {
                Vec::new()
            }
        }
    }

    /// Calls `f` with every view.
    fn views(&mut self, mut f: impl FnMut(&mut View)) {
        match self {
            Work::Rows { ops, .. } => ops.iter_mut().for_each(|op| match op {
                RowOp::Embed { out, .. } => f(out),
                RowOp::RmsNorm { x, out, .. }
                | RowOp::LayerNorm { x, out, .. }
                | RowOp::Rope { x, out, .. }
                | RowOp::Unary { x, out, .. } => [x, out].into_iter().for_each(&mut f),
                RowOp::Binary { a, b, out, .. } => [a, b, out].into_iter().for_each(&mut f),
                RowOp::Gated { gate, up, out, .. } => [gate, up, out].into_iter().for_each(&mut f),
            }),
            Work::Product(Product { x, out, .. })
            | Work::Select { x, out }
            | Work::Pool { x, out, .. } => {
                [x, out].into_iter().for_each(f);
            }
            Work::Moe(moe) => [&mut moe.x, &mut moe.out].into_iter().for_each(f),
            Work::Attention(AttentionStep { q, k, v, out, .. }) => {
                [q, k, v, out].into_iter().for_each(f);
            }
        }
    }
}

fn unsupported(what: impl Into<String>, instead: &str) -> ExecError {
    ExecError::Unsupported { unit: "cpu", what: what.into(), instead: instead.to_owned() }
}

/// Floats for `rows` rows of each of `widths`, zeroed, but touched only when used.
///
/// # Errors
/// If that is more memory than there is.
pub(crate) fn zeroed(width: usize, rows: usize, limits: &Limits) -> Result<Floats, ExecError> {
    width.checked_mul(rows).and_then(|n| Floats::zeroed(n).ok()).ok_or_else(|| {
        let text = format!(
            "no memory for batches of {} tokens; lower the batch limit",
            limits.batch_tokens
        );
        ExecError::Invalid(text)
    })
}

#[cfg(test)]
mod tests;
