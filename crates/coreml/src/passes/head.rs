//! `split_head`: products with more rows than the Neural Engine takes become several.
//!
//! If the product is a result of the function, maybe after steps that do not mix its rows, the pieces are
//! results of their own, `NAME_0` and so on, to be laid one behind the other by the caller. Otherwise they
//! are joined where the product was.

use std::collections::HashMap;

use super::rewrite::Rewrite;
use super::store::Store;
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::view::{View, is_binary, is_unary};
use crate::mil::{Arg, Binding, Function, Op, Value, Var};

pub(super) fn run(draft: &mut Draft, options: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, store| {
        let view = View::new(function);
        let mut rewrite = Rewrite::new(function);
        let mut changes = Vec::new();
        // Operations behind a product that are made anew for each piece, where the last of them stands:
        // what else they need is made by then.
        let mut behind: HashMap<usize, Split<'_>> = HashMap::new();
        for (i, op) in function.body.ops.iter().enumerate() {
            if let Some(split) = behind.remove(&i) {
                let text = split.results(&view, &mut rewrite)?;
                changes.push(Change::done(name, split.product.op.name(), text));
                continue;
            }
            if behind.values().any(|split| split.steps.contains(&i)) {
                continue;
            }
            let product = Product::of(&view, op).filter(|p| p.rows > options.head_piece);
            let Some(product) = product else {
                rewrite.keep(op)?;
                continue;
            };
            let pieces = match product.split(&view, &mut rewrite, store, options.head_piece)? {
                Ok(pieces) => pieces,
                Err(reason) => {
                    changes.push(Change::left(name, op.name(), reason));
                    rewrite.keep(op)?;
                    continue;
                }
            };
            let result = op.outputs[0].name.as_str();
            let Some((last, steps)) = steps(&view, result, product.axis) else {
                let joined = rewrite.concat(result, &pieces, product.axis)?;
                rewrite.becomes(result, &joined)?;
                let text =
                    format!("{} rows in {} pieces, joined again", product.rows, pieces.len());
                changes.push(Change::done(name, op.name(), text));
                continue;
            };
            let split = Split { product, pieces, last, steps };
            match split.steps.last() {
                Some(&at) => drop(behind.insert(at, split)),
                None => {
                    let text = split.results(&view, &mut rewrite)?;
                    changes.push(Change::done(name, op.name(), text));
                }
            }
        }
        let done = changes.iter().any(|change| change.done);
        Ok((Some(rewrite.finish()?).filter(|_| done), changes))
    })
}

/// A product with a constant matrix.
struct Product<'a> {
    op: &'a Op,
    weight: &'a str,
    rows: usize,
    /// Where the rows are in the result.
    axis: usize,
}

impl<'a> Product<'a> {
    fn of(view: &View<'a>, op: &'a Op) -> Option<Product<'a>> {
        let rank = view.result_type(op)?.shape.len();
        let axis = match op.kind.as_str() {
            "linear" => rank - 1,
            "conv" if op.input("groups").is_none() || view.ints(op, "groups") == Some(&[1]) => 1,
            _ => return None,
        };
        let weight = op.input("weight")?.name()?;
        let rows = *view.ty(weight)?.shape.first()?;
        Some(Product { op, weight, rows, axis })
    }

    /// The product in pieces of at most so many rows, or why it has none.
    fn split(
        &self,
        view: &View<'_>,
        rewrite: &mut Rewrite<'_>,
        store: &mut Store,
        most: usize,
    ) -> Result<std::result::Result<Vec<Var>, String>> {
        let maker = view.maker(self.weight).map(|i| view.op(i));
        let Some(maker) = maker.filter(|op| op.is_constant()) else {
            return Ok(Err("its weight is no constant".into()));
        };
        // Pieces begin where tables and blocks do, and at whole bytes.
        let blocks: Vec<usize> =
            maker.values().filter_map(|v| v.ty.tensor()?.shape.first()).copied().collect();
        let unit = blocks.iter().map(|&n| self.rows / n.max(1)).max().unwrap_or(1).max(1);
        let unit = if unit.is_multiple_of(8) { unit } else { unit * 8 };
        let each = if most < unit { most - most % (unit / 8).max(1) } else { most - most % unit };
        if each == 0 {
            return Ok(Err(format!("blocks of {unit} rows do not fit into a piece")));
        }
        let result = &self.op.outputs[0].name;
        let mut pieces = Vec::new();
        for from in (0..self.rows).step_by(each) {
            let rows = from..self.rows.min(from + each);
            // Of each constant, the part that these rows have; all of it, if they share it.
            let mut part = |value: &Value| -> Result<Option<Value>> {
                let of = value.ty.tensor().and_then(|ty| ty.shape.first().copied()).unwrap_or(1);
                match of {
                    1 => Ok(Some(value.clone())),
                    of if [rows.start, rows.end].map(|at| at * of % self.rows) == [0, 0] => {
                        let all = self.rows;
                        store.rows(value, rows.start * of / all..rows.end * of / all)
                    }
                    _ => Ok(None),
                }
            };
            let called = format!("{}_rows", self.weight);
            let weight = match maker.constant() {
                Some(value) => part(value)?.map(|value| rewrite.constant(&called, value)),
                None => {
                    let mut args: Vec<(&str, Arg)> = Vec::new();
                    for (parameter, bindings) in &maker.inputs {
                        let whole = matches!(parameter.as_str(), "vector_axis");
                        let value = match &bindings[..] {
                            [Binding::Value(value)] if whole => Some(value.clone()),
                            [Binding::Value(value)] => part(value)?,
                            _ => None,
                        };
                        let Some(value) = value else {
                            return Ok(Err("its weight cannot be cut into rows".into()));
                        };
                        args.push((parameter, value.into()));
                    }
                    Some(rewrite.op(&maker.kind, &called, &args)?)
                }
            };
            let Some(weight) = weight else {
                return Ok(Err("its weight cannot be cut into rows".into()));
            };
            let mut now = HashMap::from([(self.weight.to_owned(), weight)]);
            if let Some(bias) = self.op.input("bias") {
                let value = view.value(Some(bias)).map(&mut part).transpose()?.flatten();
                let (Some(value), Some(name)) = (value, bias.name()) else {
                    return Ok(Err("its bias cannot be cut into rows".into()));
                };
                now.insert(name.to_owned(), rewrite.constant(&format!("{result}_bias"), value));
            }
            pieces.push(rewrite.again(self.op, &now)?.remove(0));
        }
        Ok(Ok(pieces))
    }
}

/// A product in pieces that become results of the function.
struct Split<'a> {
    product: Product<'a>,
    pieces: Vec<Var>,
    /// The result that the product was.
    last: &'a str,
    /// How it became that.
    steps: Vec<usize>,
}

impl Split<'_> {
    /// Makes the pieces results: what was done.
    fn results(&self, view: &View<'_>, rewrite: &mut Rewrite<'_>) -> Result<String> {
        let n = self.pieces.len();
        let name = |i: usize| unused(view.function, &format!("{}_{i}", self.last));
        let names: Vec<String> = (0..n).map(name).collect();
        for (piece, name) in self.pieces.iter().zip(&names) {
            let (mut piece, mut old) = (piece.clone(), &self.product.op.outputs[0].name);
            for &i in &self.steps {
                let op = view.op(i);
                let now = HashMap::from([(old.clone(), piece)]);
                piece = rewrite.again(op, &now)?.remove(0);
                old = &op.outputs[0].name;
            }
            rewrite.call(&piece, name);
        }
        let rows = self.product.rows;
        let text =
            format!("{rows} rows in {n} pieces, the results {} to {}", names[0], names[n - 1]);
        rewrite.result_becomes(self.last, names);
        Ok(text)
    }
}

/// The result of the function that a product becomes by steps that keep its rows apart, and those steps.
fn steps<'a>(view: &View<'a>, product: &'a str, axis: usize) -> Option<(&'a str, Vec<usize>)> {
    let (mut name, mut axis, mut steps) = (product, axis, Vec::new());
    while !view.is_result(name) {
        let at = view.only_user(name)?;
        let op = view.op(at);
        let rank = view.ty(name)?.shape.len();
        match op.kind.as_str() {
            kind if is_unary(kind) => {}
            kind if is_binary(kind) => {
                let other = if op.input("x")?.name() == Some(name) { "y" } else { "x" };
                let one = view.operand_type(op, other)?.elements() == Some(1);
                let same = view.result_type(op)?.shape == view.ty(name)?.shape;
                (one && same).then_some(())?;
            }
            "transpose" => {
                let perm = view.ints(op, "perm")?;
                let perm = perm.iter().map(|&p| crate::mil::axis(i64::from(p), rank).ok());
                axis = perm.collect::<Option<Vec<_>>>()?.iter().position(|&p| p == axis)?;
            }
            "squeeze" => {
                let axes = view.ints(op, "axes")?.iter();
                let axes = axes.map(|&a| crate::mil::axis(i64::from(a), rank).ok());
                let axes = axes.collect::<Option<Vec<_>>>()?;
                axis -= axes.iter().filter(|&&a| a < axis).count();
            }
            _ => return None,
        }
        steps.push(at);
        name = &op.outputs[0].name;
    }
    // A result that is also used here must stay whole.
    (view.users(name).is_empty()).then_some((name, steps))
}

/// A name that nothing in the function has.
fn unused(function: &Function, name: &str) -> String {
    let made = function.body.ops.iter().flat_map(|op| &op.outputs);
    let mut name = name.to_owned();
    while function.inputs.iter().chain(made.clone()).any(|named| named.name == name) {
        name.push('_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::testing::{apply, check_with, close, draft, kinds, results};
    use super::*;
    use crate::in_memory;
    use crate::interpret::{Precision, Tensor, Values};
    use crate::mil::{DataType, FunctionBuilder, TensorType};

    const F16: DataType = DataType::Float16;

    fn options(head_piece: usize) -> Options {
        Options { head_piece, ..Options::default() }
    }

    /// The parts of a tensor one behind the other in the last dimension.
    fn joined(parts: &[&Tensor]) -> Tensor {
        let rows: usize = parts[0].shape().iter().rev().skip(1).product();
        let mut floats = Vec::new();
        for row in 0..rows {
            for part in parts {
                let width = *part.shape().last().unwrap();
                let Values::Floats(values) = part.values() else { panic!("floats") };
                floats.extend_from_slice(&values[row * width..(row + 1) * width]);
            }
        }
        let mut shape = parts[0].shape().to_vec();
        *shape.last_mut().unwrap() = floats.len() / rows;
        Tensor::floats(&shape, floats)
    }

    #[test]
    fn a_head_that_is_a_result_becomes_several_results() {
        let mut weights = in_memory();
        let data: Vec<u8> =
            (0..40 * 4 * 2).map(|i| if i % 2 == 0 { i as u8 } else { 0x38 }).collect();
        let weight = weights.add(F16, &[40, 4, 1, 1], &data).unwrap();
        let bias = weights.add(F16, &[40], &data[..80]).unwrap();
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F16, &[1, 4, 1, 3]));
        let args = [("x", (&x).into()), ("weight", weight.into()), ("bias", bias.into())];
        let head = b.op("conv", "head", &args).unwrap();
        let axes = Value::ints(&[2]).into();
        let head = b.op("squeeze", "squeezed", &[("x", (&head).into()), ("axes", axes)]).unwrap();
        let perm = Value::ints(&[0, 2, 1]).into();
        let head = b.op("transpose", "t", &[("x", (&head).into()), ("perm", perm)]).unwrap();
        let half = Value::f16(0.5).into();
        let logits = b.op("mul", "logits", &[("x", (&head).into()), ("y", half)]).unwrap();
        let before = draft([("main", b.finish(&[logits]))], weights);
        let (after, changes) = apply(&before, "split_head", &options(16));
        assert!(changes[0].text.contains("40 rows in 3 pieces"), "{changes:?}");
        let described = &after[0].model().functions[0].outputs;
        let names: Vec<_> = described.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["logits_0", "logits_1", "logits_2"]);
        let [before, after] = [&before, &after[0]].map(|d| results(d, Precision::F32));
        for (before, after) in before.iter().zip(&after) {
            let parts = ["logits_0", "logits_1", "logits_2"].map(|name| &after[name]);
            assert_eq!(parts.map(|part| part.shape()[2]), [16, 16, 8]);
            close("logits", &before["logits"], &joined(&parts));
        }
    }

    #[test]
    fn a_head_that_is_worked_with_is_joined_again() {
        let mut weights = in_memory();
        let indices = weights.add(DataType::UInt4, &[64, 4], &[0x71; 128]).unwrap();
        let table: Vec<f32> = (0..8 * 16).map(|i| i as f32 / 64.0 - 1.0).collect();
        let table = Value::f16s(&[8, 1, 16, 1], &table);
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F16, &[1, 4]));
        let args = [("indices", indices.into()), ("lut", table.into())];
        let weight = b.op("constexpr_lut_to_dense", "w", &args).unwrap();
        let args = [("x", (&x).into()), ("weight", (&weight).into())];
        let head = b.op("linear", "head", &args).unwrap();
        let shares = b.op("softmax", "shares", &[("x", (&head).into())]).unwrap();
        let function = b.finish(&[shares]);
        let (made, changes) = check_with("split_head", function, weights, &options(24));
        assert_eq!((changes, kinds(&made, "linear"), kinds(&made, "concat")), (1, 3, 1));
    }

    #[test]
    fn a_table_that_a_piece_would_cut_is_left() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F16, &[1, 1]));
        let data =
            Value::tensor(DataType::Int8, &[64, 1], crate::mil::Elements::Bytes(vec![1; 64]));
        let args = [("data", data.into()), ("scale", Value::f16s(&[2, 1], &[1.0, 2.0]).into())];
        let weight = b.op("constexpr_blockwise_shift_scale", "w", &args).unwrap();
        let args = [("x", (&x).into()), ("weight", (&weight).into())];
        let head = b.op("linear", "head", &args).unwrap();
        let made = check_with("split_head", b.finish(&[head]), in_memory(), &options(24));
        assert_eq!(made.1, 0);
    }
}
