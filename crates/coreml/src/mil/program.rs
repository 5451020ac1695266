//! A MIL program: functions of one block, whose operations are in static single assignment form.

use std::collections::BTreeMap;

use super::types::{TensorType, Type};
use super::value::{BlobRef, Data, Value};

/// The set of operations of iOS 18 and macOS 15, which specification version 9 goes with.
pub const OPSET: &str = "CoreML8";

/// A program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The functions by name. A package with one function calls it `main`.
    pub functions: BTreeMap<String, Function>,
    /// What the tool that made the program says of it.
    pub attributes: BTreeMap<String, Value>,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// The inputs in order, states among them.
    pub inputs: Vec<Named>,
    /// The set of operations it is written in, such as [`OPSET`].
    pub opset: String,
    /// What it does.
    pub body: Block,
    /// What the tool that made it says of it.
    pub attributes: BTreeMap<String, Value>,
}

/// Operations in an order in which every operand comes before its use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Values that a block inside an operation is given.
    pub inputs: Vec<Named>,
    /// Names of the results.
    pub outputs: Vec<String>,
    /// The operations.
    pub ops: Vec<Op>,
    /// What the tool that made it says of it.
    pub attributes: BTreeMap<String, Value>,
}

/// A value's name and type.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The type.
    pub ty: Type,
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Op {
    /// What it does, as `matmul`.
    pub kind: String,
    /// The operands of each parameter; one, but for parameters that are lists.
    pub inputs: BTreeMap<String, Vec<Binding>>,
    /// The results.
    pub outputs: Vec<Named>,
    /// Blocks in it, as in `cond`.
    pub blocks: Vec<Block>,
    /// Its name as `name`, and the value of a `const` as `val`.
    pub attributes: BTreeMap<String, Value>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// An input, or the result of an earlier operation.
    Name(String),
    /// A constant that is written in place.
    Value(Value),
}

/// The name of constants' values among an operation's attributes.
pub(crate) const VAL: &str = "val";
/// The name of operations' names among their attributes.
pub(crate) const NAME: &str = "name";

impl Op {
    /// The operation's name, or that of its first result.
    pub fn name(&self) -> &str {
        let first = || self.outputs.first().map_or("", |output| &output.name);
        self.attributes.get(NAME).and_then(Value::as_str).unwrap_or_else(first)
    }

    /// The constant, if it is a `const`.
    pub fn constant(&self) -> Option<&Value> {
        if self.kind == "const" { self.attributes.get(VAL) } else { None }
    }

    /// Whether its results are known before the function runs.
    pub fn is_constant(&self) -> bool {
        self.kind == "const" || self.kind.starts_with("constexpr_")
    }

    /// The operand of a parameter that is no list.
    pub fn input(&self, parameter: &str) -> Option<&Binding> {
        self.inputs.get(parameter).and_then(|bindings| bindings.first())
    }

    /// Every value written in the operation: constants among operands, and `val`.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        let bindings = self.inputs.values().flatten().filter_map(|binding| match binding {
            Binding::Value(value) => Some(value),
            Binding::Name(_) => None,
        });
        bindings.chain(self.constant())
    }

    /// Names of all operands.
    pub fn operands(&self) -> impl Iterator<Item = &str> {
        self.inputs.values().flatten().filter_map(|binding| match binding {
            Binding::Name(name) => Some(name.as_str()),
            Binding::Value(_) => None,
        })
    }
}

impl Binding {
    /// The name, unless it is a constant in place.
    pub fn name(&self) -> Option<&str> {
        match self {
            Binding::Name(name) => Some(name),
            Binding::Value(_) => None,
        }
    }
}

impl Function {
    /// The inputs that are tensors, with their types.
    pub fn tensor_inputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.inputs.iter().filter_map(|input| match &input.ty {
            Type::Tensor(ty) => Some((input.name.as_str(), ty)),
            _ => None,
        })
    }

    /// The inputs that are states, with the types of what they hold.
    pub fn states(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.inputs.iter().filter_map(|input| match &input.ty {
            Type::State(ty) => Some((input.name.as_str(), ty)),
            _ => None,
        })
    }

    /// The results in order, with their types. One whose operation is missing is left out.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.body.outputs.iter().filter_map(|name| {
            let made = self.body.ops.iter().flat_map(|op| &op.outputs).find(|o| o.name == *name)?;
            Some((name.as_str(), made.ty.tensor()?))
        })
    }
}

impl Program {
    /// Every place in a weight file that the program refers to, with the type it is read as.
    pub fn blobs(&self) -> Vec<(&BlobRef, &Type)> {
        let mut found = Vec::new();
        for function in self.functions.values() {
            collect_blobs(&function.body, &mut found);
        }
        found
    }

    /// Every constant that lies in a weight file, with its type.
    pub(crate) fn blobs_mut(&mut self) -> Vec<(&mut Value, TensorType)> {
        let mut found = Vec::new();
        for function in self.functions.values_mut() {
            collect_blobs_mut(&mut function.body, &mut found);
        }
        found
    }
}

fn collect_blobs_mut<'a>(block: &'a mut Block, found: &mut Vec<(&'a mut Value, TensorType)>) {
    for op in &mut block.ops {
        let bindings = op.inputs.values_mut().flatten().filter_map(|binding| match binding {
            Binding::Value(value) => Some(value),
            Binding::Name(_) => None,
        });
        let constant = op.attributes.get_mut(VAL).filter(|_| op.kind == "const");
        for value in bindings.chain(constant) {
            if let (Data::Blob(_), Type::Tensor(ty)) = (&value.data, &value.ty) {
                let ty = ty.clone();
                found.push((value, ty));
            }
        }
        for block in &mut op.blocks {
            collect_blobs_mut(block, found);
        }
    }
}

fn collect_blobs<'a>(block: &'a Block, found: &mut Vec<(&'a BlobRef, &'a Type)>) {
    for op in &block.ops {
        found.extend(op.values().filter_map(|value| match &value.data {
            Data::Blob(blob) => Some((blob, &value.ty)),
            _ => None,
        }));
        for block in &op.blocks {
            collect_blobs(block, found);
        }
    }
}
