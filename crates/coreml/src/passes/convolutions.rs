//! `linear_to_conv`: linear layers become convolutions of one point over `(1, C, 1, S)`.
//!
//! A value of rows of features, `(S, C)` or `(B, S, C)`, is kept as `(B, C, 1, S)` from a convolution on:
//! what computes each element by itself, norms over the features, and splits of them go on in that form.
//! Heads are made of it and it of heads with one transpose. All else is given the rows as they were.

mod weights;

use std::collections::HashMap;

use self::weights::Weights;
use super::dead_code::eliminate;
use super::rewrite::Rewrite;
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::view::{View, is_binary, is_unary};
use crate::mil::{Arg, Binding, Op, Value, Var};

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, _| {
        let mut convolving = Convolving {
            view: View::new(function),
            rewrite: Rewrite::new(function),
            images: HashMap::new(),
            weights: Weights::default(),
            changes: Vec::new(),
            function: name,
        };
        if function.body.ops.iter().all(|op| op.kind != "linear") {
            return Ok((None, Vec::new()));
        }
        for op in &function.body.ops {
            convolving.op(op)?;
        }
        let Convolving { rewrite, changes, .. } = convolving;
        if changes.iter().all(|change| !change.done) {
            return Ok((None, changes));
        }
        let mut made = rewrite.finish()?;
        // Reshapes of heads, and rows that nobody wanted in the end.
        eliminate(&mut made);
        Ok((Some(made), changes))
    })
}

struct Convolving<'a> {
    view: View<'a>,
    rewrite: Rewrite<'a>,
    /// Values as `(B, C, 1, S)`.
    images: HashMap<String, Var>,
    weights: Weights,
    changes: Vec<Change>,
    function: &'a str,
}

impl<'a> Convolving<'a> {
    fn op(&mut self, op: &'a Op) -> Result<()> {
        let done = match op.kind.as_str() {
            "linear" => self.linear(op)?,
            kind if is_unary(kind) || is_binary(kind) => self.elementwise(op)?,
            "reduce_mean" | "reduce_sum" | "reduce_max" | "reduce_min" | "reduce_sum_square" => {
                self.reduce(op)?
            }
            "split" => self.split(op)?,
            "transpose" => self.heads(op)?,
            _ => false,
        };
        if done {
            return Ok(());
        }
        for name in op.operands() {
            self.rows(name)?;
        }
        self.rewrite.keep(op)
    }

    /// A result that is known as an image.
    fn is_image(&mut self, name: &str, image: Var) -> Result<()> {
        self.images.insert(name.to_owned(), image);
        if self.view.is_result(name) { self.rows(name) } else { Ok(()) }
    }

    /// Makes a value the rows that it was, unless that was done.
    fn rows(&mut self, name: &str) -> Result<()> {
        let Some(image) = self.images.get(name).cloned() else { return Ok(()) };
        if self.rewrite.find(name).is_some() {
            return Ok(());
        }
        let (axes, perm): (&[i32], &[usize]) = match self.rank(name) {
            2 => (&[0, 2], &[1, 0]),
            _ => (&[2], &[0, 2, 1]),
        };
        let axes = [("x", (&image).into()), ("axes", Value::ints(axes).into())];
        let columns = self.rewrite.op("squeeze", &format!("{name}_columns"), &axes)?;
        let rows = self.rewrite.transpose(name, &columns, perm)?;
        self.rewrite.becomes(name, &rows)
    }

    fn rank(&self, name: &str) -> usize {
        self.view.ty(name).map_or(0, |ty| ty.shape.len())
    }

    /// A value as an image, made of its rows if need be; none if it has no such form.
    fn image(&mut self, name: &str) -> Result<Option<Var>> {
        if let Some(image) = self.images.get(name) {
            return Ok(Some(image.clone()));
        }
        if let Some(image) = self.of_heads(name)? {
            self.images.insert(name.to_owned(), image.clone());
            return Ok(Some(image));
        }
        let (axes, perm): (&[i32], &[usize]) = match self.rank(name) {
            2 => (&[0, 2], &[1, 0]),
            3 => (&[2], &[0, 2, 1]),
            _ => return Ok(None),
        };
        let rows = self.rewrite.now(name);
        let columns = self.rewrite.transpose(&format!("{name}_columns"), &rows, perm)?;
        let axes = [("x", (&columns).into()), ("axes", Value::ints(axes).into())];
        let image = self.rewrite.op("expand_dims", &format!("{name}_image"), &axes)?;
        self.images.insert(name.to_owned(), image.clone());
        Ok(Some(image))
    }

    fn linear(&mut self, op: &'a Op) -> Result<bool> {
        let Some(x) = op.input("x").and_then(Binding::name) else { return Ok(false) };
        if !matches!(self.rank(x), 2 | 3) {
            let text = "its input has neither 2 nor 3 dimensions";
            self.changes.push(Change::left(self.function, op.name(), text));
            return Ok(false);
        }
        let weight = op.input("weight").expect("verified");
        let weight = self.weights.points(&self.view, &mut self.rewrite, weight)?;
        let Some(weight) = weight else {
            let text = "its weight is quantized in a way that is not known";
            self.changes.push(Change::left(self.function, op.name(), text));
            return Ok(false);
        };
        let x = self.image(x)?.expect("it has the rank");
        let mut args = vec![
            ("x", Arg::from(&x)),
            ("weight", (&weight).into()),
            ("strides", Value::ints(&[1, 1]).into()),
            ("pad_type", "valid".into()),
            ("pad", Value::ints(&[0; 4]).into()),
            ("dilations", Value::ints(&[1, 1]).into()),
            ("groups", 1.into()),
        ];
        if op.inputs.contains_key("bias") {
            args.insert(2, ("bias", (&self.rewrite.operand(op, "bias")).into()));
        }
        let result = &op.outputs[0].name;
        let image = self.rewrite.op("conv", &format!("{result}_conv"), &args)?;
        self.changes.push(Change::done(self.function, op.name(), "a convolution of one point"));
        self.is_image(result, image)?;
        Ok(true)
    }

    /// What computes each element by itself goes on with images, if one of its operands is one.
    fn elementwise(&mut self, op: &'a Op) -> Result<bool> {
        let result = &op.outputs[0];
        let Some(ty) = result.ty.tensor() else { return Ok(false) };
        let values = ["x", "y"].map(|p| op.input(p).and_then(Binding::name));
        let values: Vec<&str> = values.into_iter().flatten().collect();
        if !values.iter().any(|name| self.images.contains_key(*name)) {
            return Ok(false);
        }
        let mut now = HashMap::new();
        for name in values {
            let Some(own) = self.view.ty(name) else { return Ok(false) };
            let constant = self.view.maker(name).and_then(|i| self.view.op(i).constant());
            let image = match (constant, &own.shape[..]) {
                _ if own.elements() == Some(1) && own.shape.len() <= 1 => continue,
                // A number for each feature.
                (Some(value), [.., features]) if own.elements() == Some(*features) => {
                    let shape = [1, *features, 1, 1];
                    let value = weights::shaped(value, &shape);
                    Some(self.rewrite.constant(&format!("{name}_image"), value))
                }
                (Some(_), _) => None,
                (None, shape) if shape.len() == ty.shape.len() => self.image(name)?,
                _ => None,
            };
            let Some(image) = image else { return Ok(false) };
            now.insert(name.to_owned(), image);
        }
        let image = self.rewrite.again(op, &now)?.remove(0);
        self.is_image(&result.name, image)?;
        Ok(true)
    }

    /// A sum, or the like, over the features.
    fn reduce(&mut self, op: &'a Op) -> Result<bool> {
        let Some((x, image)) = self.operand(op) else { return Ok(false) };
        let rank = self.rank(x);
        let over_features = match self.view.ints(op, "axes") {
            Some([axis]) => crate::mil::axis(i64::from(*axis), rank) == Ok(rank - 1),
            _ => false,
        };
        if !over_features || self.view.flag(op, "keep_dims", false) != Some(true) {
            return Ok(false);
        }
        let axes = Value::ints(&[1]).into();
        let args = [("x", (&image).into()), ("axes", axes), ("keep_dims", true.into())];
        let result = &op.outputs[0].name;
        let image = self.rewrite.op(&op.kind, result, &args)?;
        self.is_image(result, image)?;
        Ok(true)
    }

    /// Features in several parts.
    fn split(&mut self, op: &'a Op) -> Result<bool> {
        let Some((x, image)) = self.operand(op) else { return Ok(false) };
        let rank = self.rank(x);
        if self.view.axis(op, "axis", 0, rank) != Some(rank - 1) {
            return Ok(false);
        }
        let features = |output: &crate::mil::Named| output.ty.tensor()?.shape.last().copied();
        let sizes: Option<Vec<usize>> = op.outputs.iter().map(features).collect();
        let sizes = Value::sizes(&sizes.expect("they are tensors")).into();
        let args = [("x", (&image).into()), ("split_sizes", sizes), ("axis", 1.into())];
        let parts = self.rewrite.ops("split", op.name(), &args)?;
        for (output, part) in op.outputs.iter().zip(parts) {
            self.is_image(&output.name, part)?;
        }
        Ok(true)
    }

    /// The operand `x` and its image, if it is known as one.
    fn operand(&self, op: &'a Op) -> Option<(&'a str, Var)> {
        let x = op.input("x")?.name()?;
        Some((x, self.images.get(x)?.clone()))
    }

    /// `(B, H, S, D)` of `(B, S, C)`, which is reshaped to `(B, S, H, D)` and transposed.
    fn heads(&mut self, op: &'a Op) -> Result<bool> {
        let Some(reshape) = self.view.made_by(op.input("x")).filter(|op| op.kind == "reshape")
        else {
            return Ok(false);
        };
        let Some((x, image)) = self.operand(reshape) else { return Ok(false) };
        let (Some(&[0, 2, 1, 3]), Some(from), Some(to)) =
            (self.view.ints(op, "perm"), self.view.ty(x), self.view.result_type(reshape))
        else {
            return Ok(false);
        };
        let (&[batch, rows, _], &[b, r, heads, width]) = (&from.shape[..], &to.shape[..]) else {
            return Ok(false);
        };
        if (b, r) != (batch, rows) {
            return Ok(false);
        }
        let result = &op.outputs[0].name;
        let shape = [batch, heads, width, rows];
        let split = self.rewrite.reshape(&format!("{result}_heads"), &image, &shape)?;
        let heads = self.rewrite.transpose(result, &split, &[0, 1, 3, 2])?;
        self.rewrite.becomes(result, &heads)?;
        Ok(true)
    }

    /// The image of a value that is `(B, H, S, D)`, transposed to `(B, S, H, D)` and reshaped.
    fn of_heads(&mut self, name: &str) -> Result<Option<Var>> {
        let maker = |name: &str, kind: &str| {
            let op = self.view.maker(name).map(|i| self.view.op(i))?;
            Some((op.input("x")?.name()?, op)).filter(|(_, op)| op.kind == kind)
        };
        let found = maker(name, "reshape").and_then(|(x, _)| maker(x, "transpose"));
        let Some((heads, transpose)) = found else { return Ok(None) };
        let shapes = [self.view.ty(name), self.view.ty(heads)];
        let (Some(&[0, 2, 1, 3]), [Some(to), Some(from)]) =
            (self.view.ints(transpose, "perm"), shapes)
        else {
            return Ok(None);
        };
        let (&[batch, count, rows, width], &[b, r, _]) = (&from.shape[..], &to.shape[..]) else {
            return Ok(None);
        };
        if (b, r) != (batch, rows) {
            return Ok(None);
        }
        let heads = self.rewrite.now(heads);
        let columns = self.rewrite.transpose(&format!("{name}_columns"), &heads, &[0, 1, 3, 2])?;
        let shape = [batch, count * width, 1, rows];
        self.rewrite.reshape(&format!("{name}_image"), &columns, &shape).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::testing::{check, check_with, kinds};
    use super::*;
    use crate::in_memory;
    use crate::mil::{DataType, Elements, Function, FunctionBuilder, TensorType};

    const F32: DataType = DataType::Float32;

    fn weight(rows: usize, columns: usize, seed: usize) -> Value {
        let number = |i: usize| ((i * 37 + seed * 11) % 19) as f32 / 19.0 - 0.5;
        let floats = Elements::Floats((0..rows * columns).map(number).collect());
        Value::tensor(F32, &[rows, columns], floats)
    }

    fn linear(b: &mut FunctionBuilder, x: &Var, weight: Value) -> Var {
        b.op("linear", "linear", &[("x", x.into()), ("weight", weight.into())]).unwrap()
    }

    fn binary(b: &mut FunctionBuilder, kind: &str, x: &Var, y: impl Into<Arg>) -> Var {
        b.op(kind, kind, &[("x", x.into()), ("y", y.into())]).unwrap()
    }

    /// A norm and a gated feed-forward layer with what is added around it, twice.
    fn layers(shape: &[usize]) -> Function {
        let mut b = FunctionBuilder::new();
        let mut x = b.input("x", TensorType::new(F32, shape));
        let gain = Value::tensor(F32, &[4], Elements::Floats(vec![0.5, 1.0, 2.0, 0.25]));
        for seed in 0..2 {
            let square = binary(&mut b, "mul", &x, &x.clone());
            let axes = Value::ints(&[-1]).into();
            let args = [("x", (&square).into()), ("axes", axes), ("keep_dims", true.into())];
            let mean = b.op("reduce_mean", "mean", &args).unwrap();
            let args = [("x", (&mean).into()), ("epsilon", Value::f32(1e-3).into())];
            let root = b.op("rsqrt", "root", &args).unwrap();
            let inner = binary(&mut b, "mul", &x, &root);
            let inner = binary(&mut b, "mul", &inner, gain.clone());
            let gate = linear(&mut b, &inner, weight(6, 4, seed));
            let gate = b.op("silu", "silu", &[("x", (&gate).into())]).unwrap();
            let up = linear(&mut b, &inner, weight(6, 4, seed + 2));
            let both = binary(&mut b, "mul", &gate, &up);
            let down = linear(&mut b, &both, weight(4, 6, seed + 4));
            x = binary(&mut b, "add", &x, &down);
        }
        b.finish(&[x])
    }

    #[test]
    fn a_whole_layer_follows_its_convolutions() {
        for shape in [&[1, 5, 4][..], &[5, 4], &[2, 3, 4]] {
            let (function, changes) = check("linear_to_conv", layers(shape));
            assert_eq!((changes, kinds(&function, "conv"), kinds(&function, "linear")), (6, 6, 0));
            // The input, once for what it is added to and once behind its norm, and the result.
            assert_eq!(kinds(&function, "transpose"), 3, "{function:?}");
        }
    }

    #[test]
    fn heads_are_made_of_images_and_images_of_heads() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F32, &[1, 5, 8]));
        let both = linear(&mut b, &x, weight(16, 8, 1));
        let args = [("x", (&both).into()), ("num_splits", 2.into()), ("axis", (-1).into())];
        let heads = b.ops("split", "qk", &args).unwrap().into_iter().map(|part| {
            let shape = Value::ints(&[1, 5, 2, 4]).into();
            let heads = b.op("reshape", "r", &[("x", (&part).into()), ("shape", shape)]).unwrap();
            let perm = Value::ints(&[0, 2, 1, 3]).into();
            b.op("transpose", "t", &[("x", (&heads).into()), ("perm", perm)]).unwrap()
        });
        let heads: Vec<Var> = heads.collect();
        let sum = binary(&mut b, "maximum", &heads[0], &heads[1]);
        let perm = Value::ints(&[0, 2, 1, 3]).into();
        let back = b.op("transpose", "t", &[("x", (&sum).into()), ("perm", perm)]).unwrap();
        let shape = Value::ints(&[1, 5, 8]).into();
        let back = b.op("reshape", "r", &[("x", (&back).into()), ("shape", shape)]).unwrap();
        let y = linear(&mut b, &back, weight(3, 8, 2));
        let (function, changes) = check("linear_to_conv", b.finish(&[y]));
        assert_eq!((changes, kinds(&function, "split")), (2, 1));
        assert_eq!(kinds(&function, "transpose"), 1 + 2 + 1 + 1);
    }

    #[test]
    fn quantized_weights_stay_quantized() {
        let mut weights = in_memory();
        let indices = weights.add(DataType::UInt4, &[8, 4], &[0x3a; 16]).unwrap();
        let table: Vec<f32> = (0..32).map(|i| i as f32 / 8.0 - 2.0).collect();
        let table = Value::f16s(&[2, 1, 16, 1], &table);
        let data = weights.add(DataType::Int8, &[8, 8], &[5; 64]).unwrap();
        let scale = Value::f16s(&[8, 2], &[0.125; 16]);
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float16, &[1, 3, 4]));
        let args = [("indices", indices.into()), ("lut", table.into())];
        let lut = b.op("constexpr_lut_to_dense", "w", &args).unwrap();
        let args = [("data", data.into()), ("scale", scale.into())];
        let scaled = b.op("constexpr_blockwise_shift_scale", "v", &args).unwrap();
        let x = b.op("linear", "l", &[("x", (&x).into()), ("weight", (&lut).into())]).unwrap();
        let bias = Value::f16s(&[8], &[0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]);
        let args = [("x", (&x).into()), ("weight", (&scaled).into()), ("bias", bias.into())];
        let y = b.op("linear", "l", &args).unwrap();
        let (function, changes) =
            check_with("linear_to_conv", b.finish(&[y]), weights, &Options::default());
        assert_eq!((changes, kinds(&function, "conv")), (2, 2));
    }
}
