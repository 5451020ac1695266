//! `fold_constants`: operations whose operands are constants, and shapes, are computed beforehand.

use std::collections::HashSet;

use baton_cpu::{Isa, Pool};

use super::rewrite::Rewrite;
use super::{Change, Draft, Options};
use crate::Result;
use crate::interpret::evaluate;
use crate::mil::view::View;
use crate::mil::{Binding, Data, Elements, Op, TensorType, Type, Value};
use crate::passes::store::Store;

/// Results may have as many elements, or else no more than their operands: a tensor that is only
/// stretched is better stretched where it is used.
const FREE: usize = 4096;
/// Elements of all results of a function at most: a few operations that put things side by side double
/// them each time.
const MOST: usize = 1 << 24;

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    let pool = Pool::new(1, Isa::detect()).expect("what it was found to have");
    draft.each(|name, function, store| {
        let view = View::new(function);
        let (mut rewrite, mut changes) = (Rewrite::new(function), Vec::new());
        let mut left = MOST;
        for op in &function.body.ops {
            let results = folds(op, &view, function.body.outputs.as_slice());
            let folded = match results.filter(|&results| results <= left) {
                Some(_) => fold(op, &rewrite, store, &pool)?,
                None => None,
            };
            let Some(values) = folded else {
                rewrite.keep(op)?;
                continue;
            };
            left -= results.unwrap_or(0);
            for (output, (ty, elements)) in op.outputs.iter().zip(values) {
                let value = store.value(&ty, elements);
                let var = rewrite.constant(&output.name, value);
                rewrite.becomes(&output.name, &var)?;
            }
            changes.push(Change::done(name, op.name(), format!("{} is computed", op.kind)));
        }
        Ok((Some(rewrite.finish()?).filter(|_| !changes.is_empty()), changes))
    })
}

/// How many elements an operation makes, if it may be computed where its operands are known.
fn folds(op: &Op, view: &View<'_>, results: &[String]) -> Option<usize> {
    let sizes = |op: &Op| -> Option<usize> {
        let sizes = op.outputs.iter().map(|output| output.ty.tensor()?.elements());
        sizes.sum()
    };
    let operands: HashSet<_> = op.operands().collect();
    let given: usize = operands.into_iter().filter_map(|name| view.ty(name)?.elements()).sum();
    // A result must be made by an operation.
    let is_result = op.outputs.iter().any(|output| results.contains(&output.name));
    let moves_state = matches!(op.kind.as_str(), "read_state" | "write_state");
    let sound = !op.is_constant() && !is_result && !moves_state && !op.outputs.is_empty();
    sizes(op).filter(|&n| sound && n <= FREE.max(given))
}

/// The results, if all operands are constants now.
fn fold(
    op: &Op,
    rewrite: &Rewrite<'_>,
    store: &Store,
    pool: &Pool,
) -> Result<Option<Vec<(TensorType, Elements)>>> {
    if op.kind == "shape" {
        let x = op.input("x").and_then(Binding::name).and_then(|x| rewrite.find(x));
        let Some(ty) = x.map(|x| x.ty().clone()) else { return Ok(None) };
        let dims: Option<Vec<i32>> = ty.shape.iter().map(|&d| i32::try_from(d).ok()).collect();
        let made = op.outputs[0].ty.tensor().cloned();
        return Ok(dims.zip(made).map(|(dims, ty)| vec![(ty, Elements::Ints(dims))]));
    }
    let known = |binding: &Binding| match binding {
        Binding::Value(value) => Some(value.clone()),
        Binding::Name(name) => rewrite.value(&rewrite.find(name)?).cloned(),
    };
    // Nothing is read before all are known.
    let mut constants = Vec::new();
    for (parameter, bindings) in &op.inputs {
        let values: Option<Vec<Value>> = bindings.iter().map(known).collect();
        let Some(values) = values else { return Ok(None) };
        constants.push((parameter.as_str(), values));
    }
    let mut inputs = Vec::new();
    for (parameter, constants) in constants {
        let mut values = Vec::new();
        for value in constants {
            let Some(elements) = store.elements(&value)? else { return Ok(None) };
            values.push(Value { data: Data::Tensor(elements), ..value });
        }
        inputs.push((parameter, values));
    }
    let types = op.outputs.iter().map(|output| match &output.ty {
        Type::Tensor(ty) => Some(ty.clone()),
        _ => None,
    });
    let Some(types) = types.collect::<Option<Vec<_>>>() else { return Ok(None) };
    // What cannot be computed here is left for whoever runs it.
    let results = evaluate(&op.kind, &inputs, &types, pool);
    Ok(results.map(|results| types.into_iter().zip(results).collect()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, kinds};
    use crate::mil::{Arg, DataType, FunctionBuilder, TensorType, Value, Var};

    const F32: DataType = DataType::Float32;

    fn unary(b: &mut FunctionBuilder, kind: &str, x: &Var, more: &[(&str, Arg)]) -> Var {
        b.op(kind, kind, &[&[("x", x.into())], more].concat()).unwrap()
    }

    #[test]
    fn what_depends_on_constants_alone_is_computed() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F32, &[2, 3]));
        let c = b.constant("c", Value::f32(0.5));
        let c = unary(&mut b, "exp", &c, &[]);
        let c = unary(&mut b, "add", &c, &[("y", Value::f32(1.0).into())]);
        let shape = unary(&mut b, "shape", &x, &[]);
        let half: Arg = Value::ints(&[1]).into();
        let last =
            unary(&mut b, "slice_by_size", &shape, &[("begin", half.clone()), ("size", half)]);
        let y = unary(&mut b, "mul", &x, &[("y", (&c).into())]);
        let zero = b.constant("zero", Value::ints(&[-1]));
        let both = [zero, last];
        let shape =
            b.op("concat", "to", &[("values", both[..].into()), ("axis", 0.into())]).unwrap();
        let shape = unary(&mut b, "identity", &shape, &[]);
        let (function, changes) = check("fold_constants", b.finish(&[y, shape]));
        assert_eq!(changes, 5);
        let kept: Vec<_> =
            function.body.ops.iter().filter(|op| op.kind != "const").map(|op| &op.kind).collect();
        assert_eq!(kept, ["mul", "identity"]);
    }

    #[test]
    fn a_small_tensor_that_is_stretched_stays_small() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F32, &[1 << 14]));
        let one = b.constant("one", Value::f32(1.0));
        let one = unary(&mut b, "expand_dims", &one, &[("axes", Value::ints(&[0]).into())]);
        let long = unary(&mut b, "tile", &one, &[("reps", Value::ints(&[1 << 14]).into())]);
        let y = unary(&mut b, "add", &x, &[("y", (&long).into())]);
        let (function, changes) = check("fold_constants", b.finish(&[y]));
        assert_eq!((changes, kinds(&function, "tile")), (1, 1));
    }
    #[test]
    fn what_doubles_each_time_is_left() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F32, &[1]));
        let mut long = b.constant("long", Value::f32(1.0));
        long = unary(&mut b, "expand_dims", &long, &[("axes", Value::ints(&[0]).into())]);
        for _ in 0..14 {
            let both = [long.clone(), long.clone()];
            long =
                b.op("concat", "long", &[("values", both[..].into()), ("axis", 0.into())]).unwrap();
        }
        let y = unary(&mut b, "add", &x, &[("y", (&long).into())]);
        let (function, _) = check("fold_constants", b.finish(&[y]));
        // 4096 elements may come of anything.
        assert_eq!(kinds(&function, "concat"), 2);
    }
}
