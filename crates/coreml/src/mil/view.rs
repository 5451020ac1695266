//! What the values of a function are made of and used for.

use std::collections::{HashMap, HashSet};

use half::f16;

use crate::mil::{Binding, DataType, Elements, Function, Op, TensorType, Type, Value};

/// A function, looked at by its values.
pub(crate) struct View<'a> {
    pub function: &'a Function,
    makers: HashMap<&'a str, usize>,
    users: HashMap<&'a str, Vec<usize>>,
    types: HashMap<&'a str, &'a TensorType>,
}

impl<'a> View<'a> {
    pub fn new(function: &'a Function) -> View<'a> {
        let (mut makers, mut users) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        let mut types = HashMap::new();
        for input in &function.inputs {
            if let Type::Tensor(ty) | Type::State(ty) = &input.ty {
                types.insert(input.name.as_str(), ty);
            }
        }
        for (i, op) in function.body.ops.iter().enumerate() {
            for name in op.operands() {
                users.entry(name).or_default().push(i);
            }
            for output in &op.outputs {
                makers.insert(output.name.as_str(), i);
                if let Type::Tensor(ty) = &output.ty {
                    types.insert(&output.name, ty);
                }
            }
        }
        View { function, makers, users, types }
    }

    /// The operation at an index.
    pub fn op(&self, index: usize) -> &'a Op {
        &self.function.body.ops[index]
    }

    /// Where the operation stands that makes a value; none for inputs.
    pub fn maker(&self, name: &str) -> Option<usize> {
        self.makers.get(name).copied()
    }

    /// The operation that makes an operand.
    pub fn made_by(&self, binding: Option<&Binding>) -> Option<&'a Op> {
        match binding? {
            Binding::Name(name) => self.maker(name).map(|i| self.op(i)),
            Binding::Value(_) => None,
        }
    }

    /// Where a value is used, as often as it is.
    pub fn users(&self, name: &str) -> &[usize] {
        self.users.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a value is a result of the function.
    pub fn is_result(&self, name: &str) -> bool {
        self.function.body.outputs.iter().any(|output| output == name)
    }

    /// The one operation that uses a value, which is then no result of the function.
    pub fn only_user(&self, name: &str) -> Option<usize> {
        match self.users(name) {
            &[user] if !self.is_result(name) => Some(user),
            _ => None,
        }
    }

    /// The type of a value; that of what it holds for a state.
    pub fn ty(&self, name: &str) -> Option<&'a TensorType> {
        self.types.get(name).copied()
    }

    /// The type of an operand.
    pub fn operand_type(&self, op: &'a Op, parameter: &str) -> Option<&'a TensorType> {
        match op.input(parameter)? {
            Binding::Name(name) => self.ty(name),
            Binding::Value(value) => value.ty.tensor(),
        }
    }

    /// The type of the first result of an operation.
    pub fn result_type(&self, op: &'a Op) -> Option<&'a TensorType> {
        op.outputs.first()?.ty.tensor()
    }

    /// Every constant that an operation depends on, each once, those that constants are made of among them.
    pub fn constants(&self, op: &Op) -> Vec<&'a Op> {
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let mut add = |op: &Op, found: &mut Vec<&'a Op>| {
            for maker in op.operands().filter_map(|name| self.maker(name)) {
                if self.op(maker).is_constant() && seen.insert(maker) {
                    found.push(self.op(maker));
                }
            }
        };
        add(op, &mut found);
        let mut next = 0;
        while let Some(&constant) = found.get(next) {
            add(constant, &mut found);
            next += 1;
        }
        found
    }

    /// The constant that an operand is.
    pub fn value(&self, binding: Option<&'a Binding>) -> Option<&'a Value> {
        match binding? {
            Binding::Value(value) => Some(value),
            Binding::Name(name) => self.maker(name).and_then(|i| self.op(i).constant()),
        }
    }

    /// The integers of an operand that is constant.
    pub fn ints(&self, op: &'a Op, parameter: &str) -> Option<&'a [i32]> {
        self.value(op.input(parameter))?.as_ints()
    }

    /// One truth value, or a default where it is left out; none if it is not known.
    pub fn flag(&self, op: &'a Op, parameter: &str, default: bool) -> Option<bool> {
        match op.input(parameter) {
            None => Some(default),
            binding => self.value(binding)?.as_bools()?.first().copied(),
        }
    }

    /// One dimension of `rank`, counted from its beginning.
    pub fn axis(&self, op: &'a Op, parameter: &str, default: i32, rank: usize) -> Option<usize> {
        let axis = match op.input(parameter) {
            None => default,
            Some(_) => *self.ints(op, parameter)?.first()?,
        };
        crate::mil::axis(i64::from(axis), rank).ok()
    }

    /// The one number that a constant operand holds.
    pub fn number(&self, binding: Option<&'a Binding>) -> Option<f32> {
        number(self.value(binding)?)
    }
}

/// The one number that a constant holds.
pub(crate) fn number(value: &Value) -> Option<f32> {
    let ty = value.ty.tensor()?;
    match (value.elements()?, ty.dtype) {
        (Elements::Floats(v), _) if v.len() == 1 => Some(v[0]),
        (Elements::Bytes(v), DataType::Float16) if v.len() == 2 => {
            Some(f16::from_le_bytes([v[0], v[1]]).to_f32())
        }
        _ => None,
    }
}

/// A number as a scalar constant of a floating-point type that programs compute in; none of others.
pub(crate) fn scalar(dtype: DataType, number: f32) -> Option<Value> {
    match dtype {
        DataType::Float16 => Some(Value::f16(number)),
        DataType::Float32 => Some(Value::f32(number)),
        _ => None,
    }
}

/// Whether an operation computes each element of its result from the elements at the same place of its
/// operands alone.
pub(crate) fn is_elementwise(kind: &str) -> bool {
    is_unary(kind) || is_binary(kind)
}

/// Elementwise operations of one tensor, `x`.
pub(crate) fn is_unary(kind: &str) -> bool {
    matches!(
        kind,
        "identity"
            | "exp"
            | "sqrt"
            | "rsqrt"
            | "sigmoid"
            | "silu"
            | "tanh"
            | "softsign"
            | "relu"
            | "erf"
            | "cos"
            | "sin"
            | "abs"
            | "gelu"
            | "clip"
            | "leaky_relu"
            | "cast"
    )
}

/// Elementwise operations of two tensors, `x` and `y`, that stretch to one shape.
pub(crate) fn is_binary(kind: &str) -> bool {
    matches!(kind, "add" | "sub" | "mul" | "real_div" | "maximum" | "minimum" | "pow")
}
