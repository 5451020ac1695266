//! Weights of linear layers as those of convolutions: the same numbers, in two dimensions more.

use std::collections::HashMap;

use crate::Result;
use crate::mil::view::View;
use crate::mil::{Arg, Binding, Op, TensorType, Value, Var};
use crate::passes::rewrite::Rewrite;

/// Constants that are made of another at most: a weight of its table of that table's integers.
const DEEPEST: usize = 3;

/// The weights that are made so far, by the names of the old ones.
#[derive(Default)]
pub(super) struct Weights {
    known: HashMap<String, Var>,
}

impl Weights {
    /// The weight `(O, I)` as `(O, I, 1, 1)`; none if it is made in a way that is not known.
    pub fn points(
        &mut self,
        view: &View<'_>,
        rewrite: &mut Rewrite<'_>,
        weight: &Binding,
    ) -> Result<Option<Var>> {
        let name = match weight {
            Binding::Name(name) => name,
            Binding::Value(value) => {
                let value = extended(value, 0);
                return Ok(value.map(|value| rewrite.constant("weight", value)));
            }
        };
        if let Some(known) = self.known.get(name) {
            return Ok(Some(known.clone()));
        }
        let made = made(view, rewrite, name, 0, DEEPEST)?;
        if let Some(made) = &made {
            self.known.insert(name.clone(), made.clone());
        }
        Ok(made)
    }
}

/// A constant with two dimensions more, before the last `behind`.
fn made(
    view: &View<'_>,
    rewrite: &mut Rewrite<'_>,
    name: &str,
    behind: usize,
    deepest: usize,
) -> Result<Option<Var>> {
    if deepest == 0 {
        return Ok(None);
    }
    let Some(op) = view.maker(name).map(|i| view.op(i)) else { return Ok(None) };
    let called = format!("{name}_points");
    if let Some(value) = op.constant() {
        let Some(value) = extended(value, behind) else { return Ok(None) };
        return Ok(Some(rewrite.constant(&called, value)));
    }
    let known: &[&str] = match op.kind.as_str() {
        "constexpr_blockwise_shift_scale" => &["data", "scale", "offset"],
        "constexpr_lut_to_dense" => &["indices", "lut"],
        _ => return Ok(None),
    };
    let mut args = Vec::new();
    for parameter in op.inputs.keys() {
        let Some(parameter) = known.iter().find(|known| *known == parameter) else {
            return Ok(None);
        };
        // A table has its entries in the last two dimensions.
        let behind = if *parameter == "lut" { 2 } else { behind };
        let Some(arg) = operand(view, rewrite, op, parameter, behind, deepest)? else {
            return Ok(None);
        };
        args.push((*parameter, arg));
    }
    rewrite.op(&op.kind, &called, &args).map(Some)
}

fn operand(
    view: &View<'_>,
    rewrite: &mut Rewrite<'_>,
    op: &Op,
    parameter: &str,
    behind: usize,
    deepest: usize,
) -> Result<Option<Arg>> {
    Ok(match op.input(parameter) {
        Some(Binding::Value(value)) => extended(value, behind).map(Arg::from),
        Some(Binding::Name(name)) => {
            made(view, rewrite, name, behind, deepest - 1)?.map(|var| Arg::from(&var))
        }
        None => None,
    })
}

fn extended(value: &Value, behind: usize) -> Option<Value> {
    let mut shape = value.ty.tensor()?.shape.clone();
    let at = shape.len().checked_sub(behind)?;
    shape.splice(at..at, [1, 1]);
    Some(shaped(value, &shape))
}

/// The same elements in another shape.
pub(super) fn shaped(value: &Value, shape: &[usize]) -> Value {
    let ty = value.ty.tensor().expect("weights are tensors");
    Value { ty: TensorType::new(ty.dtype, shape).into(), data: value.data.clone() }
}
