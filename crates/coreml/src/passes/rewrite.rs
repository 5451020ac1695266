//! Making a function anew from what it was, operation by operation.

use std::collections::HashMap;

use crate::mil::{Arg, Binding, Function, FunctionBuilder, Named, Op, Type, Value, Var};
use crate::{Error, Result};

/// A function that is made from an old one. Operations are kept or replaced in their order; every type
/// is inferred again, and results keep their names.
pub(super) struct Rewrite<'a> {
    old: &'a Function,
    b: FunctionBuilder,
    /// What the old function's values are now.
    now: HashMap<String, Var>,
    outputs: Vec<String>,
}

impl<'a> Rewrite<'a> {
    /// Begins with the inputs that the function has.
    pub fn new(old: &'a Function) -> Rewrite<'a> {
        let inputs = old.inputs.clone();
        Rewrite::with_inputs(old, &inputs)
    }

    /// Begins with other inputs.
    pub fn with_inputs(old: &'a Function, inputs: &[Named]) -> Rewrite<'a> {
        let mut b = FunctionBuilder::new();
        let mut now = HashMap::new();
        for input in inputs {
            let var = match &input.ty {
                Type::State(ty) => b.state(&input.name, ty.clone()),
                ty => b.input(&input.name, ty.tensor().expect("verified").clone()),
            };
            now.insert(input.name.clone(), var);
        }
        // Nothing new is called what something old is called that may still come.
        let made = old.body.ops.iter().flat_map(|op| &op.outputs);
        made.for_each(|output| b.reserve(&output.name));
        Rewrite { old, b, now, outputs: old.body.outputs.clone() }
    }

    /// What a value of the old function is now.
    ///
    /// # Panics
    /// If there was no such value, or its operation has neither been kept nor replaced.
    pub fn now(&self, name: &str) -> Var {
        self.find(name).unwrap_or_else(|| panic!("{name} is not made yet"))
    }

    /// What a value of the old function is now, if it is there.
    pub fn find(&self, name: &str) -> Option<Var> {
        self.now.get(name).cloned()
    }

    /// What the operand of an old operation is now.
    ///
    /// # Panics
    /// If it has no such operand.
    pub fn operand(&mut self, op: &Op, parameter: &str) -> Var {
        match &op.inputs[parameter][0] {
            Binding::Name(name) => self.now(name),
            Binding::Value(value) => self.constant(parameter, value.clone()),
        }
    }

    /// Takes an operation over.
    pub fn keep(&mut self, op: &Op) -> Result<()> {
        let vars = self.b.adopt(op, true, &|name| self.now.get(name).cloned())?;
        for (output, var) in op.outputs.iter().zip(vars) {
            self.now.insert(output.name.clone(), var);
        }
        Ok(())
    }

    /// An operation as the old one, on other operands where `other` knows them by their old names. Its
    /// results are new values.
    pub fn again(&mut self, op: &Op, other: &HashMap<String, Var>) -> Result<Vec<Var>> {
        let find = |name: &str| other.get(name).or_else(|| self.now.get(name)).cloned();
        self.b.adopt(op, false, &find)
    }

    /// A new operation with one result.
    pub fn op(&mut self, kind: &str, name: &str, args: &[(&str, Arg)]) -> Result<Var> {
        self.b.op(kind, name, args)
    }

    /// A new operation with any number of results.
    pub fn ops(&mut self, kind: &str, name: &str, args: &[(&str, Arg)]) -> Result<Vec<Var>> {
        self.b.ops(kind, name, args)
    }

    /// A new constant.
    pub fn constant(&mut self, name: &str, value: Value) -> Var {
        self.b.constant(name, value)
    }

    /// The value of what is constant now.
    pub fn value(&self, var: &Var) -> Option<&Value> {
        self.b.value(var)
    }

    /// What was called `old` is `var` from here on.
    pub fn becomes(&mut self, old: &str, var: &Var) -> Result<()> {
        let mut var = var.clone();
        if self.outputs.iter().any(|output| output == old) {
            let identity = |b: &mut FunctionBuilder| b.op("identity", old, &[("x", (&var).into())]);
            // A value that is old itself keeps its own name.
            let is_old = self.now.values().any(|known| known.name() == var.name());
            var = if is_old { identity(&mut self.b)? } else { var };
            var = self.b.rename(&var, old);
        }
        self.now.insert(old.to_owned(), var);
        Ok(())
    }

    /// A result of the old function is several now.
    pub fn result_becomes(&mut self, old: &str, names: Vec<String>) {
        let place = self.outputs.iter().position(|output| output == old).expect("a result");
        self.outputs.splice(place..=place, names);
    }

    /// Gives a new value the name of its own that a result must have.
    pub fn call(&mut self, var: &Var, name: &str) -> Var {
        self.b.rename(var, name)
    }

    /// Part of `x`: from `begin` up to `end` in each dimension.
    pub fn slice(&mut self, name: &str, x: &Var, begin: &[usize], end: &[usize]) -> Result<Var> {
        if begin.iter().all(|&at| at == 0) && end == x.shape() {
            return Ok(x.clone());
        }
        let corners = [("begin", Value::sizes(begin)), ("end", Value::sizes(end))];
        let corners = corners.map(|(parameter, value)| (parameter, Arg::from(value)));
        self.op("slice_by_index", name, &[&[("x", x.into())], &corners[..]].concat())
    }

    /// `x` in another shape.
    pub fn reshape(&mut self, name: &str, x: &Var, shape: &[usize]) -> Result<Var> {
        if x.shape() == shape {
            return Ok(x.clone());
        }
        self.op("reshape", name, &[("x", x.into()), ("shape", Value::sizes(shape).into())])
    }

    /// `x` with its dimensions in another order.
    pub fn transpose(&mut self, name: &str, x: &Var, perm: &[usize]) -> Result<Var> {
        self.op("transpose", name, &[("x", x.into()), ("perm", Value::sizes(perm).into())])
    }

    /// Values one behind the other.
    pub fn concat(&mut self, name: &str, values: &[Var], axis: usize) -> Result<Var> {
        if let [one] = values {
            return Ok(one.clone());
        }
        let axis = Value::int(axis as i32).into();
        let interleave = ("interleave", false.into());
        self.op("concat", name, &[("values", values.into()), ("axis", axis), interleave])
    }

    /// The new function.
    pub fn finish(self) -> Result<Function> {
        let outputs: Vec<Var> = self
            .outputs
            .iter()
            .map(|name| {
                // Results that are new are known by the name they were given.
                let found = self.now.get(name).filter(|var| var.name() == name).cloned();
                found
                    .or_else(|| self.b.find(name))
                    .ok_or_else(|| Error::malformed(format!("its function makes no {name}")))
            })
            .collect::<Result<_>>()?;
        let made = self.b.finish(&outputs);
        let Function { opset, attributes, body, .. } = self.old;
        let mut function =
            Function { opset: opset.clone(), attributes: attributes.clone(), ..made };
        function.body.attributes = body.attributes.clone();
        Ok(function)
    }
}
