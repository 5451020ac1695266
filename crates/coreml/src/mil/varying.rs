//! Functions whose inputs may have one of several shapes.
//!
//! In memory a function has the types of one of them. In a file, dimensions that differ from one shape to
//! another are of unknown size; which these are follows from the types of each.

use std::collections::{BTreeMap, HashMap};

use super::infer::{Operand, infer};
use super::program::{Binding, Function};
use super::types::{TensorType, Type};
use super::value::Value;
use crate::{Error, Problem, Result};

/// What the dimension of a tensor is while it is not known.
pub(crate) const UNKNOWN: usize = usize::MAX;

const OPEN: &str = "it has a dimension of unknown size";

/// The dimensions of values that are of unknown size in a file, by the values' names.
pub(crate) type Varying = BTreeMap<String, Vec<usize>>;

/// Shapes of inputs by their names.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// Whether a function has a dimension that is not known.
pub(crate) fn is_open(function: &Function) -> bool {
    let results = function.body.ops.iter().flat_map(|op| &op.outputs);
    results.chain(&function.inputs).any(|named| match &named.ty {
        Type::Tensor(ty) | Type::State(ty) => ty.shape.contains(&UNKNOWN),
        _ => false,
    })
}

/// What is known of the values in scope.
type Scope = HashMap<String, (TensorType, Option<Value>)>;

fn operand<'a>(binding: &'a Binding, scope: &'a Scope) -> Option<Operand<'a>> {
    let (ty, value) = match binding {
        Binding::Value(value) => (value.ty.tensor()?, Some(value)),
        Binding::Name(name) => {
            let (ty, value) = scope.get(name)?;
            (ty, value.as_ref())
        }
    };
    Some(Operand { ty: ty.clone(), value })
}

/// The function with other shapes of some inputs, and all types that follow from them.
///
/// # Errors
/// [`Error::Invalid`] if an operation's operands do not fit then, or an input or a constant is still
/// open.
pub(crate) fn with_shapes(function: &Function, shapes: &Shapes) -> Result<Function> {
    let mut function = function.clone();
    let mut scope = Scope::new();
    let invalid =
        |place: &str, text: String| Error::Invalid(vec![Problem { place: place.to_owned(), text }]);
    for input in &mut function.inputs {
        let (Type::Tensor(ty) | Type::State(ty)) = &mut input.ty else { continue };
        if let Some(shape) = shapes.get(&input.name) {
            ty.shape.clone_from(shape);
        }
        if ty.shape.contains(&UNKNOWN) {
            return Err(invalid(&input.name, OPEN.into()));
        }
        scope.insert(input.name.clone(), (ty.clone(), None));
    }
    for op in &mut function.body.ops {
        let value = op.constant().cloned();
        if value.is_none() {
            let lookup = |name: &str| -> Option<Vec<Operand<'_>>> {
                op.inputs.get(name)?.iter().map(|binding| operand(binding, &scope)).collect()
            };
            let types = infer(&op.kind, &lookup)
                .map_err(|text| invalid(&format!("{} {}", op.kind, op.name()), text))?;
            if types.len() != op.outputs.len() {
                let text = format!("it has {} results, not {}", types.len(), op.outputs.len());
                return Err(invalid(op.name(), text));
            }
            for (output, ty) in op.outputs.iter_mut().zip(types) {
                output.ty = Type::Tensor(ty);
            }
        }
        for output in &op.outputs {
            if let Some(ty) = output.ty.tensor() {
                if ty.shape.contains(&UNKNOWN) {
                    return Err(invalid(&output.name, OPEN.into()));
                }
                scope.insert(output.name.clone(), (ty.clone(), value.clone()));
            }
        }
    }
    Ok(function)
}

/// The dimensions that differ between forms of one function, which are made one after the other; none if
/// one cannot be had.
pub(crate) fn varying(mut forms: impl Iterator<Item = Option<Function>>) -> Option<Varying> {
    let mut found = Varying::new();
    let named = |function: &Function| -> Vec<(String, Vec<usize>)> {
        let results = function.body.ops.iter().flat_map(|op| &op.outputs);
        let shape = |ty: &Type| ty.tensor().map_or(Vec::new(), |ty| ty.shape.clone());
        let all = function.inputs.iter().chain(results);
        all.map(|named| (named.name.clone(), shape(&named.ty))).collect()
    };
    let Some(first) = forms.next() else { return Some(found) };
    let first = named(&first?);
    for other in forms {
        for ((name, a), (_, b)) in first.iter().zip(named(&other?)) {
            let axes = (0..a.len().min(b.len())).filter(|&axis| a[axis] != b[axis]);
            let held = found.entry(name.clone()).or_default();
            held.extend(axes);
            held.sort_unstable();
            held.dedup();
        }
    }
    found.retain(|_, axes| !axes.is_empty());
    Some(found)
}
