//! One operation about to be computed: its operands by name.

use std::sync::Arc;

use baton_cpu::Pool;

use super::constants::Constant;
use super::tensor::{Element, Tensor};
use crate::mil::TensorType;

/// What went wrong in an operation.
pub(super) type Outcome<T> = Result<T, String>;

/// An operand.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Tensor(Tensor),
    Constant(Arc<Constant>),
}

impl Input {
    fn tensor(&self) -> Outcome<Tensor> {
        match self {
            Input::Tensor(tensor) => Ok(tensor.clone()),
            Input::Constant(constant) => constant.tensor(),
        }
    }
}

/// An operation with its operands, which are no longer held elsewhere if this is their last use.
pub(super) struct Call<'a> {
    pub kind: &'a str,
    pub inputs: Vec<(&'a str, Vec<Input>)>,
    /// The types of the results.
    pub types: &'a [TensorType],
    /// Whether what is computed on the way to a result is rounded to half precision too.
    pub rounds_steps: bool,
    pub pool: &'a Pool,
}

impl Call<'_> {
    fn find(&self, name: &str) -> Option<&[Input]> {
        self.inputs.iter().find(|(n, _)| *n == name).map(|(_, inputs)| &inputs[..])
    }

    /// Whether a parameter is given.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// An operand, if it is given.
    pub fn optional(&self, name: &str) -> Outcome<Option<Tensor>> {
        self.find(name).and_then(<[Input]>::first).map(Input::tensor).transpose()
    }

    /// An operand.
    pub fn tensor(&self, name: &str) -> Outcome<Tensor> {
        self.optional(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    /// Takes an operand out, so that it may be the last who has it.
    pub fn take(&mut self, name: &str) -> Outcome<Tensor> {
        let list = self.inputs.iter_mut().find(|(n, _)| *n == name);
        let (_, inputs) = list.ok_or_else(|| format!("{name} is missing"))?;
        match inputs.pop() {
            Some(Input::Tensor(tensor)) => Ok(tensor),
            Some(constant) => constant.tensor(),
            None => Err(format!("{name} was taken already")),
        }
    }

    /// Takes the floating-point numbers of an operand out.
    pub fn take_floats(&mut self, name: &str) -> Outcome<Vec<f32>> {
        let floats = self.take(name)?.into_floats();
        floats.ok_or_else(|| format!("{name} has no floating-point numbers"))
    }

    /// All operands of a list.
    pub fn list(&self, name: &str) -> Outcome<Vec<Tensor>> {
        let inputs = self.find(name).ok_or_else(|| format!("{name} is missing"))?;
        inputs.iter().map(Input::tensor).collect()
    }

    /// The constant that is given for a parameter, if one is.
    pub fn constant(&self, name: &str) -> Option<&Arc<Constant>> {
        match self.find(name)?.first()? {
            Input::Constant(constant) => Some(constant),
            Input::Tensor(_) => None,
        }
    }

    /// The integers of an operand, if it is given.
    pub fn ints(&self, name: &str) -> Outcome<Option<Vec<i64>>> {
        let Some(tensor) = self.optional(name)? else { return Ok(None) };
        match tensor.as_ints() {
            Some(values) => Ok(Some(values.iter().map(|&v| i64::from(v)).collect())),
            None => Err(format!("{name} has no integers")),
        }
    }

    /// The integers of an operand.
    pub fn needed_ints(&self, name: &str) -> Outcome<Vec<i64>> {
        self.ints(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    /// One integer, or a default.
    pub fn int(&self, name: &str, default: i64) -> Outcome<i64> {
        Ok(self.ints(name)?.and_then(|values| values.first().copied()).unwrap_or(default))
    }

    /// Truth values, or all false.
    pub fn bools(&self, name: &str, n: usize) -> Outcome<Vec<bool>> {
        let Some(tensor) = self.optional(name)? else { return Ok(vec![false; n]) };
        let values = bool::unwrap(tensor).filter(|values| values.len() == n);
        values.map(|v| v.to_vec()).ok_or_else(|| format!("{name} is no list of {n} truth values"))
    }

    /// One truth value, or a default.
    pub fn flag(&self, name: &str, default: bool) -> Outcome<bool> {
        if self.has(name) { Ok(self.bools(name, 1)?[0]) } else { Ok(default) }
    }

    /// One number, or a default.
    pub fn number(&self, name: &str, default: f32) -> Outcome<f32> {
        let Some(tensor) = self.optional(name)? else { return Ok(default) };
        let number = tensor.as_floats().and_then(|values| values.first().copied());
        number.ok_or_else(|| format!("{name} is no number"))
    }

    /// A text, if it is given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.constant(name)?.text()
    }

    /// A dimension of `rank`, counted from the end if negative.
    pub fn axis(&self, name: &str, default: i64, rank: usize) -> Outcome<usize> {
        crate::mil::axis(self.int(name, default)?, rank)
    }

    /// The type of the first result.
    pub fn ty(&self) -> &TensorType {
        &self.types[0]
    }
}
