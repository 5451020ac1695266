//! What rules ask of operations and functions.

use std::ops::Range;

use crate::mil::view::View;
use crate::mil::{Op, TensorType};
use crate::passes;

pub(super) fn is_state(op: &Op) -> bool {
    matches!(op.kind.as_str(), "read_state" | "write_state")
}

/// The types of an operation's results and of its operands, but for constants, whose type may be another.
pub(super) fn tensors<'a>(view: &'a View<'_>, op: &'a Op) -> impl Iterator<Item = &'a TensorType> {
    let made = |name: &&str| view.maker(name).is_none_or(|i| !view.op(i).is_constant());
    let operands = op.operands().filter(made).filter_map(|name| view.ty(name));
    operands.chain(op.outputs.iter().filter_map(|output| output.ty.tensor()))
}

/// How many products a product sums.
pub(super) fn depth(view: &View<'_>, op: &Op) -> Option<usize> {
    match op.kind.as_str() {
        "conv" => Some(view.operand_type(op, "weight")?.shape[1..].iter().product()),
        "linear" => view.operand_type(op, "x")?.shape.last().copied(),
        "matmul" => {
            let shape = &view.operand_type(op, "x")?.shape;
            let turned = view.flag(op, "transpose_x", false)?;
            shape.len().checked_sub(if turned { 2 } else { 1 }).map(|axis| shape[axis])
        }
        "scaled_dot_product_attention" => view.operand_type(op, "query")?.shape.last().copied(),
        _ => None,
    }
}

/// The `constexpr` operations that make an operation's weights.
pub(super) fn weights<'a>(view: &'a View<'_>, op: &'a Op) -> impl Iterator<Item = &'a Op> {
    let makers = op.operands().filter_map(|name| view.maker(name)).map(|i| view.op(i));
    makers.filter(|maker| maker.kind.starts_with("constexpr_"))
}

/// The integers of weights with scales, and into how many blocks their columns are divided.
pub(super) fn scaled<'a>(
    view: &'a View<'_>,
    op: &'a Op,
) -> impl Iterator<Item = (&'a TensorType, usize)> {
    weights(view, op).filter(|w| w.kind == "constexpr_blockwise_shift_scale").filter_map(|weight| {
        let (data, scale) =
            (view.operand_type(weight, "data")?, view.operand_type(weight, "scale")?);
        Some((data, scale.shape.iter().skip(1).product()))
    })
}

/// The states whose shape is one of those that are looked for.
pub(super) fn states(view: &View<'_>, looked_for: impl Fn(&[usize]) -> bool) -> Vec<String> {
    let found = view.function.states().filter(|(_, ty)| looked_for(&ty.shape));
    found.map(|(state, ty)| format!("{state} {:?}", ty.shape)).collect()
}

/// How many rows of a state an operation updates, if it does.
pub(super) fn update_rows(view: &View<'_>, op: &Op) -> Option<usize> {
    let result = &op.outputs.first()?.name;
    let written = view.users(result).iter().any(|&user| view.op(user).kind == "write_state");
    let update =
        view.operand_type(op, "update").filter(|_| written && op.kind == "slice_update")?;
    update.shape.len().checked_sub(2).map(|axis| update.shape[axis])
}

/// Says how heavy a function is, if that is within a range.
pub(super) fn heavy(view: &View<'_>, range: Range<u64>) -> Vec<String> {
    let bytes = passes::expanded_bytes(view);
    Vec::from_iter(range.contains(&bytes).then(|| format!("{} MB", bytes / 1_000_000)))
}
