//! A single operation, whose operands are known.

use baton_cpu::Pool;
use half::f16;

use super::call::{Call, Input};
use super::constants::Constant;
use super::tensor::{Tensor, Values};
use crate::mil::{DataType, Elements, TensorType, Value};

/// The results of an operation on constants that lie in the program, rounded to their `types`; none if it
/// cannot be computed, or has results of a type that no tensor here is kept as.
pub(crate) fn evaluate(
    kind: &str,
    inputs: &[(&str, Vec<Value>)],
    types: &[TensorType],
    pool: &Pool,
) -> Option<Vec<Elements>> {
    let constants = |values: &[Value]| -> Option<Vec<Input>> {
        values.iter().map(|value| Constant::of(value).map(Input::Constant)).collect()
    };
    let inputs: Option<Vec<_>> =
        inputs.iter().map(|(name, values)| Some((*name, constants(values)?))).collect();
    let results =
        super::compute(&mut Call { kind, inputs: inputs?, types, rounds_steps: false, pool })
            .ok()?;
    results.iter().zip(types).map(|(tensor, ty)| elements(tensor, ty)).collect()
}

fn elements(tensor: &Tensor, ty: &TensorType) -> Option<Elements> {
    if !tensor.is(ty) {
        return None;
    }
    let made = match (tensor.values(), ty.dtype) {
        (Values::Floats(v), DataType::Float16) => {
            Elements::Bytes(v.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect())
        }
        (Values::Floats(v), DataType::Float32) => Elements::Floats(v.to_vec()),
        (Values::Ints(v), DataType::Int32) => Elements::Ints(v.to_vec()),
        (Values::Bools(v), DataType::Bool) => Elements::Bools(v.to_vec()),
        _ => return None,
    };
    made.fits(ty).then_some(made)
}
