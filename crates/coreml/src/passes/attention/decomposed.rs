//! Attention that is products and a softmax already: where it begins and ends, and its slices.
//!
//! A region goes from the queries to the product with the values. The dimension of the queries is
//! followed through it. Where a reshape stacks the queries of several heads, that dimension is a multiple
//! of their number, the queries being what changes fastest in it.

use std::collections::HashMap;

use super::{sliced, slices};
use crate::Result;
use crate::mil::view::{View, is_binary, is_unary};
use crate::mil::{Op, Var};
use crate::passes::rewrite::Rewrite;

/// Operations between a product and its softmax that are looked at.
const DEEPEST: usize = 12;

/// Where the queries are in a tensor: in the dimension `axis`, which has `times` as many elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    axis: usize,
    times: usize,
}

/// The operations from queries to their mixed values.
pub(super) struct Region {
    /// Where they stand in the function, in order.
    pub ops: Vec<usize>,
    /// How many queries there are.
    pub queries: usize,
    /// The name of the queries, which are made outside.
    start: String,
    /// Where the queries are, for them and for each result of the region.
    places: HashMap<String, Place>,
}

/// All regions of at least so many queries.
pub(super) fn regions(view: &View<'_>, least: usize) -> Vec<Region> {
    let ops = view.function.body.ops.iter().enumerate();
    let softmaxes = ops.filter(|(_, op)| op.kind == "softmax").map(|(i, _)| i);
    softmaxes.filter_map(|softmax| Region::around(view, softmax, least)).collect()
}

impl Region {
    fn around(view: &View<'_>, softmax: usize, least: usize) -> Option<Region> {
        let op = view.op(softmax);
        let keys = view.axis(op, "axis", -1, view.result_type(op)?.shape.len())?;
        let mut path = scores(view, op.input("x")?.name()?, DEEPEST)?;
        path.reverse();
        let product = view.op(path[0]);
        path.push(softmax);
        // Forwards to the product with the values.
        let mut last = softmax;
        while view.op(last).kind != "matmul" {
            last = view.only_user(&view.op(last).outputs[0].name)?;
            path.push(last);
            let op = view.op(last);
            let passes = is_unary(&op.kind) || is_binary(&op.kind) || op.kind == "reshape";
            if path.len() > 2 * DEEPEST || !(passes || op.kind == "matmul") {
                return None;
            }
        }
        // One of the factors is the queries: the one whose rows the softmax does not run over.
        for parameter in ["x", "y"] {
            let queries = product.input(parameter)?.name()?;
            let rank = view.ty(queries)?.shape.len();
            let turned = view.flag(product, &format!("transpose_{parameter}"), false)?;
            let axis = if (parameter == "x") == turned { rank - 1 } else { rank - 2 };
            let place = Place { axis, times: 1 };
            if let Some(region) = Region::from(view, queries, place, path.clone(), least)
                && view.op(softmax).outputs.iter().all(|o| region.places[&o.name].axis != keys)
            {
                return Some(region);
            }
            // They may be stacked just before.
            let stacked = view.maker(queries).filter(|&i| view.op(i).kind == "reshape");
            let Some(stacked) = stacked.filter(|_| view.only_user(queries).is_some()) else {
                continue;
            };
            let before = view.op(stacked).input("x")?.name()?;
            let path = [&[stacked], &path[..]].concat();
            let rank = view.ty(before)?.shape.len();
            let place = Place { axis: axis.min(rank.checked_sub(2)?), times: 1 };
            if let Some(region) = Region::from(view, before, place, path, least)
                && view.op(softmax).outputs.iter().all(|o| region.places[&o.name].axis != keys)
            {
                return Some(region);
            }
        }
        None
    }

    /// The region that begins at `start`, whose queries are at `place`.
    fn from(
        view: &View<'_>,
        start: &str,
        place: Place,
        mut path: Vec<usize>,
        least: usize,
    ) -> Option<Region> {
        let queries = *view.ty(start)?.shape.get(place.axis)?;
        if queries < least {
            return None;
        }
        let mut places = HashMap::from([(start.to_owned(), place)]);
        for (n, &i) in path.iter().enumerate() {
            let op = view.op(i);
            let place = follow(view, op, &places, queries)?;
            let result = &op.outputs.first()?.name;
            // All but the last may be of use inside only.
            if n + 1 < path.len() && view.only_user(result) != Some(path[n + 1]) {
                return None;
            }
            places.insert(result.clone(), place);
        }
        // What was stacked is laid out as it was.
        loop {
            let last = view.op(*path.last()?).outputs.first()?.name.as_str();
            if places[last].times == 1 {
                break;
            }
            let next = view.only_user(last).filter(|&i| view.op(i).kind == "reshape")?;
            let place = follow(view, view.op(next), &places, queries)?;
            places.insert(view.op(next).outputs[0].name.clone(), place);
            path.push(next);
        }
        path.is_sorted().then(|| Region { ops: path, queries, start: start.to_owned(), places })
    }

    /// Makes the region anew in slices: how many.
    pub fn slice(
        &self,
        view: &View<'_>,
        rewrite: &mut Rewrite<'_>,
        divider: usize,
    ) -> Result<usize> {
        let start = rewrite.now(&self.start);
        let result = &view.op(*self.ops.last().expect("a region has operations")).outputs[0].name;
        let axis = self.places[&self.start].axis;
        let mut pieces = Vec::new();
        for (from, to) in slices(self.queries, divider) {
            let first = sliced(rewrite, &format!("{result}_q"), &start, axis, from, to)?;
            let mut now = HashMap::from([(self.start.clone(), first)]);
            for &i in &self.ops {
                let op = view.op(i);
                let made = self.piece(view, rewrite, op, &now, from, to)?;
                now.insert(op.outputs[0].name.clone(), made);
            }
            pieces.push(now.remove(result).expect("it was just made"));
        }
        let all = rewrite.concat(result, &pieces, self.places[result].axis)?;
        rewrite.becomes(result, &all)?;
        Ok(pieces.len())
    }

    /// One operation for the queries from `from` up to `to`.
    fn piece(
        &self,
        view: &View<'_>,
        rewrite: &mut Rewrite<'_>,
        op: &Op,
        now: &HashMap<String, Var>,
        from: usize,
        to: usize,
    ) -> Result<Var> {
        let result = &op.outputs[0];
        let place = self.places[&result.name];
        let shape = &result.ty.tensor().expect("verified").shape;
        if op.kind == "reshape" {
            let mut shape = shape.clone();
            shape[place.axis] = place.times * (to - from);
            let x = op.input("x").and_then(|x| x.name()).expect("it was followed");
            return rewrite.reshape(&result.name, &now[x], &shape);
        }
        let mut now = now.clone();
        if is_binary(&op.kind) {
            for name in op.operands().filter(|name| !self.places.contains_key(*name)) {
                let side = view.ty(name).expect("verified");
                // Aligned at the last dimension.
                let axis = (place.axis + side.shape.len()).checked_sub(shape.len());
                if let Some(axis) = axis.filter(|&axis| side.shape[axis] != 1) {
                    let x = rewrite.now(name);
                    let rows = sliced(rewrite, &format!("{name}_rows"), &x, axis, from, to)?;
                    now.insert(name.to_owned(), rows);
                }
            }
        }
        Ok(rewrite.again(op, &now)?.remove(0))
    }
}

/// The operations from `name` back to the product that it is made of, through what keeps its elements
/// apart.
fn scores(view: &View<'_>, name: &str, depth: usize) -> Option<Vec<usize>> {
    let at = view.maker(name)?;
    let op = view.op(at);
    if op.kind == "matmul" {
        return Some(vec![at]);
    }
    let parameters: &[&str] = match op.kind.as_str() {
        kind if is_unary(kind) => &["x"],
        kind if is_binary(kind) => &["x", "y"],
        "reshape" => &["x"],
        _ => return None,
    };
    let names = parameters.iter().filter_map(|parameter| op.input(parameter)?.name());
    let mut found = names.filter_map(|name| scores(view, name, depth.checked_sub(1)?));
    let path = found.next()?;
    Some([&[at], &path[..]].concat())
}

/// Where the queries are in an operation's result, if it computes each query by itself.
fn follow(
    view: &View<'_>,
    op: &Op,
    places: &HashMap<String, Place>,
    queries: usize,
) -> Option<Place> {
    let operand = |parameter: &str| {
        let name = op.input(parameter)?.name()?;
        Some((places.get(name).copied(), &view.ty(name)?.shape))
    };
    let shape = &view.result_type(op)?.shape;
    match op.kind.as_str() {
        "softmax" => {
            let place = operand("x")?.0?;
            (view.axis(op, "axis", -1, shape.len())? != place.axis).then_some(place)
        }
        kind if is_unary(kind) => operand("x")?.0,
        kind if is_binary(kind) => {
            let ((x, x_shape), (y, y_shape)) = (operand("x")?, operand("y")?);
            let (place, own, side) = match (x, y) {
                (Some(place), None) => (place, x_shape, y_shape),
                (None, Some(place)) => (place, y_shape, x_shape),
                _ => return None,
            };
            let axis = (place.axis + side.len()).checked_sub(shape.len());
            // What is beside stacked queries would have to be taken apart by heads.
            let fits = axis.is_none_or(|axis| side[axis] == 1 || place.times == 1);
            (own == shape && fits).then_some(place)
        }
        "matmul" => {
            let ((x, x_shape), (y, y_shape)) = (operand("x")?, operand("y")?);
            let (place, rank, parameter) = match (x, y) {
                (Some(place), None) => (place, x_shape.len(), "x"),
                (None, Some(place)) => (place, y_shape.len(), "y"),
                _ => return None,
            };
            let turned = view.flag(op, &format!("transpose_{parameter}"), false)?;
            let (from, to) = match parameter {
                "x" => (if turned { rank - 1 } else { rank - 2 }, shape.len() - 2),
                _ => (if turned { rank - 2 } else { rank - 1 }, shape.len() - 1),
            };
            (place.axis == from && rank == shape.len()).then_some(Place { axis: to, ..place })
        }
        "reshape" => {
            let (place, before) = operand("x")?;
            let place = place?;
            // What lies between one query and the next stays.
            let step: usize = before[place.axis + 1..].iter().product();
            let axis = (0..shape.len()).rev().find(|&axis| {
                shape[axis] > 1 && shape[axis + 1..].iter().product::<usize>() == step
            })?;
            let whole = shape[axis].is_multiple_of(queries) && before[place.axis] != 1;
            whole.then(|| Place { axis, times: shape[axis] / queries })
        }
        _ => None,
    }
}
