//! `eliminate_dead_code`: operations that no result and no state depends on are left out.

use std::collections::{BTreeMap, HashSet};

use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::Function;

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, _| {
        let mut function = function.clone();
        let left_out = eliminate(&mut function);
        if left_out.is_empty() {
            return Ok((None, Vec::new()));
        }
        let list: Vec<_> = left_out.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        let change = Change::done(name, "body", format!("left out: {}", list.join(", ")));
        Ok((Some(function), vec![change]))
    })
}

/// Takes out what is of no use: how many operations of which kinds. Inputs and states stay.
pub(crate) fn eliminate(function: &mut Function) -> BTreeMap<String, usize> {
    let mut live: HashSet<String> = function.body.outputs.iter().cloned().collect();
    let mut left_out = BTreeMap::new();
    let mut kept = Vec::new();
    for op in std::mem::take(&mut function.body.ops).into_iter().rev() {
        // A write has no result, but outlives the call.
        if op.kind == "write_state" || op.outputs.iter().any(|output| live.contains(&output.name)) {
            live.extend(op.operands().map(str::to_owned));
            kept.push(op);
        } else {
            *left_out.entry(op.kind).or_default() += 1;
        }
    }
    kept.reverse();
    function.body.ops = kept;
    left_out
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;
    use crate::mil::{DataType, FunctionBuilder, TensorType, Value};

    #[test]
    fn only_what_a_result_or_a_state_depends_on_is_kept() {
        let mut b = FunctionBuilder::new();
        let ty = TensorType::new(DataType::Float16, &[2]);
        let (x, state) = (b.input("x", ty.clone()), b.state("held", ty));
        let held = b.op("read_state", "read", &[("input", (&state).into())]).unwrap();
        let unused = b.op("add", "unused", &[("x", (&held).into()), ("y", Value::f16(2.0).into())]);
        b.op("tanh", "unused_too", &[("x", (&unused.unwrap()).into())]).unwrap();
        let next = b.op("add", "next", &[("x", (&held).into()), ("y", (&x).into())]).unwrap();
        b.ops("write_state", "w", &[("input", (&state).into()), ("data", (&next).into())]).unwrap();
        let y = b.op("read_state", "y", &[("input", (&state).into())]).unwrap();
        let (function, _) = check("eliminate_dead_code", b.finish(&[y]));
        let kinds: Vec<_> = function.body.ops.iter().map(|op| op.kind.as_str()).collect();
        assert_eq!(kinds, ["read_state", "add", "write_state", "read_state"]);
        assert_eq!(check("eliminate_dead_code", function).1, 0);
    }
}
