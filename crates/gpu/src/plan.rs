//! What an executor does in a forward pass: steps over rows of f32 in device buffers.
//!
//! ```text
//! lower     graph nodes become steps; what lies between projections and attention becomes one
//! heads     finds those chains
//! fold      finds what a product can do besides
//! memory    values that do not live at the same time share a buffer
//! weights   names become tensors and vectors
//! ```
//!
//! No kernel works in place, but for products that are added to a value: a buffer may not be both
//! read and written by one dispatch.

mod fold;
mod functions;
mod heads;
mod lower;
mod memory;
mod weights;

use std::sync::Arc;

use baton_graph::{ExecError, Graph, Lookup, Moe, Pooling, RopeLayout, StateSpec, passes};
use baton_weights::{Tensor, Weights};

use crate::MixtureWeights;

pub(crate) use baton_graph::{Height, View};
pub(crate) use fold::{Foldable, foldable};
pub(crate) use weights::Resolved;

/// RMS or layer norm of runs of features.
#[derive(Debug)]
pub(crate) struct NormStep {
    pub(crate) x: View,
    pub(crate) out: View,
    /// Added to the result.
    pub(crate) residual: Option<View>,
    pub(crate) group: usize,
    /// Whether the mean is taken off.
    pub(crate) centred: bool,
    pub(crate) eps: f32,
    pub(crate) gain: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

/// A function of single elements, as `shaders/pointwise.wgsl` numbers them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) op: u32,
    pub(crate) x: f32,
    pub(crate) y: f32,
}

/// A function of one value or two.
#[derive(Debug)]
pub(crate) struct PointStep {
    pub(crate) f: Function,
    pub(crate) a: View,
    pub(crate) b: Option<View>,
    pub(crate) out: View,
    /// Whether rows of `a` are picked as the rows of logits say.
    pub(crate) gather: bool,
    /// Whether it is for passes alone in which not every row is a row of logits.
    pub(crate) picks: bool,
}

/// Norm of each head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeadNorm {
    pub(crate) gain: Vec<f32>,
    pub(crate) eps: f32,
}

/// Angles of rotation, kept once for all steps that share them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rotation {
    pub(crate) inv_freq: Arc<[f32]>,
    pub(crate) magnitude: f32,
    pub(crate) layout: RopeLayout,
}

/// What happens to one of query, key and value before attention.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) x: View,
    pub(crate) heads: usize,
    pub(crate) norm: Option<HeadNorm>,
    pub(crate) rotated: bool,
}

/// Norm and rotation of heads; keys and values go to the cache.
#[derive(Debug)]
pub(crate) struct HeadsStep {
    pub(crate) head_dim: usize,
    pub(crate) rotation: Option<usize>,
    pub(crate) query: Part,
    pub(crate) out: View,
    pub(crate) stored: Option<Stored>,
}

/// Keys and values on their way to a cache.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) key: Part,
    pub(crate) value: Part,
    pub(crate) cache: usize,
}

/// Attention of one layer, over what a [`HeadsStep`] has stored.
#[derive(Debug)]
pub(crate) struct AttentionStep {
    pub(crate) q: View,
    /// Query, key and value as its [`HeadsStep`] has them, which of single tokens are read here.
    pub(crate) raw: [View; 3],
    pub(crate) out: View,
    pub(crate) cache: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    pub(crate) window: Option<usize>,
    pub(crate) both_ways: bool,
    /// One per head, or empty.
    pub(crate) sinks: Vec<f32>,
}

/// A matrix product.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) x: View,
    pub(crate) out: View,
    /// Matrices whose outputs lie side by side, with their offsets.
    pub(crate) parts: Vec<(Tensor, Option<Tensor>)>,
    /// Whether the product is added to what `out` holds.
    pub(crate) accumulate: bool,
}

/// A mixture of experts.
#[derive(Debug)]
pub(crate) struct MoeStep {
    pub(crate) x: View,
    pub(crate) out: View,
    pub(crate) spec: Moe,
    pub(crate) weights: MixtureWeights,
    /// Whether the result is added to what `out` holds.
    pub(crate) accumulate: bool,
}

/// What one step does.
#[derive(Debug)]
pub(crate) enum Work {
    Embed { table: Tensor, lookup: Lookup, scale: f32, out: View },
    Norm(NormStep),
    Point(PointStep),
    Heads(HeadsStep),
    Attention(AttentionStep),
    Product(Product),
    Moe(Box<MoeStep>),
    Pool { how: Pooling, x: View, out: View },
}

/// A step, its number of rows, and what it is called in the table of times.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) height: Height,
    pub(crate) label: usize,
    /// Whether the product before may do its work, see [`foldable`].
    pub(crate) may_fold: bool,
}

/// Shape of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

/// A buffer for values: its widest row, and whether all its rows are rows of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotShape {
    pub(crate) width: usize,
    pub(crate) height: Height,
}

/// The steps and the memory that they need.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) labels: Vec<String>,
    pub(crate) rotations: Vec<Rotation>,
    pub(crate) slots: Vec<SlotShape>,
    /// Caches of keys and values: those of the graph's states come first, in their order.
    pub(crate) caches: Vec<CacheShape>,
    /// Where the result is, one row for each row of logits, without gaps.
    pub(crate) result: View,
    /// Rows of the embedding table.
    pub(crate) input_vocab: usize,
    /// Whether a span must be a whole text.
    pub(crate) whole_texts: bool,
    pub(crate) weight_bytes: usize,
}

impl Plan {
    /// Plans a graph.
    ///
    /// # Errors
    /// If a weight is missing or misshapen, or something has no kernel.
    pub(crate) fn new(
        graph: &Graph,
        weights: &Weights,
        disabled_passes: &[&str],
    ) -> Result<Plan, ExecError> {
        let mut graph = graph.clone();
        passes::run(&mut graph, disabled_passes)?;
        for state in graph.states() {
            if !matches!(state, StateSpec::Kv { .. }) {
                return Err(unsupported(format!("state {state:?}"), "use the CPU"));
            }
        }
        let mut plan = lower::lower(&graph, weights)?;
        plan.mark_foldable();
        memory::assign(&mut plan);
        Ok(plan)
    }

    /// Operations of the products for each new token, an addition and a multiplication counted as two.
    pub(crate) fn ops_per_token(&self) -> usize {
        let of = |step: &Step| match &step.work {
            Work::Product(product) => {
                product.parts.iter().map(|(weight, _)| weight.elements()).sum()
            }
            // Gate, up and down of each expert that is picked.
            Work::Moe(moe) => 3 * moe.spec.top_k * moe.spec.ffn * moe.x.cols,
            _ => 0usize,
        };
        let tokens = self.steps.iter().filter(|step| step.height == Height::Tokens);
        2 * tokens.map(of).sum::<usize>()
    }

    /// Whether it makes vectors of texts, each of which a batch holds whole.
    pub(crate) fn makes_vectors(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.work, Work::Pool { .. }))
    }

    /// Widest head of an attention; 0 without any.
    pub(crate) fn widest_head(&self) -> usize {
        self.caches.iter().map(|cache| cache.head_dim).max().unwrap_or(0)
    }
}

impl Work {
    /// Whether it is left out where every row is a row of logits.
    pub(crate) fn picks(&self) -> bool {
        matches!(self, Work::Point(PointStep { picks: true, .. }))
    }

    /// Whether its kernel can store `x`, its result, as integers as well.
    pub(crate) fn may_store(&self, x: &View) -> bool {
        let whole = x.cols == x.stride && x.cols.is_multiple_of(32);
        let out = match self {
            Work::Norm(step) if step.group == step.out.cols => &step.out,
            Work::Point(step) => &step.out,
            Work::Attention(step) if step.head_dim.is_multiple_of(32) => &step.out,
            _ => return false,
        };
        whole && out == x
    }
}

impl Step {
    /// Calls `f` with every view, and whether its rows are rows of logits.
    fn views(&mut self, mut f: impl FnMut(&mut View, Height)) {
        let height = self.height;
        match &mut self.work {
            Work::Embed { out, .. } => f(out, height),
            Work::Norm(NormStep { x, out, residual, .. }) => {
                [x, out].into_iter().chain(residual).for_each(|view| f(view, height));
            }
            Work::Point(PointStep { a, b, out, gather, .. }) => {
                f(a, if *gather { Height::Tokens } else { height });
                std::iter::once(out).chain(b).for_each(|view| f(view, height));
            }
            Work::Heads(HeadsStep { query, out, stored, .. }) => {
                let stored = stored.iter_mut().flat_map(|s| [&mut s.key.x, &mut s.value.x]);
                [&mut query.x, out].into_iter().chain(stored).for_each(|view| f(view, height));
            }
            Work::Attention(AttentionStep { q, raw, out, .. }) => {
                [q, out].into_iter().chain(raw).for_each(|view| f(view, height));
            }
            Work::Product(Product { x, out, .. }) => {
                [x, out].into_iter().for_each(|view| f(view, height));
            }
            Work::Moe(moe) => {
                [&mut moe.x, &mut moe.out].into_iter().for_each(|view| f(view, height));
            }
            Work::Pool { x, out, .. } => {
                f(x, Height::Tokens);
                f(out, height);
            }
        }
    }
}

pub(crate) fn unsupported(what: impl Into<String>, instead: &str) -> ExecError {
    ExecError::Unsupported { unit: "gpu", what: what.into(), instead: instead.to_owned() }
}

#[cfg(test)]
mod tests;
