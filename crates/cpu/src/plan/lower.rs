//! From graph nodes to steps.

use std::ops::Range;

use baton_graph::{
    Attention, Dim, ExecError, Gate, Graph, Linear, Moe, Node, Op, Rope, Scope, ValueId,
};
use baton_weights::Weights;

use super::weights::Resolved;
use super::{
    AttentionStep, Height, LOGITS, MoeStep, Plan, Product, RopeTable, RowOp, Step, View, Work,
    unsupported,
};
use crate::kernels::attention::Scoring;
use crate::kernels::pointwise::{Binary, Unary, has_activation};

/// Plans the steps; views name roots instead of slots.
pub(super) fn lower(graph: &Graph, weights: &Weights, fuse: bool) -> Result<Plan, ExecError> {
    let resolved = Resolved::new(graph, weights)?;
    let mut last_use = vec![0; graph.values().len()];
    for (at, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().for_each(|input| last_use[input.index()] = at);
    }
    last_use[graph.output().index()] = usize::MAX;
    let plan = Plan {
        steps: Vec::new(),
        labels: Vec::new(),
        ropes: Vec::new(),
        slot_widths: Vec::new(),
        vocab: graph.vocab(),
        input_vocab: graph.input_vocab(),
        whole_texts: graph.needs_whole_texts(),
        weight_bytes: resolved.stored_bytes(),
        saving: None,
    };
    let views = vec![None; graph.values().len()];
    let mut lower = Lower { graph, weights: &resolved, fuse, last_use, views, roots: 0, plan };
    for (at, node) in graph.nodes().iter().enumerate() {
        lower.node(at, node)?;
    }
    lower.finish()
}

struct Lower<'a> {
    graph: &'a Graph,
    weights: &'a Resolved<'a>,
    fuse: bool,
    /// The last node that reads each value.
    last_use: Vec<usize>,
    /// Where each value lies; `slot` numbers the root.
    views: Vec<Option<View>>,
    roots: usize,
    plan: Plan,
}

fn columns(view: &View) -> Range<usize> {
    view.offset..view.offset + view.cols
}

fn overlap(a: &View, b: &View) -> bool {
    let (x, y) = (columns(a), columns(b));
    a.slot == b.slot && x.start < y.end && y.start < x.end
}

impl Lower<'_> {
    fn view(&self, value: ValueId) -> Result<View, ExecError> {
        self.views[value.index()]
            .ok_or_else(|| unsupported("token ids as real numbers", "embed them first"))
    }

    fn height(&self, value: ValueId) -> Height {
        match self.graph.ty(value).rows() {
            Dim::Rows => Height::Wanted,
            _ => Height::Tokens,
        }
    }

    fn root(&mut self, cols: usize) -> View {
        self.roots += 1;
        View { slot: self.roots - 1, stride: cols, offset: 0, cols }
    }

    /// A fresh root for a node's result.
    fn fresh(&mut self, node: &Node) -> View {
        self.root(self.graph.ty(node.output).features())
    }

    /// Whether node `at` may overwrite its input `x`: nobody reads it, or what overlaps it, later.
    fn may_overwrite(&self, at: usize, x: ValueId, others: &[ValueId]) -> bool {
        let Some(view) = self.views[x.index()] else { return false };
        let shares =
            |other: &ValueId| self.views[other.index()].is_none_or(|other| other.slot == view.slot);
        self.fuse
            && !others.iter().any(shares)
            && self.views.iter().zip(&self.last_use).all(|(other, &last)| {
                last <= at || other.is_none_or(|other| !overlap(&other, &view))
            })
    }

    /// The place for a result that may replace input `x`.
    fn replace(&mut self, at: usize, node: &Node, x: ValueId) -> Result<View, ExecError> {
        match self.may_overwrite(at, x, &[]) {
            true => self.view(x),
            false => Ok(self.fresh(node)),
        }
    }

    fn label(&mut self, op: &str, node: &str) -> usize {
        // `blk.3.attn_q` and its like in other layers are one row of the table.
        let part = node.rsplit_once('.').map_or(node, |(_, part)| part);
        let label = format!("{op} {part}");
        let known = self.plan.labels.iter().position(|l| *l == label);
        known.unwrap_or_else(|| {
            self.plan.labels.push(label);
            self.plan.labels.len() - 1
        })
    }

    fn push(&mut self, node: &Node, work: Work) {
        let label = self.label(node.op.name(), &node.name);
        self.plan.steps.push(Step { work, label });
    }

    fn push_row(&mut self, node: &Node, height: Height, op: RowOp) {
        if let Some(Step { work: Work::Rows { ops, height: open }, .. }) =
            self.plan.steps.last_mut()
            && self.fuse
            && *open == height
        {
            ops.push(op);
            return;
        }
        self.push(node, Work::Rows { ops: vec![op], height });
    }

    /// A value whose rows lie one after the other, as products want them.
    fn dense(&mut self, node: &Node, x: ValueId) -> Result<View, ExecError> {
        let view = self.view(x)?;
        if view.cols == view.stride {
            return Ok(view);
        }
        let out = self.root(view.cols);
        self.push_row(node, self.height(x), RowOp::Unary { f: Unary::Copy, x: view, out });
        Ok(out)
    }

    fn node(&mut self, at: usize, node: &Node) -> Result<(), ExecError> {
        let height = self.height(node.output);
        let input = |i: usize| node.inputs[i];
        let unary = |f| (f, input(0));
        let out = match &node.op {
            Op::Embedding { table, scale, lookup } => {
                let (lookup, scale, out) = (*lookup, *scale, self.fresh(node));
                let table = self.weights.tensor(*table)?.clone();
                self.push_row(node, height, RowOp::Embed { table, lookup, scale, out });
                out
            }
            Op::RmsNorm(norm) => {
                let mut gain = self.weights.floats(norm.weight)?;
                gain.iter_mut().for_each(|gain| *gain += norm.weight_offset);
                let (x, out) = (self.view(input(0))?, self.replace(at, node, input(0))?);
                let (eps, group) = (norm.eps, norm.group);
                self.push_row(node, height, RowOp::RmsNorm { x, out, gain, eps, group });
                out
            }
            Op::LayerNorm { weight, bias, eps } => {
                let (gain, bias) =
                    (self.weights.floats(Some(*weight))?, self.weights.floats(*bias)?);
                let (x, out) = (self.view(input(0))?, self.replace(at, node, input(0))?);
                self.push_row(node, height, RowOp::LayerNorm { x, out, gain, bias, eps: *eps });
                out
            }
            Op::Linear(linear) => self.linear(node, linear)?,
            Op::Slice { offset, len } => {
                let x = self.view(input(0))?;
                View { offset: x.offset + offset, cols: *len, ..x }
            }
            Op::Rope(rope) => {
                let table = self.rope_table(rope);
                let (x, out) = (self.view(input(0))?, self.replace(at, node, input(0))?);
                let (layout, head_dim, angles) =
                    (rope.layout, rope.head_dim, 2 * rope.inv_freq.len());
                let op = RowOp::Rope { x, out, layout, head_dim, table, angles };
                self.push_row(node, height, op);
                out
            }
            Op::Attention(attention) => self.attention(node, attention)?,
            Op::Add => match self.residual(at, node)? {
                Some(out) => out,
                None => self.binary(at, node, Binary::Add)?,
            },
            Op::Mul => self.binary(at, node, Binary::Mul)?,
            Op::Scale(by) => self.unary(at, node, unary(Unary::Scale(*by)))?,
            Op::Softcap(cap) => self.unary(at, node, unary(Unary::Softcap(*cap)))?,
            Op::Activation(kind) if has_activation(*kind) => {
                self.unary(at, node, unary(Unary::Activation(*kind)))?
            }
            Op::GatedActivation(kind) if has_gate(*kind) => self.gated(at, node, *kind)?,
            Op::Moe(moe) if has_gate(moe.activation) => self.moe(node, moe)?,
            Op::SelectRows => {
                let (x, out) = (self.view(input(0))?, self.fresh(node));
                self.push(node, Work::Select { x, out });
                out
            }
            Op::Pool(how) => {
                let (x, out) = (self.view(input(0))?, self.fresh(node));
                self.push(node, Work::Pool { how: *how, x, out });
                out
            }
            other => {
                let what = format!("node {:?}, {other:?}", node.name);
                return Err(unsupported(what, "use a newer version or another unit"));
            }
        };
        self.views[node.output.index()] = Some(out);
        Ok(())
    }

    fn rope_table(&mut self, rope: &Rope) -> usize {
        let table = RopeTable { inv_freq: rope.inv_freq.clone(), magnitude: rope.magnitude };
        let known = self.plan.ropes.iter().position(|known| *known == table);
        known.unwrap_or_else(|| {
            self.plan.ropes.push(table);
            self.plan.ropes.len() - 1
        })
    }

    fn unary(
        &mut self,
        at: usize,
        node: &Node,
        (f, x): (Unary, ValueId),
    ) -> Result<View, ExecError> {
        let (view, out) = (self.view(x)?, self.replace(at, node, x)?);
        self.push_row(node, self.height(x), RowOp::Unary { f, x: view, out });
        Ok(out)
    }

    fn binary(&mut self, at: usize, node: &Node, f: Binary) -> Result<View, ExecError> {
        let (a, b) = (node.inputs[0], node.inputs[1]);
        // Both functions are symmetric: whichever may be overwritten comes first.
        let (a, b, out) = if self.may_overwrite(at, a, &[b]) {
            (self.view(a)?, self.view(b)?, self.view(a)?)
        } else if self.may_overwrite(at, b, &[a]) {
            (self.view(b)?, self.view(a)?, self.view(b)?)
        } else {
            (self.view(a)?, self.view(b)?, self.fresh(node))
        };
        self.push_row(node, self.height(node.output), RowOp::Binary { f, a, b, out });
        Ok(out)
    }

    /// The sum of a value and the product just planned: the product is added in place.
    fn residual(&mut self, at: usize, node: &Node) -> Result<Option<View>, ExecError> {
        for [x, y] in [[0, 1], [1, 0]].map(|order| order.map(|i: usize| node.inputs[i])) {
            let (residual, result) = (self.view(x)?, self.view(y)?);
            let ready =
                x != y && self.may_overwrite(at, x, &[y]) && self.may_overwrite(at, y, &[x]);
            if let Some(Step { work: Work::Product(product), .. }) = self.plan.steps.last_mut()
                && ready
                && !product.accumulate
                && product.out == result
                && product.x.slot != residual.slot
            {
                (product.out, product.accumulate) = (residual, true);
                return Ok(Some(residual));
            }
        }
        Ok(None)
    }

    fn gated(&mut self, at: usize, node: &Node, kind: Gate) -> Result<View, ExecError> {
        let (gate, up, out) = match node.inputs[..] {
            [both] => {
                let view = self.view(both)?;
                let cols = view.cols / 2;
                let half = |offset| View { offset: view.offset + offset, cols, ..view };
                (half(0), half(cols), self.fresh(node))
            }
            _ => {
                let (gate, up) = (node.inputs[0], node.inputs[1]);
                let view = self.view(gate)?;
                let in_place = view.cols == view.stride && self.may_overwrite(at, gate, &[up]);
                let out = if in_place { view } else { self.fresh(node) };
                (view, self.view(up)?, out)
            }
        };
        self.push_row(node, self.height(node.output), RowOp::Gated { kind, gate, up, out });
        Ok(out)
    }

    fn linear(&mut self, node: &Node, linear: &Linear) -> Result<View, ExecError> {
        let x = self.dense(node, node.inputs[0])?;
        let parts = linear.parts.iter();
        let matrices =
            parts.map(|part| self.weights.matrix(part.weight)).collect::<Result<Vec<_>, _>>()?;
        let mut bias = Vec::new();
        if linear.parts.iter().any(|part| part.bias.is_some()) {
            for (part, matrix) in linear.parts.iter().zip(&matrices) {
                match part.bias {
                    Some(_) => bias.extend(self.weights.floats(part.bias)?),
                    None => bias.resize(bias.len() + matrix.rows(), 0.0),
                }
            }
        }
        let quantize = matrices.iter().any(|matrix| !matrix.is_float());
        let (out, height) = (self.fresh(node), self.height(node.output));
        let product = Product { x, out, height, matrices, bias, accumulate: false, quantize };
        self.push(node, Work::Product(product));
        Ok(out)
    }

    fn attention(&mut self, node: &Node, attention: &Attention) -> Result<View, ExecError> {
        let [q, k, v] = [0, 1, 2].map(|i| self.view(node.inputs[i]));
        let (q, k, v, out) = (q?, k?, v?, self.fresh(node));
        let layer = match attention.scope {
            Scope::Past(state) => Some(state.index()),
            Scope::Text => None,
        };
        let &Attention { heads, kv_heads, head_dim, scale, softcap, window, .. } = attention;
        let step = AttentionStep {
            q,
            k,
            v,
            out,
            layer,
            heads,
            kv_heads,
            head_dim,
            scoring: Scoring { scale, softcap, window, both_ways: layer.is_none() },
            sinks: self.weights.floats(attention.sinks)?,
        };
        self.push(node, Work::Attention(step));
        Ok(out)
    }

    fn moe(&mut self, node: &Node, moe: &Moe) -> Result<View, ExecError> {
        let x = self.dense(node, node.inputs[0])?;
        let out = self.fresh(node);
        let weights = self.weights;
        let step = MoeStep {
            x,
            out,
            height: self.height(node.output),
            router: weights.matrix(moe.router)?,
            router_bias: weights.floats(moe.router_bias)?,
            gate: weights.stack(moe.gate)?,
            up: weights.stack(moe.up)?,
            down: weights.stack(moe.down)?,
            gate_bias: weights.floats(moe.biases.map(|b| b.gate))?,
            up_bias: weights.floats(moe.biases.map(|b| b.up))?,
            down_bias: weights.floats(moe.biases.map(|b| b.down))?,
            spec: moe.clone(),
        };
        self.push(node, Work::Moe(Box::new(step)));
        Ok(out)
    }

    /// Makes the output's root the result of the pass.
    fn finish(mut self) -> Result<Plan, ExecError> {
        let output = self.graph.output();
        let mut view = self.view(output)?;
        let node = self.graph.nodes().iter().rev().find(|node| node.output == output);
        let node = node.ok_or_else(|| unsupported("a graph without operations", "add some"))?;
        if self.height(output) == Height::Tokens {
            let out = self.root(view.cols);
            self.push(node, Work::Select { x: view, out });
            view = out;
        } else if view.cols != view.stride {
            let out = self.root(view.cols);
            self.push_row(node, Height::Wanted, RowOp::Unary { f: Unary::Copy, x: view, out });
            view = out;
        }
        for step in &mut self.plan.steps {
            step.work.views(|v| {
                if v.slot == view.slot {
                    v.slot = LOGITS;
                }
            });
        }
        Ok(self.plan)
    }
}

fn has_gate(gate: Gate) -> bool {
    match gate {
        Gate::Plain(activation) => has_activation(activation),
        Gate::Clamped { .. } => true,
        _ => false,
    }
}
