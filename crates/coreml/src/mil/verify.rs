//! Whether a program keeps the rules: names, operands, types, constants, states.

use std::collections::{HashMap, HashSet};

use super::infer::shapes::bounded;
use super::infer::{Operand, infer};
use super::program::{Binding, Block, Function, Op, Program};
use super::signatures::{Kind, Signature};
use super::types::{DataType, TensorType, Type};
use super::value::{Data, Value};
use crate::{Error, Problem, Result};

/// Words that Core ML's own text form keeps for itself.
const RESERVED: &str = "any bool program func tensor list dict tuple true false string bf16 fp16 fp32 \
    fp64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 state";

/// Sets of operations by the specification version they came with, from 6 on.
const OPSETS: [&str; 5] = ["CoreML5", "CoreML6", "CoreML7", "CoreML8", "CoreML9"];

/// Checks that a program is well formed: every name is a legal identifier and defined once, before
/// its use; every operation is known, with its required operands and no others, constant where they
/// must be; every declared type is the one that follows from the operands; states are only read and
/// written; every result is computed.
///
/// # Errors
/// [`Error::Invalid`] with everything that is wrong.
pub fn verify(program: &Program) -> Result<()> {
    let mut problems = Vec::new();
    if program.functions.is_empty() {
        problems.push(problem("program", "it has no function"));
    }
    for (name, function) in &program.functions {
        if !is_identifier(name) {
            problems.push(problem(name, "its name is no identifier"));
        }
        Check { function: name, problems: &mut problems, scope: HashMap::new() }.function(function);
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Invalid(problems)) }
}

fn problem(place: &str, text: impl Into<String>) -> Problem {
    Problem { place: place.to_owned(), text: text.into() }
}

/// Whether a name is one that MIL allows.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '@')
        && !RESERVED.split_whitespace().any(|word| word == name)
}

/// What is known of a value in scope.
struct Known<'a> {
    ty: &'a Type,
    value: Option<&'a Value>,
    constant: bool,
}

struct Check<'a, 'p> {
    function: &'a str,
    problems: &'p mut Vec<Problem>,
    scope: HashMap<&'a str, Known<'a>>,
}

impl<'a> Check<'a, '_> {
    fn report(&mut self, place: &str, text: impl Into<String>) {
        self.problems.push(problem(&format!("{}/{place}", self.function), text));
    }

    fn function(&mut self, function: &'a Function) {
        if !OPSETS.contains(&function.opset.as_str()) {
            self.report("opset", format!("{:?} is not known", function.opset));
        }
        let mut inputs = HashSet::new();
        for input in &function.inputs {
            if !matches!(input.ty, Type::Tensor(_) | Type::State(_)) {
                self.report(&input.name, format!("an input of type {}", input.ty));
            }
            inputs.insert(input.name.as_str());
            self.define(&input.name, &input.ty, None, false);
        }
        if !function.body.inputs.is_empty() {
            self.report("body", "it has inputs of its own beside the function's");
        }
        self.block(&function.body);
        if function.body.outputs.is_empty() {
            self.report("body", "it has no result");
        }
        let mut seen = HashSet::new();
        for output in &function.body.outputs {
            if inputs.contains(output.as_str()) {
                self.report(output, "an input is a result; an identity must be between them");
            }
            if !seen.insert(output) {
                self.report(output, "it is a result twice");
            }
        }
    }

    fn define(&mut self, name: &'a str, ty: &'a Type, value: Option<&'a Value>, constant: bool) {
        if !is_identifier(name) {
            self.report(name, "its name is no identifier");
        }
        self.size(name, ty);
        if self.scope.insert(name, Known { ty, value, constant }).is_some() {
            self.report(name, "it is defined twice");
        }
    }

    fn size(&mut self, place: &str, ty: &Type) {
        if let Type::Tensor(ty) | Type::State(ty) = ty
            && let Err(text) = bounded(ty.clone())
        {
            self.report(place, text);
        }
    }

    fn block(&mut self, block: &'a Block) {
        for op in &block.ops {
            self.op(op);
            for output in &op.outputs {
                self.define(&output.name, &output.ty, op.constant(), op.is_constant());
            }
        }
        for output in &block.outputs {
            if !self.scope.contains_key(output.as_str()) {
                self.report(output, "this result is not computed");
            }
        }
    }

    fn op(&mut self, op: &'a Op) {
        let place = format!("{} {}", op.kind, op.name());
        for value in op.values() {
            self.value(&place, value);
        }
        if op.kind == "const" {
            return self.constant(&place, op);
        }
        let Some(signature) = Signature::of(&op.kind) else {
            return self.report(&place, "the operation is not known");
        };
        if !op.blocks.is_empty() {
            self.report(&place, "blocks in it are not known");
        }
        if let Some(other) = op.attributes.keys().find(|key| *key != super::program::NAME) {
            self.report(&place, format!("an attribute {other:?}"));
        }
        let before = self.problems.len();
        self.operands(&place, op, signature);
        let (least, most) = signature.outputs;
        if op.outputs.len() < least || op.outputs.len() > most {
            self.report(&place, format!("{} results", op.outputs.len()));
        }
        if self.problems.len() == before {
            self.types(&place, op);
        }
    }

    fn value(&mut self, place: &str, value: &Value) {
        self.size(place, &value.ty);
        match (&value.data, &value.ty) {
            (Data::Tensor(elements), Type::Tensor(ty)) if !elements.fits(ty) => {
                self.report(place, format!("a constant of {ty} has other elements"));
            }
            (Data::Blob(_) | Data::Tensor(_), Type::Tensor(_)) => {}
            _ => self.report(place, format!("a constant of type {}", value.ty)),
        }
    }

    fn constant(&mut self, place: &str, op: &'a Op) {
        match (op.constant(), &op.outputs[..]) {
            (Some(value), [output]) if value.ty == output.ty => {}
            (Some(value), [output]) => {
                self.report(place, format!("declared {}, its value is {}", output.ty, value.ty));
            }
            _ => self.report(place, "it has no value, or not one result"),
        }
        if !op.inputs.is_empty() {
            self.report(place, "it has operands");
        }
    }

    fn operands(&mut self, place: &str, op: &'a Op, signature: &Signature) {
        for parameter in &signature.parameters {
            let bindings = op.inputs.get(parameter.name);
            if bindings.is_none() && !parameter.optional {
                self.report(place, format!("{} is missing", parameter.name));
            }
            if parameter.kind != Kind::Tensors && bindings.is_some_and(|b| b.len() != 1) {
                self.report(place, format!("{} has not one operand", parameter.name));
            }
        }
        for (name, bindings) in &op.inputs {
            let Some(parameter) = signature.parameter(name) else {
                self.report(place, format!("it takes no {name:?}"));
                continue;
            };
            for binding in bindings {
                let (ty, constant) = match binding {
                    Binding::Value(value) => (&value.ty, true),
                    Binding::Name(operand) => match self.scope.get(operand.as_str()) {
                        Some(known) => (known.ty, known.constant),
                        None => {
                            self.report(place, format!("{operand:?} is used before it is defined"));
                            continue;
                        }
                    },
                };
                if parameter.constant && !constant {
                    self.report(place, format!("{name} must be constant"));
                }
                if !takes(parameter.kind, ty) {
                    self.report(place, format!("{name} cannot be {ty}"));
                }
            }
        }
    }

    fn types(&mut self, place: &str, op: &'a Op) {
        let operand = |binding: &'a Binding| match binding {
            Binding::Value(value) => (&value.ty, Some(value)),
            Binding::Name(name) => {
                let known = &self.scope[name.as_str()];
                (known.ty, known.value)
            }
        };
        let lookup = |name: &str| -> Option<Vec<Operand<'a>>> {
            let bindings = op.inputs.get(name)?;
            let of = |binding| match operand(binding) {
                (Type::Tensor(ty) | Type::State(ty), value) => Operand { ty: ty.clone(), value },
                _ => unreachable!("operands are tensors or states"),
            };
            Some(bindings.iter().map(of).collect())
        };
        match infer(&op.kind, &lookup) {
            Err(text) => self.report(place, text),
            Ok(types) => {
                let declared: Vec<Option<&TensorType>> =
                    op.outputs.iter().map(|output| output.ty.tensor()).collect();
                let inferred: Vec<Option<&TensorType>> = types.iter().map(Some).collect();
                if declared != inferred {
                    let list = |types: Vec<String>| types.join(", ");
                    let declared = list(op.outputs.iter().map(|o| o.ty.to_string()).collect());
                    let inferred = list(types.iter().map(TensorType::to_string).collect());
                    self.report(place, format!("declared {declared}, it yields {inferred}"));
                }
            }
        }
    }
}

fn takes(kind: Kind, ty: &Type) -> bool {
    use DataType::{Bool, Int16, Int32, String, UInt16};
    match (kind, ty) {
        (Kind::State, Type::State(_)) => true,
        (Kind::Tensor | Kind::Tensors, Type::Tensor(_)) => true,
        (Kind::Ints, Type::Tensor(ty)) => matches!(ty.dtype, Int32 | Int16 | UInt16),
        (Kind::Bools, Type::Tensor(ty)) => ty.dtype == Bool,
        (Kind::Text, Type::Tensor(ty)) => ty.dtype == String && ty.shape.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
