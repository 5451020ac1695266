//! The operations of a graph in operations of MIL.

use std::io::{Seek, Write};

use baton_graph::{Activation, Gate, Linear, Node, Op, RmsNorm, Rope, RopeLayout, ValueId};

use super::function::{FunctionLowering, Lowered};
use super::weights::Weight;
use super::{label, unsupported};
use crate::Result;
use crate::mil::{Arg, Value, Var};

/// The least number that half precision tells from 0: what epsilons are raised to, since a row of zeros
/// would be divided by zero.
const LEAST: f32 = 5.960_464_5e-8;
/// What the largest element of a norm's input is brought to: its square and the sum of the squares are
/// then far from both ends of half precision.
const NORM_TARGET: f32 = 32.0;
/// The factor of norms whose inputs nobody has measured: squares then overflow from 4096 on.
const NORM_DEFAULT: f32 = 0.0625;

impl<W: Write + Seek> FunctionLowering<'_, '_, '_, W> {
    /// Adds a node's operations.
    pub(super) fn node(&mut self, node: &Node) -> Result<()> {
        let name = label(&node.name);
        let lowered = match &node.op {
            Op::Linear(linear) => self.linear(&name, linear, node)?,
            Op::RmsNorm(norm) => self.rms_norm(&name, norm, node)?,
            Op::Add => self.add(&name, node)?,
            Op::Moe(moe) => self.mixture(&name, moe, node)?,
            // Every row is computed, and the caller picks those that were asked for.
            Op::SelectRows => self.values[&node.inputs[0]].clone(),
            Op::Scale(by) => self.each(node.inputs[0], |f, x| f.times(&name, x, *by))?,
            Op::Softcap(cap) => self.each(node.inputs[0], |f, x| {
                let x = f.times(&format!("{name}_in"), x, 1.0 / cap)?;
                let x = f.unary("tanh", &name, &x, &[])?;
                f.times(&format!("{name}_out"), &x, *cap)
            })?,
            Op::Activation(kind) => {
                self.each(node.inputs[0], |f, x| f.activate(&name, *kind, x))?
            }
            _ => {
                let var = match &node.op {
                    Op::LayerNorm { weight, bias, eps } => {
                        let x = self.plain(&name, node.inputs[0])?;
                        let gain = self.emitter.vector(*weight)?;
                        let gain = self.emitter.numbers(&node.name, &[gain.len()], &gain)?;
                        let mut args = vec![
                            ("axes", Value::ints(&[1]).into()),
                            ("gamma", gain.into()),
                            ("epsilon", Value::f16(eps.max(LEAST)).into()),
                        ];
                        if let Some(bias) = bias {
                            let bias = self.emitter.vector(*bias)?;
                            let bias = self.emitter.numbers(&node.name, &[bias.len()], &bias)?;
                            args.push(("beta", bias.into()));
                        }
                        self.unary("layer_norm", &name, &x, &args)?
                    }
                    Op::Slice { offset, len } => {
                        let x = self.plain(&name, node.inputs[0])?;
                        self.features(&name, &x, *offset, *len)?
                    }
                    Op::Rope(rope) => {
                        let x = self.plain(&name, node.inputs[0])?;
                        self.rope(&name, rope, &x)?
                    }
                    Op::Attention(attention) => {
                        let mut qkv = Vec::new();
                        for &input in &node.inputs {
                            qkv.push(self.plain(&name, input)?);
                        }
                        self.attention(&name, attention, [&qkv[0], &qkv[1], &qkv[2]])?
                    }
                    Op::Mul => {
                        let x = self.plain(&name, node.inputs[0])?;
                        let y = self.plain(&name, node.inputs[1])?;
                        self.binary("mul", &name, &x, &y)?
                    }
                    Op::GatedActivation(kind) => self.gated(&name, *kind, node)?,
                    other => return Err(unsupported(format!("the operation {:?}", other.name()))),
                };
                Lowered { pieces: vec![var], factor: 1.0 }
            }
        };
        self.values.insert(node.output, lowered);
        Ok(())
    }

    /// Applies a function to each piece of a value.
    fn each(
        &mut self,
        id: ValueId,
        mut f: impl FnMut(&mut Self, &Var) -> Result<Var>,
    ) -> Result<Lowered> {
        let value = self.values[&id].clone();
        let mut pieces = Vec::new();
        for piece in &value.pieces {
            let plain = self.times("unscaled", piece, 1.0 / value.factor)?;
            pieces.push(f(self, &plain)?);
        }
        Ok(Lowered { pieces, factor: 1.0 })
    }

    /// Features `offset..offset + len` of a value.
    fn features(&mut self, name: &str, x: &Var, offset: usize, len: usize) -> Result<Var> {
        let end = [1, offset + len, 1, self.columns()];
        self.slice(name, x, &[0, offset, 0, 0], &end)
    }

    /// The factor that the result of a node should have: that of the hidden state, if all that it is
    /// used for is to be added to it.
    pub(super) fn wanted_factor(&self, output: ValueId) -> f32 {
        let users = || self.graph.nodes().iter().filter(|node| node.inputs.contains(&output));
        match users().count() > 0 && users().all(|node| node.op == Op::Add) {
            true => self.residual_factor(),
            false => 1.0,
        }
    }

    fn linear(&mut self, name: &str, linear: &Linear, node: &Node) -> Result<Lowered> {
        let input = self.whole(node.inputs[0])?;
        let factor = self.wanted_factor(node.output);
        let on_weights = factor / input.factor;
        let whole_output = self.only_elementwise_behind(node.output);
        let mut pieces = Vec::new();
        let mut before = 0;
        for part in &linear.parts {
            let rows = self.graph.weights()[part.weight.index()].shape[0];
            // Of a vocabulary those rows that this package has.
            let (own, each) = match (&self.part.head, whole_output) {
                (Some(head), true) => {
                    let own = [head.start, head.end].map(|row| row.clamp(before, before + rows));
                    (own[0] - before..own[1] - before, self.options.head_piece.max(1))
                }
                _ => (0..rows, rows.max(1)),
            };
            before += rows;
            let bias = part.bias.map(|id| self.emitter.vector(id)).transpose()?;
            for start in own.clone().step_by(each) {
                let range = start..own.end.min(start + each);
                let name = match pieces.len() {
                    0 => name.to_owned(),
                    n => format!("{name}_{n}"),
                };
                let weight = self.emitter.matrix(part.weight, range.clone(), on_weights)?;
                let bias = bias
                    .as_ref()
                    .map(|bias| -> Vec<f32> { bias[range].iter().map(|v| v * factor).collect() });
                let x = &input.pieces[0];
                pieces.push(self.convolution(&name, x, weight, bias.as_deref())?);
            }
        }
        if pieces.len() > 1 && !whole_output {
            pieces = vec![self.concat(name, &pieces, 1)?];
        }
        Ok(Lowered { pieces, factor })
    }

    /// A product with a matrix, as a convolution of a single point.
    pub(super) fn convolution(
        &mut self,
        name: &str,
        x: &Var,
        weight: Weight,
        bias: Option<&[f32]>,
    ) -> Result<Var> {
        let mut args = vec![("weight", self.weight(name, weight)?)];
        if let Some(bias) = bias {
            args.push(("bias", self.emitter.numbers(name, &[bias.len()], bias)?.into()));
        }
        args.extend([
            ("strides", Value::ints(&[1, 1]).into()),
            ("pad_type", "valid".into()),
            ("pad", Value::ints(&[0; 4]).into()),
            ("dilations", Value::ints(&[1, 1]).into()),
            ("groups", 1.into()),
        ]);
        self.unary("conv", name, x, &args)
    }

    /// The operand for a convolution's weight.
    fn weight(&mut self, name: &str, weight: Weight) -> Result<Arg> {
        match weight {
            Weight::Dense(value) => Ok(value.into()),
            Weight::Palettized { indices, tables } => {
                let args = [("indices", indices.into()), ("lut", tables.into())];
                let dense =
                    self.b.op("constexpr_lut_to_dense", &format!("{name}_weight"), &args)?;
                Ok((&dense).into())
            }
            Weight::Integers { codes, scales, offsets } => {
                let mut args = vec![("data", codes.into()), ("scale", scales.into())];
                args.extend(offsets.map(|offsets| ("offset", offsets.into())));
                let name = format!("{name}_weight");
                let dense = self.b.op("constexpr_blockwise_shift_scale", &name, &args)?;
                Ok((&dense).into())
            }
        }
    }

    /// Whether only operations that take a value in pieces are behind it.
    fn only_elementwise_behind(&self, output: ValueId) -> bool {
        let mut behind = self.anatomy.head.iter().map(|&i| &self.graph.nodes()[i]);
        behind.any(|node| node.output == output)
            && behind.all(|node| {
                matches!(
                    node.op,
                    Op::Scale(_) | Op::Softcap(_) | Op::Activation(_) | Op::SelectRows
                )
            })
    }

    fn rms_norm(&mut self, name: &str, norm: &RmsNorm, node: &Node) -> Result<Lowered> {
        let input = self.whole(node.inputs[0])?;
        let factor = self.wanted_factor(node.output);
        let (x, width) = (&input.pieces[0], self.graph.ty(node.output).features());
        let columns = self.columns();
        let groups = width / norm.group;
        // One norm over all features, or one a head.
        let (shape, axis) = match groups {
            1 => ([1, width, 1, columns], 1),
            _ => ([1, groups, norm.group, columns], 2),
        };
        let prescale = match self.options.ranges.norms.get(&node.name) {
            Some(&largest) if largest > 0.0 && largest.is_finite() => {
                (NORM_TARGET / (largest * input.factor)).log2().floor().clamp(-14.0, 14.0).exp2()
            }
            _ => NORM_DEFAULT,
        };
        let x = self.reshape(&format!("{name}_in"), x, &shape)?;
        let x = self.times(name, &x, prescale)?;
        let square = self.binary("mul", &format!("{name}_square"), &x, &x)?;
        let mean = self.unary(
            "reduce_mean",
            &format!("{name}_mean"),
            &square,
            &[("axes", Value::ints(&[axis]).into()), ("keep_dims", true.into())],
        )?;
        let epsilon = (norm.eps * (prescale * input.factor).powi(2)).max(LEAST);
        let epsilon = Value::f16(epsilon);
        let rsqrt =
            self.unary("rsqrt", &format!("{name}_rsqrt"), &mean, &[("epsilon", epsilon.into())])?;
        let mut y = self.binary("mul", &format!("{name}_normed"), &x, &rsqrt)?;
        if norm.weight.is_some() || factor != 1.0 {
            let gain = match norm.weight {
                Some(weight) => self.emitter.vector(weight)?,
                None => vec![1.0; norm.group],
            };
            let offset = if norm.weight.is_some() { norm.weight_offset } else { 0.0 };
            let gain: Vec<f32> = gain.iter().map(|g| (g + offset) * factor).collect();
            let mut gain_shape = [1; 4];
            gain_shape[axis as usize] = norm.group;
            let gain = self.emitter.numbers(&node.name, &gain_shape, &gain)?;
            y = self.unary("mul", name, &y, &[("y", gain.into())])?;
        }
        let y = self.reshape(&format!("{name}_out"), &y, &[1, width, 1, columns])?;
        Ok(Lowered { pieces: vec![y], factor })
    }

    fn add(&mut self, name: &str, node: &Node) -> Result<Lowered> {
        let [x, y] = [self.whole(node.inputs[0])?, self.whole(node.inputs[1])?];
        let factor = self.residual_factor();
        let a = self.times(&format!("{name}_x"), &x.pieces[0], factor / x.factor)?;
        let b = self.times(&format!("{name}_y"), &y.pieces[0], factor / y.factor)?;
        Ok(Lowered { pieces: vec![self.binary("add", name, &a, &b)?], factor })
    }

    fn activate(&mut self, name: &str, kind: Activation, x: &Var) -> Result<Var> {
        match kind {
            Activation::Silu => self.unary("silu", name, x, &[]),
            Activation::Gelu => self.unary("gelu", name, x, &[("mode", "EXACT".into())]),
            Activation::GeluTanh => {
                self.unary("gelu", name, x, &[("mode", "TANH_APPROXIMATION".into())])
            }
            Activation::Relu => self.unary("relu", name, x, &[]),
            other => Err(unsupported(format!("the activation {other:?}"))),
        }
    }

    fn gated(&mut self, name: &str, kind: Gate, node: &Node) -> Result<Var> {
        let width = self.graph.ty(node.output).features();
        let first = self.plain(name, node.inputs[0])?;
        let (gate, up) = match node.inputs.get(1) {
            Some(&up) => (first, self.plain(name, up)?),
            None => (
                self.features(&format!("{name}_gate"), &first, 0, width)?,
                self.features(&format!("{name}_up"), &first, width, width)?,
            ),
        };
        self.joined(name, kind, &gate, &up)
    }

    /// A gate and what goes through it.
    pub(super) fn joined(&mut self, name: &str, kind: Gate, gate: &Var, up: &Var) -> Result<Var> {
        match kind {
            Gate::Plain(activation) => {
                let gate = self.activate(&format!("{name}_act"), activation, gate)?;
                self.binary("mul", name, &gate, up)
            }
            Gate::Clamped { alpha, limit } => {
                let part = |text: &str| format!("{name}_{text}");
                let bound = |v: f32| Arg::from(Value::f16(v));
                let gate = self.unary("minimum", &part("gate"), gate, &[("y", bound(limit))])?;
                let bounds = [("alpha", bound(-limit)), ("beta", bound(limit))];
                let up = self.unary("clip", &part("up"), up, &bounds)?;
                let up = self.unary("add", &part("up_1"), &up, &[("y", bound(1.0))])?;
                let steep = self.times(&part("steep"), &gate, alpha)?;
                let open = self.unary("sigmoid", &part("open"), &steep, &[])?;
                let gate = self.binary("mul", &part("act"), &gate, &open)?;
                self.binary("mul", name, &gate, &up)
            }
            other => Err(unsupported(format!("the gate {other:?}"))),
        }
    }

    /// `x cos + turned(x) sin`, where `turned` exchanges the two features of each pair; the signs are in
    /// the caller's sines.
    fn rope(&mut self, name: &str, rope: &Rope, x: &Var) -> Result<Var> {
        let (width, columns, dim) = (x.shape()[1], self.columns(), rope.head_dim);
        let heads = width / dim;
        let x = self.reshape(&format!("{name}_in"), x, &[1, heads, dim, columns])?;
        let pairs = rope.inv_freq.len();
        let turned = match rope.layout {
            RopeLayout::Half => {
                let mut parts = Vec::new();
                for (part, [from, to]) in
                    [[pairs, 2 * pairs], [0, pairs], [2 * pairs, dim]].into_iter().enumerate()
                {
                    if from < to {
                        let (begin, end) = ([0, 0, from, 0], [1, heads, to, columns]);
                        parts.push(self.slice(&format!("{name}_part{part}"), &x, &begin, &end)?);
                    }
                }
                self.concat(&format!("{name}_turned"), &parts, 2)?
            }
            // Neighbours are exchanged by a product with a matrix, which is cheap beside the layer's own.
            RopeLayout::Interleaved => {
                let mut exchange = vec![0.0; dim * dim];
                for i in 0..dim {
                    let from = if i < 2 * pairs { i ^ 1 } else { i };
                    exchange[i * dim + from] = 1.0;
                }
                let exchange = self.emitter.numbers(name, &[1, 1, dim, dim], &exchange)?;
                let exchange = self.b.constant(&format!("{name}_exchange"), exchange);
                self.matmul(&format!("{name}_turned"), &exchange, &x, false)?
            }
        };
        let at =
            self.anatomy.ropes.iter().position(|known| known == rope).expect("it was found there");
        let [cos, sin] = super::Anatomy::rotation(at).map(|name| self.inputs[&name].clone());
        let kept = self.binary("mul", &format!("{name}_kept"), &x, &cos)?;
        let turned = self.binary("mul", &format!("{name}_sin"), &turned, &sin)?;
        let y = self.binary("add", name, &kept, &turned)?;
        self.reshape(&format!("{name}_out"), &y, &[1, width, 1, columns])
    }
}
