//! What an operation takes.

use std::iter::Sum;

use crate::mil::view::View;
use crate::mil::{Op, TensorType};

/// Floating-point operations, and bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Floating-point operations: two for each product and sum of a matrix product, five for an element of
    /// a softmax, one for each element of anything else that computes.
    pub flops: u64,
    /// Bytes of operands and results; weights as they are stored. Views of a tensor take none, updates of
    /// a part only that part.
    pub bytes: u64,
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |a, b| Cost {
            flops: a.flops.saturating_add(b.flops),
            bytes: a.bytes.saturating_add(b.bytes),
        })
    }
}

impl Cost {
    /// Which parts of a whole it is, in floating-point operations and in bytes; all of nothing.
    pub fn share_of(self, whole: Cost) -> (f64, f64) {
        let share = |part: u64, whole: u64| match whole {
            0 => 1.0,
            whole => part as f64 / whole as f64,
        };
        (share(self.flops, whole.flops), share(self.bytes, whole.bytes))
    }

    pub(super) fn of(view: &View<'_>, op: &Op) -> Cost {
        Cost { flops: flops(view, op).unwrap_or_default(), bytes: bytes(view, op) }
    }
}

fn elements(ty: &TensorType) -> u64 {
    ty.elements().map_or(u64::MAX, |n| n as u64)
}

fn flops(view: &View<'_>, op: &Op) -> Option<u64> {
    let result = elements(view.result_type(op)?);
    let x = view.operand_type(op, "x");
    let times = |depth: usize| result.saturating_mul(2).saturating_mul(depth as u64);
    Some(match op.kind.as_str() {
        "conv" => {
            let weight = &view.operand_type(op, "weight")?.shape;
            times(weight[1..].iter().product())
        }
        "linear" => times(*x?.shape.last()?),
        "matmul" => {
            let shape = &x?.shape;
            let turned = view.flag(op, "transpose_x", false)?;
            times(shape[shape.len() - if turned { 2 } else { 1 }])
        }
        "scaled_dot_product_attention" => {
            let (query, key) = (view.operand_type(op, "query")?, view.operand_type(op, "key")?);
            let places = key.shape[key.shape.len() - 2] as u64;
            let width = *query.shape.last()? as u64;
            // Two products, and a softmax of their scores.
            let scores = (elements(query) / width.max(1)).saturating_mul(places);
            scores.saturating_mul(2 * width + 5).saturating_add(times(places as usize))
        }
        "softmax" => 5 * result,
        "layer_norm" => 5 * result,
        kind if kind.starts_with("reduce_") => elements(x?),
        kind if moves(kind) || !view.result_type(op)?.dtype.is_float() => 0,
        _ => result,
    })
}

fn moves(kind: &str) -> bool {
    is_view(kind)
        || matches!(
            kind,
            "transpose"
                | "concat"
                | "split"
                | "stack"
                | "tile"
                | "pad"
                | "fill"
                | "slice_by_index"
                | "slice_by_size"
                | "slice_update"
                | "gather"
                | "shape"
                | "range_1d"
                | "cast"
        )
}

/// Whether its result is its operand, called otherwise.
fn is_view(kind: &str) -> bool {
    matches!(
        kind,
        "identity" | "reshape" | "expand_dims" | "squeeze" | "read_state" | "write_state"
    )
}

fn bytes(view: &View<'_>, op: &Op) -> u64 {
    let of =
        |ty: &TensorType| ty.elements().and_then(|n| ty.dtype.bytes(n)).map_or(0, |n| n as u64);
    let results: u64 = op.outputs.iter().filter_map(|output| output.ty.tensor()).map(of).sum();
    match op.kind.as_str() {
        kind if is_view(kind) => 0,
        "slice_update" => 2 * view.operand_type(op, "update").map_or(0, of),
        "slice_by_index" | "slice_by_size" | "gather" => 2 * results,
        _ => {
            let constants = view.constants(op);
            let stored = constants.into_iter().chain([op]).flat_map(Op::values);
            let stored = stored.filter_map(|value| value.ty.tensor()).map(of);
            let made = op
                .operands()
                .filter(|name| view.maker(name).is_none_or(|maker| !view.op(maker).is_constant()));
            let made = made.filter_map(|name| view.ty(name)).map(of);
            stored.sum::<u64>() + made.sum::<u64>() + results
        }
    }
}
