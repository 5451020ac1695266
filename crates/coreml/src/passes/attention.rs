//! `slice_attention_queries`: attention as products and a softmax, over some queries at a time.
//!
//! Scores take memory for all queries times all keys. With `d` slices they take a `d`-th, and the work on
//! them fits into the Neural Engine's own memory. Attention that is one operation becomes products and
//! a softmax in any case, since it runs on the Neural Engine for few shapes only.

mod decomposed;

use std::collections::HashMap;

use self::decomposed::Region;
use super::rewrite::Rewrite;
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::view::{View, scalar};
use crate::mil::{Arg, DataType, Op, Value, Var};

/// What is hidden: far below any score, and within half precision.
const HIDDEN: f32 = -1e4;

pub(super) fn run(draft: &mut Draft, options: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, _| {
        let view = View::new(function);
        let (mut rewrite, mut changes) = (Rewrite::new(function), Vec::new());
        let regions = decomposed::regions(&view, options.min_queries.max(2));
        let inside: HashMap<usize, &Region> = regions
            .iter()
            .flat_map(|region| region.ops.iter().map(move |&i| (i, region)))
            .collect();
        for (i, op) in function.body.ops.iter().enumerate() {
            if let Some(region) = inside.get(&i) {
                // Everything that it needs is made before its last operation.
                if region.ops.last() == Some(&i) {
                    let n = region.slice(&view, &mut rewrite, options.query_divider)?;
                    let text = format!("{} queries in {n} slices", region.queries);
                    changes.push(Change::done(name, op.name(), text));
                }
                continue;
            }
            if op.kind != "scaled_dot_product_attention" {
                rewrite.keep(op)?;
                continue;
            }
            let text = attend(op, &mut rewrite, options)?;
            changes.push(Change::done(name, op.name(), text));
        }
        Ok((Some(rewrite.finish()?).filter(|_| !changes.is_empty()), changes))
    })
}

/// The rows of each slice of `n`.
fn slices(n: usize, divider: usize) -> impl Iterator<Item = (usize, usize)> {
    let each = n.div_ceil(divider.max(1)).max(1);
    (0..n).step_by(each).map(move |from| (from, n.min(from + each)))
}

/// An operation of attention, taken apart: what was done.
fn attend(op: &Op, rewrite: &mut Rewrite<'_>, options: &Options) -> Result<String> {
    let result = &op.outputs[0].name;
    let [query, key, value] = ["query", "key", "value"].map(|p| rewrite.operand(op, p));
    let rank = query.shape().len();
    let [rows, width] = [query.shape()[rank - 2], query.shape()[rank - 1]];
    let mask = op.inputs.contains_key("attn_mask").then(|| rewrite.operand(op, "attn_mask"));
    let dtype = query.ty().dtype;
    let number = |n: f32| Arg::from(scalar(dtype, n).expect("attention is of fp16 or fp32"));
    let part = |text: &str| format!("{result}_{text}");
    // Scaled before the product: scores of unscaled queries may leave half precision.
    let factor = ("y", number((width as f32).powf(-0.5)));
    let query = rewrite.op("mul", &part("query"), &[("x", (&query).into()), factor])?;
    let divider = if rows >= options.min_queries.max(2) { options.query_divider } else { 1 };
    let mut pieces = Vec::new();
    for (from, to) in slices(rows, divider) {
        let query = sliced(rewrite, &part("q"), &query, rank - 2, from, to)?;
        let operands = [("x", (&query).into()), ("y", (&key).into())];
        let flags = [("transpose_x", false.into()), ("transpose_y", true.into())];
        let args = [&operands[..], &flags].concat();
        let mut scores = rewrite.op("matmul", &part("scores"), &args)?;
        if let Some(mask) = &mask {
            // A mask may be of a lower rank, and of one row for all queries.
            let seen = match mask.shape().len() {
                n if n >= 2 && mask.shape()[n - 2] != 1 => {
                    sliced(rewrite, &part("mask"), mask, n - 2, from, to)?
                }
                _ => mask.clone(),
            };
            scores = match seen.ty().dtype {
                DataType::Bool => {
                    let hidden = ("b", number(HIDDEN));
                    let args = [("cond", (&seen).into()), ("a", (&scores).into()), hidden];
                    rewrite.op("select", &part("seen"), &args)?
                }
                _ => {
                    let args = [("x", (&scores).into()), ("y", (&seen).into())];
                    rewrite.op("add", &part("masked"), &args)?
                }
            };
        }
        let axis = Value::int(-1);
        let args = [("x", (&scores).into()), ("axis", axis.into())];
        let shares = rewrite.op("softmax", &part("shares"), &args)?;
        let operands = [("x", (&shares).into()), ("y", (&value).into())];
        let flags = [("transpose_x", false.into()), ("transpose_y", false.into())];
        pieces.push(rewrite.op("matmul", result, &[&operands[..], &flags].concat())?);
    }
    let all = rewrite.concat(result, &pieces, rank - 2)?;
    rewrite.becomes(result, &all)?;
    Ok(match pieces.len() {
        1 => "products and a softmax".into(),
        n => format!("products and a softmax, {rows} queries in {n} slices"),
    })
}

/// Rows of one dimension.
fn sliced(
    rewrite: &mut Rewrite<'_>,
    name: &str,
    x: &Var,
    axis: usize,
    from: usize,
    to: usize,
) -> Result<Var> {
    let (mut begin, mut end) = (vec![0; x.shape().len()], x.shape().to_vec());
    (begin[axis], end[axis]) = (from, to);
    rewrite.slice(name, x, &begin, &end)
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::testing::{check_with, kinds};
    use super::*;
    use crate::in_memory;
    use crate::mil::{Function, FunctionBuilder, TensorType};

    const F32: DataType = DataType::Float32;

    fn sliced(function: Function) -> (Function, usize) {
        let options = Options { min_queries: 6, query_divider: 4, ..Options::default() };
        check_with("slice_attention_queries", function, in_memory(), &options)
    }

    /// Attention in one operation, of some queries, with a mask of a shape.
    fn whole(queries: usize, mask: Option<&[usize]>) -> Function {
        let mut b = FunctionBuilder::new();
        let input = |b: &mut FunctionBuilder, name: &str, rows| {
            b.input(name, TensorType::new(F32, &[2, 3, rows, 4]))
        };
        let q = input(&mut b, "q", queries);
        let [k, v] = ["k", "v"].map(|name| input(&mut b, name, 5));
        let mut args: Vec<(&str, Arg)> =
            vec![("query", (&q).into()), ("key", (&k).into()), ("value", (&v).into())];
        let mask = mask.map(|shape| b.input("mask", TensorType::new(F32, shape)));
        args.extend(mask.as_ref().map(|mask| ("attn_mask", mask.into())));
        let y = b.op("scaled_dot_product_attention", "y", &args).unwrap();
        b.finish(&[y])
    }

    #[test]
    fn attention_in_one_operation_becomes_products_and_is_sliced_if_it_is_long() {
        for (queries, mask, slices) in [
            (10, Some(&[10, 5][..]), 4),
            (7, Some(&[1, 1, 1, 5]), 4),
            (6, None, 3),
            (5, Some(&[2, 1, 5, 5]), 1),
        ] {
            let (function, changes) = sliced(whole(queries, mask));
            assert_eq!(changes, 1);
            assert_eq!(kinds(&function, "scaled_dot_product_attention"), 0);
            assert_eq!(kinds(&function, "softmax"), slices, "{queries} queries");
        }
    }

    #[test]
    fn a_mask_of_truth_values_hides_what_is_false() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F32, &[1, 8, 4]));
        let (zero, half) = (Value::f32(0.0), Value::f32(0.25));
        let sum = b.op(
            "matmul",
            "s",
            &[("x", (&x).into()), ("y", (&x).into()), ("transpose_y", true.into())],
        );
        let mask =
            b.op("greater", "m", &[("x", (&sum.unwrap()).into()), ("y", zero.into())]).unwrap();
        let q = b.op("mul", "q", &[("x", (&x).into()), ("y", half.into())]).unwrap();
        let args = [("query", &q), ("key", &x), ("value", &x), ("attn_mask", &mask)];
        let args = args.map(|(name, var)| (name, Arg::from(var)));
        let y = b.op("scaled_dot_product_attention", "y", &args).unwrap();
        let (function, _) = sliced(b.finish(&[y]));
        assert_eq!((kinds(&function, "select"), kinds(&function, "softmax")), (4, 4));
    }

    /// Attention as products, as the compiler writes it: the queries of a group of heads are stacked, so
    /// that keys and values are not repeated.
    fn stacked(queries: usize, scaled_behind: bool) -> Function {
        let (heads, kv, width, places) = (4, 2, 8, 12);
        let mut b = FunctionBuilder::new();
        let q = b.input("q", TensorType::new(F32, &[1, heads, queries, width]));
        let [k, v] = ["k", "v"].map(|n| b.input(n, TensorType::new(F32, &[1, kv, places, width])));
        let mask = b.input("mask", TensorType::new(F32, &[1, 1, queries, places]));
        let reshape = |b: &mut FunctionBuilder, x: &Var, shape: [usize; 4]| {
            let args = [("x", x.into()), ("shape", Value::sizes(&shape).into())];
            b.op("reshape", "reshaped", &args).unwrap()
        };
        let matmul = |b: &mut FunctionBuilder, x: &Var, y: &Var, turned: bool| {
            let flags = [("transpose_x", false.into()), ("transpose_y", turned.into())];
            b.op("matmul", "p", &[&[("x", x.into()), ("y", y.into())], &flags[..]].concat())
                .unwrap()
        };
        let rows = heads / kv * queries;
        let q = reshape(&mut b, &q, [1, kv, rows, width]);
        let scores = matmul(&mut b, &q, &k, true);
        let mut scores = reshape(&mut b, &scores, [1, heads, queries, places]);
        if scaled_behind {
            let third = Value::f32(0.3).into();
            scores = b.op("mul", "s", &[("x", (&scores).into()), ("y", third)]).unwrap();
        }
        let scores = b.op("add", "m", &[("x", (&scores).into()), ("y", (&mask).into())]).unwrap();
        let shares = b.op("softmax", "w", &[("x", (&scores).into()), ("axis", 3.into())]).unwrap();
        let shares = reshape(&mut b, &shares, [1, kv, rows, places]);
        let y = matmul(&mut b, &shares, &v, false);
        let y = reshape(&mut b, &y, [1, heads, queries, width]);
        b.finish(&[y])
    }

    #[test]
    fn attention_as_products_is_sliced_also_where_heads_share_keys() {
        for (queries, behind, slices) in [(9, true, 3), (8, false, 4), (5, true, 1)] {
            let (function, changes) = sliced(stacked(queries, behind));
            assert_eq!(changes, usize::from(slices > 1));
            assert_eq!(kinds(&function, "softmax"), slices, "{queries} queries");
        }
    }

    #[test]
    fn keys_before_queries_are_sliced_too() {
        // Scores with a column for each query, as in `values x softmax(keys x queries)`.
        let mut b = FunctionBuilder::new();
        let q = b.input("q", TensorType::new(F32, &[1, 3, 4, 10]));
        let k = b.input("k", TensorType::new(F32, &[1, 3, 6, 4]));
        let v = b.input("v", TensorType::new(F32, &[1, 3, 5, 6]));
        let scores = b.op("matmul", "s", &[("x", (&k).into()), ("y", (&q).into())]).unwrap();
        let shares = b.op("softmax", "w", &[("x", (&scores).into()), ("axis", 2.into())]).unwrap();
        let y = b.op("matmul", "y", &[("x", (&v).into()), ("y", (&shares).into())]).unwrap();
        let (function, _) = sliced(b.finish(&[y]));
        assert_eq!(kinds(&function, "softmax"), 4);
    }

    #[test]
    fn slices_cover_all_rows_once() {
        assert_eq!(slices(10, 4).collect::<Vec<_>>(), [(0, 3), (3, 6), (6, 9), (9, 10)]);
        assert_eq!(slices(2, 16).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
        assert_eq!(slices(3, 0).collect::<Vec<_>>(), [(0, 3)]);
    }
}
