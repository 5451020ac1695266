//! Where a function is cut.

use super::Weights;
use crate::mil::view::View;
use crate::mil::{DataType, Type};

/// How much smaller than its share a chunk may be.
const LEAST_SHARE: f64 = 0.6;

/// Before which operations a function is cut so that each part has at most `limit` bytes of weights; nowhere
/// if it has no more. An error says why it cannot be cut so.
pub(super) fn cuts(view: &View<'_>, weights: &Weights, limit: u64) -> Result<Vec<usize>, String> {
    let by_op: Vec<u64> = weights.by_op.iter().map(|w| w.iter().map(|(_, n)| n).sum()).collect();
    let total = weights.bytes();
    if total <= limit {
        return Ok(Vec::new());
    }
    let costs = costs(view);
    let (mut found, mut begin, mut left) = (Vec::new(), 0, total);
    while left > limit {
        let parts = left.div_ceil(limit.max(1));
        let least = (left / parts) as f64 * LEAST_SHARE;
        let (mut sum, mut best, mut any) = (0, None, None);
        for at in begin + 1..by_op.len() {
            sum += by_op[at - 1];
            if sum > limit {
                break;
            }
            let Some(cost) = costs[at].filter(|_| sum > 0) else { continue };
            any = Some((at, sum));
            // Of the cheapest the last: fewer parts.
            if sum as f64 >= least && best.is_none_or(|(_, lowest, _)| cost <= lowest) {
                best = Some((at, cost, sum));
            }
        }
        let cut = best.map(|(at, _, sum)| (at, sum)).or(any);
        let Some((at, sum)) = cut else {
            let mb = limit / 1_000_000;
            return Err(match by_op[begin..].iter().any(|&bytes| bytes > limit) {
                true => format!("one operation alone has more than {mb} MB of weights"),
                false => format!(
                    "{} MB of weights, but a state is used on both sides of every cut",
                    total / 1_000_000
                ),
            });
        };
        found.push(at);
        begin = at;
        left -= sum;
    }
    Ok(found)
}

/// Bytes that would flow over a cut before each operation; none where it cannot be cut: what flows must
/// be a tensor that can cross a function's border, something must, and no state may be on both sides.
fn costs(view: &View<'_>) -> Vec<Option<u64>> {
    let ops = &view.function.body.ops;
    let mut change = vec![0i64; ops.len() + 1];
    let mut barred = vec![0i64; ops.len() + 1];
    for (at, op) in ops.iter().enumerate().filter(|(_, op)| !op.is_constant()) {
        for output in &op.outputs {
            let Some(&last) = view.users(&output.name).iter().max() else { continue };
            let Type::Tensor(ty) = &output.ty else { continue };
            let crosses =
                matches!(ty.dtype, DataType::Float16 | DataType::Float32 | DataType::Int32);
            let bytes = ty.elements().and_then(|n| ty.dtype.bytes(n)).unwrap_or_default() as i64;
            change[at + 1] += bytes;
            change[last + 1] -= bytes;
            if !crosses || ty.shape.is_empty() {
                barred[at + 1] += 1;
                barred[last + 1] -= 1;
            }
        }
    }
    for (state, _) in view.function.states() {
        if let (Some(first), Some(last)) =
            (view.users(state).iter().min(), view.users(state).iter().max())
        {
            barred[first + 1] += 1;
            barred[last + 1] -= 1;
        }
    }
    let (mut bytes, mut bars) = (0, 0);
    let each = change.iter().zip(&barred).map(|(change, bar)| {
        bytes += change;
        bars += bar;
        (bars == 0 && bytes > 0).then_some(bytes as u64)
    });
    each.collect()
}
