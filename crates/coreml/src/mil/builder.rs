//! Making a function operation by operation, with every type inferred.

use std::collections::{BTreeMap, HashMap};

use super::infer::{Operand, infer};
use super::program::{Binding, Block, Function, NAME, Named, OPSET, Op, VAL};
use super::types::{TensorType, Type};
use super::value::Value;
use super::verify::is_identifier;
use crate::{Error, Problem, Result};

/// A value of a function that is being made.
#[derive(Clone, Debug, PartialEq)]
pub struct Var {
    name: String,
    ty: TensorType,
}

impl Var {
    /// Its name in the function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type; that of what it holds for a state.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }
}

/// What a parameter is given.
#[derive(Clone, Debug)]
pub enum Arg {
    /// A value.
    Var(Var),
    /// Values.
    List(Vec<Var>),
    /// A constant.
    Value(Value),
}

impl From<&Var> for Arg {
    fn from(var: &Var) -> Self {
        Arg::Var(var.clone())
    }
}

impl From<&[Var]> for Arg {
    fn from(vars: &[Var]) -> Self {
        Arg::List(vars.to_vec())
    }
}

impl From<Value> for Arg {
    fn from(value: Value) -> Self {
        Arg::Value(value)
    }
}

impl From<bool> for Arg {
    fn from(value: bool) -> Self {
        Arg::Value(Value::bool(value))
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Arg::Value(Value::int(value))
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Arg::Value(Value::string(text))
    }
}

/// Makes a [`Function`].
///
/// ```
/// use baton_coreml::mil::{DataType, FunctionBuilder, TensorType, Value};
///
/// let mut b = FunctionBuilder::new();
/// let x = b.input("x", TensorType::new(DataType::Float16, &[1, 8]));
/// let doubled = b.op("mul", "doubled", &[("x", (&x).into()), ("y", Value::f16(2.0).into())])?;
/// let function = b.finish(&[doubled]);
/// assert_eq!(function.body.ops.len(), 2);
/// # Ok::<(), baton_coreml::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct FunctionBuilder {
    inputs: Vec<Named>,
    ops: Vec<Op>,
    /// Every name in use, with the value of those that are constant.
    names: HashMap<String, Option<Value>>,
    /// The constants there are, by their text.
    constants: HashMap<String, Var>,
}

impl FunctionBuilder {
    /// A function with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// An input.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Var {
        let name = self.unique(name);
        self.inputs.push(Named { name: name.clone(), ty: Type::Tensor(ty.clone()) });
        Var { name, ty }
    }

    /// A state.
    pub fn state(&mut self, name: &str, ty: TensorType) -> Var {
        let name = self.unique(name);
        self.inputs.push(Named { name: name.clone(), ty: Type::State(ty.clone()) });
        Var { name, ty }
    }

    /// A constant. Equal ones are one.
    ///
    /// # Panics
    /// If the value is no tensor.
    pub fn constant(&mut self, name: &str, value: Value) -> Var {
        let text = value.to_string();
        if let Some(var) = self.constants.get(&text) {
            return var.clone();
        }
        let name = self.unique(name);
        let ty = value.ty.tensor().expect("constants are tensors").clone();
        let attributes = [(NAME, Value::string(&name)), (VAL, value.clone())];
        self.ops.push(Op {
            kind: "const".into(),
            outputs: vec![Named { name: name.clone(), ty: value.ty.clone() }],
            attributes: attributes.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Op::default()
        });
        self.names.insert(name.clone(), Some(value));
        let var = Var { name, ty };
        self.constants.insert(text, var.clone());
        var
    }

    /// An operation with one result.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the operands do not fit, or there is not one result.
    pub fn op(&mut self, kind: &str, name: &str, args: &[(&str, Arg)]) -> Result<Var> {
        match <[Var; 1]>::try_from(self.ops(kind, name, args)?) {
            Ok([var]) => Ok(var),
            Err(vars) => Err(invalid(kind, name, format!("it has {} results", vars.len()))),
        }
    }

    /// An operation with any number of results, which are called `name`, or `name_0` and so on if
    /// there are several.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the operands do not fit.
    pub fn ops(&mut self, kind: &str, name: &str, args: &[(&str, Arg)]) -> Result<Vec<Var>> {
        // The operands of `constexpr` operations are written in place, all others are values.
        let in_place = kind.starts_with("constexpr_");
        let mut inputs: Vec<(String, Vec<Binding>, Vec<TensorType>)> = Vec::new();
        for (parameter, arg) in args {
            let (bindings, types) = match arg {
                Arg::Value(value) if in_place => {
                    let ty = value.ty.tensor().cloned();
                    let ty = ty.ok_or_else(|| invalid(kind, name, "a constant of no tensor"))?;
                    (vec![Binding::Value(value.clone())], vec![ty])
                }
                Arg::Value(value) => {
                    let var = self.constant(&format!("{name}_{parameter}"), value.clone());
                    (vec![Binding::Name(var.name)], vec![var.ty])
                }
                Arg::Var(var) => (vec![Binding::Name(var.name.clone())], vec![var.ty.clone()]),
                Arg::List(vars) => (
                    vars.iter().map(|var| Binding::Name(var.name.clone())).collect(),
                    vars.iter().map(|var| var.ty.clone()).collect(),
                ),
            };
            inputs.push(((*parameter).to_owned(), bindings, types));
        }
        let lookup = |wanted: &str| -> Option<Vec<Operand<'_>>> {
            let (_, bindings, types) = inputs.iter().find(|(name, ..)| name == wanted)?;
            let operand = |(binding, ty): (&Binding, &TensorType)| {
                let value = match binding {
                    Binding::Value(_) => None,
                    Binding::Name(name) => self.names.get(name).and_then(Option::as_ref),
                };
                Operand { ty: ty.clone(), value }
            };
            Some(bindings.iter().zip(types).map(operand).collect())
        };
        let types = infer(kind, &lookup).map_err(|text| invalid(kind, name, text))?;
        let several = types.len() > 1;
        let name = if types.len() == 1 { self.unique(name) } else { name.to_owned() };
        let mut vars = Vec::new();
        for (i, ty) in types.into_iter().enumerate() {
            let name = if several { self.unique(&format!("{name}_{i}")) } else { name.clone() };
            vars.push(Var { name, ty });
        }
        let named = |var: &Var| Named { name: var.name.clone(), ty: Type::Tensor(var.ty.clone()) };
        self.ops.push(Op {
            kind: kind.to_owned(),
            inputs: inputs.into_iter().map(|(name, bindings, _)| (name, bindings)).collect(),
            outputs: vars.iter().map(named).collect(),
            attributes: [(NAME.to_owned(), Value::string(&name))].into(),
            ..Op::default()
        });
        Ok(vars)
    }

    /// Keeps a name from being given to anything new.
    pub(crate) fn reserve(&mut self, name: &str) {
        self.names.entry(name.to_owned()).or_default();
    }

    /// An operation of another function, whose operands `find` knows by the names they have there. Its
    /// results keep their names if those are `kept`, which nothing else may be called then.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the operands do not fit.
    pub(crate) fn adopt(
        &mut self,
        op: &Op,
        kept: bool,
        find: &dyn Fn(&str) -> Option<Var>,
    ) -> Result<Vec<Var>> {
        let mut inputs: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        let mut types: HashMap<&str, Vec<TensorType>> = HashMap::new();
        for (parameter, bindings) in &op.inputs {
            for binding in bindings {
                let (binding, ty) = match binding {
                    Binding::Value(value) => (binding.clone(), value.ty.tensor().cloned()),
                    Binding::Name(name) => {
                        let var = find(name);
                        let var = var.ok_or_else(|| {
                            invalid(&op.kind, op.name(), format!("there is no {name:?}"))
                        })?;
                        (Binding::Name(var.name), Some(var.ty))
                    }
                };
                let ty =
                    ty.ok_or_else(|| invalid(&op.kind, op.name(), "a constant of no tensor"))?;
                inputs.entry(parameter.clone()).or_default().push(binding);
                types.entry(parameter).or_default().push(ty);
            }
        }
        let results = match op.constant() {
            Some(value) => vec![value.ty.tensor().cloned()],
            None => {
                let lookup = |wanted: &str| -> Option<Vec<Operand<'_>>> {
                    let operand = |(binding, ty): (_, &TensorType)| Operand {
                        ty: ty.clone(),
                        value: self.value_of(binding),
                    };
                    Some(inputs.get(wanted)?.iter().zip(&types[wanted]).map(operand).collect())
                };
                let found = infer(&op.kind, &lookup);
                let found = found.map_err(|text| invalid(&op.kind, op.name(), text))?;
                found.into_iter().map(Some).collect()
            }
        };
        let mut op = Op { inputs, ..op.clone() };
        let mut vars = Vec::new();
        for (output, ty) in op.outputs.iter_mut().zip(results) {
            let ty = ty.ok_or_else(|| invalid(&op.kind, &output.name, "it is no tensor"))?;
            if !kept {
                output.name = self.unique(&output.name);
            }
            output.ty = Type::Tensor(ty.clone());
            vars.push(Var { name: output.name.clone(), ty });
        }
        if let (false, [var]) = (kept, &vars[..]) {
            op.attributes.insert(NAME.into(), Value::string(&var.name));
        }
        if let (Some(value), [var]) = (op.constant(), &vars[..]) {
            self.names.insert(var.name.clone(), Some(value.clone()));
            self.constants.entry(value.to_string()).or_insert_with(|| var.clone());
        }
        self.ops.push(op);
        Ok(vars)
    }

    /// Calls a result something else, which must be reserved or new.
    pub(crate) fn rename(&mut self, var: &Var, name: &str) -> Var {
        for op in self.ops.iter_mut().rev() {
            for binding in op.inputs.values_mut().flatten() {
                if matches!(binding, Binding::Name(operand) if *operand == var.name) {
                    *binding = Binding::Name(name.to_owned());
                }
            }
            if let Some(output) = op.outputs.iter_mut().find(|output| output.name == var.name) {
                output.name = name.to_owned();
                if op.outputs.len() == 1 {
                    op.attributes.insert(NAME.into(), Value::string(name));
                }
                break;
            }
        }
        let value = self.names.remove(&var.name).flatten();
        self.names.insert(name.to_owned(), value);
        Var { name: name.to_owned(), ty: var.ty.clone() }
    }

    /// The value of what is constant.
    pub(crate) fn value(&self, var: &Var) -> Option<&Value> {
        self.names.get(&var.name).and_then(Option::as_ref)
    }

    /// The result of that name.
    pub(crate) fn find(&self, name: &str) -> Option<Var> {
        let mut outputs = self.ops.iter().rev().flat_map(|op| &op.outputs);
        let output = outputs.find(|output| output.name == name)?;
        Some(Var { name: name.to_owned(), ty: output.ty.tensor()?.clone() })
    }

    fn value_of<'a>(&'a self, binding: &'a Binding) -> Option<&'a Value> {
        match binding {
            Binding::Value(value) => Some(value),
            Binding::Name(name) => self.names.get(name).and_then(Option::as_ref),
        }
    }

    /// The function that yields `outputs`.
    pub fn finish(self, outputs: &[Var]) -> Function {
        let outputs = outputs.iter().map(|var| var.name.clone()).collect();
        let body = Block { outputs, ops: self.ops, ..Block::default() };
        Function { inputs: self.inputs, opset: OPSET.into(), body, ..Function::default() }
    }

    /// `name`, or if that is taken or no identifier the next one like it, which is then taken.
    fn unique(&mut self, name: &str) -> String {
        let legal = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
        let mut base: String = name.chars().map(legal).collect();
        if !is_identifier(&base) {
            base.insert_str(0, "v_");
        }
        let mut found = base.clone();
        let mut n = 1;
        while self.names.contains_key(&found) {
            found = format!("{base}_{n}");
            n += 1;
        }
        self.names.insert(found.clone(), None);
        found
    }
}

fn invalid(kind: &str, name: &str, text: impl Into<String>) -> Error {
    Error::Invalid(vec![Problem { place: format!("{kind} {name}"), text: text.into() }])
}
