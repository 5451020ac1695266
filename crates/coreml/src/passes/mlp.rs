//! `reshape_mlp_8x8`: feed-forward layers of 64 tokens work on images of 8 x 8 points.
//!
//! Found are convolutions of one point over the same `(1, C, 1, 64)`, joined by what computes each element
//! by itself, up to one convolution of the result.

use std::collections::{BTreeSet, HashMap};

use super::rewrite::Rewrite;
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::view::{View, is_elementwise};
use crate::mil::{Binding, Op};

/// Tokens, and the sides of the image that they become.
const TOKENS: usize = 64;
const SIDE: usize = 8;

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, _| {
        let view = View::new(function);
        let ops = function.body.ops.iter().enumerate();
        let layers: Vec<Layer<'_>> = ops.filter_map(|(i, _)| Layer::ending_at(&view, i)).collect();
        let inside: HashMap<usize, &Layer<'_>> =
            layers.iter().flat_map(|layer| layer.ops.iter().map(move |&i| (i, layer))).collect();
        let (mut rewrite, mut changes) = (Rewrite::new(function), Vec::new());
        for (i, op) in function.body.ops.iter().enumerate() {
            let Some(layer) = inside.get(&i) else {
                rewrite.keep(op)?;
                continue;
            };
            if layer.ops.last() == Some(&i) {
                layer.reshape(&view, &mut rewrite)?;
                let text = format!("{} operations on {SIDE} x {SIDE} points", layer.ops.len());
                changes.push(Change::done(name, op.name(), text));
            }
        }
        Ok((Some(rewrite.finish()?).filter(|_| !changes.is_empty()), changes))
    })
}

/// A feed-forward layer.
struct Layer<'a> {
    input: &'a str,
    /// Where its operations stand, the last one its last convolution.
    ops: BTreeSet<usize>,
}

impl<'a> Layer<'a> {
    fn ending_at(view: &View<'a>, last: usize) -> Option<Layer<'a>> {
        let op = view.op(last);
        if !is_point(view, op) {
            return None;
        }
        let mut layer = Layer { input: "", ops: BTreeSet::from([last]) };
        layer.collect(view, op.input("x")?.name()?)?;
        let of_use_inside = |&i: &usize| {
            let result = &view.op(i).outputs[0].name;
            let users = view.users(result);
            i == last
                || !view.is_result(result) && users.iter().all(|user| layer.ops.contains(user))
        };
        let joined = layer.ops.iter().any(|&i| is_elementwise(&view.op(i).kind));
        (joined && layer.ops.iter().all(of_use_inside)).then_some(layer)
    }

    /// Adds what makes a value, up to the layer's input.
    fn collect(&mut self, view: &View<'a>, name: &'a str) -> Option<()> {
        let mut next = vec![name];
        while let Some(name) = next.pop() {
            let at = view.maker(name)?;
            let op = view.op(at);
            if is_point(view, op) {
                let input = op.input("x")?.name()?;
                if !self.input.is_empty() && self.input != input {
                    return None;
                }
                self.input = input;
                self.ops.insert(at);
                continue;
            }
            if !is_elementwise(&op.kind) || !is_row(view, &op.outputs[0].name) {
                return None;
            }
            if !self.ops.insert(at) {
                continue;
            }
            for parameter in ["x", "y"] {
                let Some(binding) = op.input(parameter) else { continue };
                if let Some(value) = view.value(Some(binding)) {
                    // It must fit beside 8 x 8 points as it is.
                    let shape = &value.ty.tensor()?.shape;
                    shape.iter().rev().take(2).all(|&dim| dim == 1).then_some(())?;
                } else {
                    next.push(binding.name()?);
                }
            }
        }
        Some(())
    }

    fn reshape(&self, view: &View<'_>, rewrite: &mut Rewrite<'_>) -> Result<()> {
        let x = rewrite.now(self.input);
        let square = [1, x.shape()[1], SIDE, SIDE];
        let x = rewrite.reshape(&format!("{}_square", self.input), &x, &square)?;
        let mut now = HashMap::from([(self.input.to_owned(), x)]);
        let mut result = "";
        for &i in &self.ops {
            result = &view.op(i).outputs[0].name;
            let made = rewrite.again(view.op(i), &now)?.remove(0);
            now.insert(result.to_owned(), made);
        }
        let made = &now[result];
        let row = [1, made.shape()[1], 1, TOKENS];
        let row = rewrite.reshape(result, made, &row)?;
        rewrite.becomes(result, &row)
    }
}

/// Whether a value is `(1, C, 1, 64)`.
fn is_row(view: &View<'_>, name: &str) -> bool {
    view.ty(name).is_some_and(|ty| matches!(ty.shape[..], [1, _, 1, TOKENS]))
}

/// Whether an operation is a convolution of one point over a row of 64.
fn is_point(view: &View<'_>, op: &Op) -> bool {
    let name = |parameter: &str| op.input(parameter).and_then(Binding::name);
    let row = op.kind == "conv" && name("x").is_some_and(|x| is_row(view, x));
    let point = |ty: &crate::mil::TensorType| matches!(ty.shape[..], [_, _, 1, 1]);
    let all = |parameter: &str, n: i32| {
        let given = op.inputs.contains_key(parameter);
        !given || view.ints(op, parameter).is_some_and(|v| v.iter().all(|&v| v == n))
    };
    row && is_row(view, &op.outputs[0].name)
        && view.operand_type(op, "weight").is_some_and(point)
        && all("strides", 1)
        && all("groups", 1)
        && all("pad", 0)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, kinds};
    use crate::mil::{DataType, Elements, Function, FunctionBuilder, TensorType, Value, Var};

    const F32: DataType = DataType::Float32;

    /// A gated feed-forward layer over so many tokens; `shown` makes what is inside a result too.
    fn layer(tokens: usize, shown: bool) -> Function {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F32, &[1, 4, 1, tokens]));
        let conv = |b: &mut FunctionBuilder, x: &Var, rows: usize| {
            let columns = x.shape()[1];
            let numbers = (0..rows * columns).map(|i| (i % 7) as f32 / 7.0 - 0.4);
            let weight = Elements::Floats(numbers.collect());
            let weight = Value::tensor(F32, &[rows, columns, 1, 1], weight);
            b.op("conv", "conv", &[("x", x.into()), ("weight", weight.into())]).unwrap()
        };
        let [gate, up] = [conv(&mut b, &x, 6), conv(&mut b, &x, 6)];
        let gate = b.op("silu", "silu", &[("x", (&gate).into())]).unwrap();
        let both = b.op("mul", "both", &[("x", (&gate).into()), ("y", (&up).into())]).unwrap();
        let third = Value::f32(0.3).into();
        let both = b.op("mul", "both", &[("x", (&both).into()), ("y", third)]).unwrap();
        let down = conv(&mut b, &both, 4);
        let y = b.op("add", "y", &[("x", (&down).into()), ("y", (&x).into())]).unwrap();
        if shown { b.finish(&[y, both]) } else { b.finish(&[y]) }
    }

    #[test]
    fn a_layer_of_64_tokens_works_on_a_square() {
        let (function, changes) = check("reshape_mlp_8x8", layer(64, false));
        assert_eq!((changes, kinds(&function, "reshape")), (1, 2));
        let convs = function.body.ops.iter().filter(|op| op.kind == "conv");
        let squares = convs.filter(|op| op.outputs[0].ty.tensor().unwrap().shape[2..] == [8, 8]);
        assert_eq!(squares.count(), 3);
        assert_eq!(check("reshape_mlp_8x8", function).1, 0);
    }

    #[test]
    fn other_lengths_and_layers_that_are_looked_into_are_left() {
        assert_eq!(check("reshape_mlp_8x8", layer(32, false)).1, 0);
        assert_eq!(check("reshape_mlp_8x8", layer(64, true)).1, 0);
    }
}
