//! From graph nodes to steps.

mod attention;

use std::ops::Range;

use baton_graph::{
    Dim, ExecError, Graph, Linear, LinearPart, Lookup, Moe, Node, Op, RmsNorm, StateSpec, ValueId,
};
use baton_weights::Weights;

use super::functions::{ACTIVATION, ADD, MUL, SOFTCAP, activation, function, gate, scale};
use super::heads::Chains;
use super::{
    CacheShape, Function, Height, MoeStep, NormStep, Plan, PointStep, Product, Resolved, Step,
    View, Work, unsupported,
};
use crate::MixtureWeights;

/// Plans the steps; views name roots instead of buffers.
pub(super) fn lower(graph: &Graph, weights: &Weights) -> Result<Plan, ExecError> {
    let resolved = Resolved::new(graph, weights)?;
    let mut last_use = vec![0; graph.values().len()];
    for (at, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().for_each(|input| last_use[input.index()] = at);
    }
    last_use[graph.output().index()] = usize::MAX;
    let cache = |state: &StateSpec| match *state {
        StateSpec::Kv { kv_heads, head_dim, .. } => CacheShape { kv_heads, head_dim },
        _ => unreachable!("the plan refuses other state"),
    };
    let plan = Plan {
        steps: Vec::new(),
        labels: Vec::new(),
        rotations: Vec::new(),
        slots: Vec::new(),
        caches: graph.states().iter().map(cache).collect(),
        result: View { slot: 0, stride: 0, offset: 0, cols: 0 },
        input_vocab: usize::MAX,
        whole_texts: graph.needs_whole_texts(),
        weight_bytes: resolved.stored_bytes(),
    };
    let views = vec![None; graph.values().len()];
    let chains = Chains::of(graph);
    let mut lower = Lower { graph, weights: &resolved, chains, last_use, views, roots: 0, plan };
    for (at, node) in graph.nodes().iter().enumerate() {
        lower.node(at, node)?;
    }
    lower.finish()
}

struct Lower<'a> {
    graph: &'a Graph,
    weights: &'a Resolved<'a>,
    chains: Chains<'a>,
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
    fn may_overwrite(&self, at: usize, x: ValueId) -> bool {
        let Some(view) = self.views[x.index()] else { return false };
        self.views
            .iter()
            .zip(&self.last_use)
            .all(|(other, &last)| last <= at || other.is_none_or(|other| !overlap(&other, &view)))
    }

    fn push(&mut self, node: &Node, height: Height, work: Work) {
        // `blk.3.attn_q` and its like in other layers are one row of the table.
        let part = node.name.rsplit_once('.').map_or(&*node.name, |(_, part)| part);
        let op = match &work {
            Work::Heads(_) => "heads",
            _ => node.op.name(),
        };
        let label = format!("{op} {part}");
        let known = self.plan.labels.iter().position(|l| *l == label);
        let label = known.unwrap_or_else(|| {
            self.plan.labels.push(label);
            self.plan.labels.len() - 1
        });
        self.plan.steps.push(Step { work, height, label, may_fold: false });
    }

    fn point(&mut self, node: &Node, f: Function, a: View, b: Option<View>) -> View {
        let out = self.fresh(node);
        let height = self.height(node.output);
        self.push(
            node,
            height,
            Work::Point(PointStep { f, a, b, out, gather: false, picks: false }),
        );
        out
    }

    fn node(&mut self, at: usize, node: &Node) -> Result<(), ExecError> {
        if self.chains.skipped[node.output.index()] {
            return Ok(());
        }
        let height = self.height(node.output);
        let x = node.inputs[0];
        let out = match &node.op {
            Op::Embedding { table, scale, lookup } => {
                let out = self.fresh(node);
                let table = self.weights.tensor(*table)?.clone();
                if *lookup == Lookup::Token {
                    self.plan.input_vocab = self.plan.input_vocab.min(table.rows());
                }
                let (scale, lookup) = (*scale, *lookup);
                self.push(node, height, Work::Embed { table, lookup, scale, out });
                out
            }
            Op::RmsNorm(norm) => {
                let gain = self.gain(norm)?;
                self.norm(node, gain, Vec::new(), norm.eps, norm.group, false)?
            }
            Op::LayerNorm { weight, bias, eps } => {
                let gain = self.weights.floats(Some(*weight))?;
                let bias = self.weights.floats(*bias)?;
                self.norm(node, gain, bias, *eps, self.view(x)?.cols, true)?
            }
            Op::Linear(linear) => self.linear(node, linear)?,
            Op::Slice { offset, len } => {
                let x = self.view(x)?;
                View { offset: x.offset + offset, cols: *len, ..x }
            }
            Op::Rope(rope) => self.rope(node, rope)?,
            Op::Attention(attention) => self.attention(node, attention)?,
            Op::Add => match self.residual(at, node)? {
                Some(out) => out,
                None => self.pair(node, function(ADD))?,
            },
            Op::Mul => self.pair(node, function(MUL))?,
            Op::Scale(by) => self.point(node, scale(*by), self.view(x)?, None),
            Op::Softcap(cap) => {
                let f = Function { x: *cap, ..function(SOFTCAP) };
                self.point(node, f, self.view(x)?, None)
            }
            Op::Activation(kind) if activation(*kind).is_some() => {
                let n = activation(*kind).expect("just asked");
                self.point(node, function(ACTIVATION + n), self.view(x)?, None)
            }
            Op::GatedActivation(kind) if gate(*kind).is_some() => {
                self.gated(node, gate(*kind).expect("just asked"))?
            }
            Op::Moe(moe) if gate(moe.activation).is_some() => self.moe(node, moe)?,
            Op::SelectRows => self.select(at, node, x)?,
            Op::Pool(how) => {
                let (x, out) = (self.view(x)?, self.fresh(node));
                self.push(node, height, Work::Pool { how: *how, x, out });
                out
            }
            other => {
                let what = format!("node {:?}, {other:?}", node.name);
                return Err(unsupported(what, "use a newer version or the CPU"));
            }
        };
        self.views[node.output.index()] = Some(out);
        Ok(())
    }

    fn gain(&self, norm: &RmsNorm) -> Result<Vec<f32>, ExecError> {
        let mut gain = self.weights.floats(norm.weight)?;
        gain.iter_mut().for_each(|gain| *gain += norm.weight_offset);
        Ok(gain)
    }

    fn norm(
        &mut self,
        node: &Node,
        gain: Vec<f32>,
        bias: Vec<f32>,
        eps: f32,
        group: usize,
        centred: bool,
    ) -> Result<View, ExecError> {
        let (x, out) = (self.view(node.inputs[0])?, self.fresh(node));
        let step = NormStep { x, out, residual: None, group, centred, eps, gain, bias };
        self.push(node, self.height(node.output), Work::Norm(step));
        Ok(out)
    }

    fn pair(&mut self, node: &Node, f: Function) -> Result<View, ExecError> {
        let (a, b) = (self.view(node.inputs[0])?, self.view(node.inputs[1])?);
        Ok(self.point(node, f, a, Some(b)))
    }

    /// Rows of logits. Where nobody reads the others later, they are put back to where they were picked, so that
    /// there is nothing to do if they are all rows.
    fn select(&mut self, at: usize, node: &Node, x: ValueId) -> Result<View, ExecError> {
        let a = self.view(x)?;
        let picked = self.root(a.cols);
        let picks = a.cols == a.stride && self.may_overwrite(at, x);
        let copy = |a, out, gather| {
            Work::Point(PointStep { f: scale(1.0), a, b: None, out, gather, picks })
        };
        self.push(node, Height::Wanted, copy(a, picked, true));
        if !picks {
            return Ok(picked);
        }
        self.push(node, Height::Wanted, copy(picked, a, false));
        Ok(a)
    }

    /// A value whose rows lie one after the other, as products want them.
    fn dense(&mut self, node: &Node, x: ValueId) -> Result<View, ExecError> {
        let a = self.view(x)?;
        if a.cols == a.stride {
            return Ok(a);
        }
        let out = self.root(a.cols);
        let step = PointStep { f: scale(1.0), a, b: None, out, gather: false, picks: false };
        self.push(node, self.height(x), Work::Point(step));
        Ok(out)
    }

    /// The sum of a value and the step just planned: a product is added in place, a norm adds what
    /// it is given.
    fn residual(&mut self, at: usize, node: &Node) -> Result<Option<View>, ExecError> {
        for [x, y] in [[0, 1], [1, 0]].map(|order| order.map(|i: usize| node.inputs[i])) {
            let (residual, result) = (self.view(x)?, self.view(y)?);
            if x == y || residual.slot == result.slot || !self.may_overwrite(at, y) {
                continue;
            }
            let free = self.may_overwrite(at, x);
            let sum = match self.plan.steps.last_mut().map(|step| &mut step.work) {
                Some(Work::Product(Product { x, out, accumulate, .. })) => {
                    Some((x, out, accumulate))
                }
                Some(Work::Moe(moe)) => Some((&mut moe.x, &mut moe.out, &mut moe.accumulate)),
                _ => None,
            };
            if let Some((x, out, accumulate)) = sum
                && free
                && !*accumulate
                && *out == result
                && residual.cols == residual.stride
                && x.slot != residual.slot
            {
                (*out, *accumulate) = (residual, true);
                return Ok(Some(residual));
            }
            match self.plan.steps.last_mut().map(|step| &mut step.work) {
                Some(Work::Norm(norm)) if norm.residual.is_none() && norm.out == result => {
                    norm.residual = Some(residual);
                    return Ok(Some(result));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn gated(&mut self, node: &Node, f: Function) -> Result<View, ExecError> {
        let (gate, up) = match node.inputs[..] {
            [both] => {
                let view = self.view(both)?;
                let cols = view.cols / 2;
                let half = |offset| View { offset: view.offset + offset, cols, ..view };
                (half(0), half(cols))
            }
            _ => (self.view(node.inputs[0])?, self.view(node.inputs[1])?),
        };
        Ok(self.point(node, f, gate, Some(up)))
    }

    fn linear(&mut self, node: &Node, linear: &Linear) -> Result<View, ExecError> {
        let x = self.dense(node, node.inputs[0])?;
        let part = |part: &LinearPart| {
            let weight = self.weights.tensor(part.weight)?.clone();
            Ok((weight, self.weights.optional(part.bias)?))
        };
        let parts = linear.parts.iter().map(part).collect::<Result<Vec<_>, ExecError>>()?;
        let (out, height) = (self.fresh(node), self.height(node.output));
        let product = Product { x, out, parts, accumulate: false };
        self.push(node, height, Work::Product(product));
        Ok(out)
    }

    fn moe(&mut self, node: &Node, moe: &Moe) -> Result<View, ExecError> {
        let (x, out) = (self.dense(node, node.inputs[0])?, self.fresh(node));
        let weights = self.weights;
        let optional = |id| weights.optional(id);
        let weights = MixtureWeights {
            router: weights.tensor(moe.router)?.clone(),
            gate: weights.weight(moe.gate)?.clone(),
            up: weights.weight(moe.up)?.clone(),
            down: weights.weight(moe.down)?.clone(),
            router_bias: optional(moe.router_bias)?,
            gate_bias: optional(moe.biases.map(|b| b.gate))?,
            up_bias: optional(moe.biases.map(|b| b.up))?,
            down_bias: optional(moe.biases.map(|b| b.down))?,
        };
        let step = MoeStep { x, out, spec: moe.clone(), weights, accumulate: false };
        self.push(node, self.height(node.output), Work::Moe(Box::new(step)));
        Ok(out)
    }

    /// Makes sure that the output has a row for each row of logits, without gaps.
    fn finish(mut self) -> Result<Plan, ExecError> {
        let output = self.graph.output();
        let node = self.graph.nodes().iter().rev().find(|node| node.output == output);
        let node = node.ok_or_else(|| unsupported("a graph without operations", "add some"))?;
        self.plan.result = match self.height(output) {
            Height::Tokens => self.select(usize::MAX, node, output)?,
            Height::Wanted => self.dense(node, output)?,
        };
        Ok(self.plan)
    }
}
