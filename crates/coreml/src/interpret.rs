//! Runs the functions of a package on the CPU.
//!
//! ```text
//! tensor, call     tensors while a function runs; an operation with its operands
//! constants        weights, with quantized ones expanded
//! plan             functions with their names resolved
//! evaluate         a single operation of constants
//! elementwise, reduce, products, moves   the operations
//! ```
//!
//! It computes what Core ML would, plainly and checked against Core ML's own tools, and shows what half
//! precision does to a model: with [`Precision::F16`] every intermediate result is rounded as the
//! hardware keeps it.

mod call;
mod constants;
mod elementwise;
mod evaluate;
mod moves;
mod plan;
mod products;
mod reduce;
mod tensor;

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_cpu::Pool;

use self::call::{Call, Input};
use self::constants::{Constant, Constants};
pub(crate) use self::evaluate::evaluate;
pub use self::tensor::{Tensor, Values};
use crate::mil::{DataType, Function, TensorType};
use crate::package::Package;
use crate::{Error, Result};

/// What results of type fp16 are kept as while a function runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Single precision; only what leaves the function, or is kept in a state, is rounded to half.
    #[default]
    F32,
    /// Half precision, as on the Neural Engine; sums inside an operation are in single precision.
    F16,
}

/// The functions of a package, ready to run.
#[derive(Debug)]
pub struct Interpreter {
    functions: BTreeMap<String, Plan>,
    precision: Precision,
    pool: Arc<Pool>,
}

/// The states of a function and what they hold, for one user of it.
#[derive(Clone, Debug, Default)]
pub struct States {
    held: BTreeMap<String, Tensor>,
}

impl States {
    /// What a state holds. None if there is no such state, or a run that failed has left it behind.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.held.get(name)
    }

    /// Makes a state hold something else, rounded to half precision as all states are.
    pub fn set(&mut self, name: &str, mut tensor: Tensor) {
        tensor.round_to_f16();
        self.held.insert(name.to_owned(), tensor);
    }
}

/// A function whose names are resolved.
#[derive(Debug)]
struct Plan {
    /// Name, type and place of each tensor input.
    inputs: Vec<(String, TensorType, usize)>,
    /// Name and type of each state.
    states: Vec<(String, TensorType)>,
    steps: Vec<Step>,
    /// Name and place of each result.
    outputs: Vec<(String, Source)>,
    /// Number of places.
    slots: usize,
}

/// An operation whose names are resolved.
#[derive(Debug)]
struct Step {
    kind: String,
    name: String,
    inputs: Vec<(String, Vec<Source>)>,
    /// The state that it reads or writes.
    state: Option<String>,
    /// Whether a state's tensor can be taken out, since it is written before it is read again.
    moves_state: bool,
    types: Vec<TensorType>,
    results: Vec<usize>,
    /// Places that nobody reads any more once the operands are at hand.
    dropped: Vec<usize>,
    /// Whether results are rounded: never, if it only moves what is rounded already.
    rounding: Rounding,
}

/// When the results of an operation are rounded to half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    Never,
    InHalf,
    Always,
}

#[derive(Clone, Debug)]
enum Source {
    Slot(usize),
    Constant(Arc<Constant>),
}

impl Interpreter {
    /// Prepares all functions of a package. Weights are read, and quantized ones expanded, once for all
    /// of them.
    ///
    /// # Errors
    /// If a weight cannot be read or an operation is not known.
    pub fn new(package: &Package, precision: Precision, pool: Arc<Pool>) -> Result<Interpreter> {
        let mut constants = Constants::new(package);
        let functions = package.model.program.functions.iter();
        let plan = |(name, function): (&String, &Function)| {
            Ok((name.clone(), Plan::new(function, &mut constants)?))
        };
        let functions = functions.map(plan).collect::<Result<_>>()?;
        Ok(Interpreter { functions, precision, pool })
    }

    /// The states of a function, filled with zeros.
    ///
    /// # Errors
    /// If there is no such function.
    pub fn states(&self, function: &str) -> Result<States> {
        let plan = self.plan(function)?;
        let zeros = |(name, ty): &(String, TensorType)| Some((name.clone(), Tensor::zeros(ty)?));
        Ok(States { held: plan.states.iter().filter_map(zeros).collect() })
    }

    /// Runs a function. Inputs that are floating-point numbers are rounded to their type.
    ///
    /// # Errors
    /// If there is no such function, an input is missing, unknown or of another type, or an operation
    /// cannot be computed.
    pub fn run(
        &self,
        function: &str,
        inputs: &[(&str, Tensor)],
        states: &mut States,
    ) -> Result<BTreeMap<String, Tensor>> {
        self.run_observed(function, inputs, states, &mut |_, _, _| {})
    }

    /// As [`Interpreter::run`], and shows every result of every operation, by its kind and name, before
    /// it is rounded.
    ///
    /// # Errors
    /// As [`Interpreter::run`].
    pub fn run_observed(
        &self,
        function: &str,
        inputs: &[(&str, Tensor)],
        states: &mut States,
        observe: &mut dyn FnMut(&str, &str, &Tensor),
    ) -> Result<BTreeMap<String, Tensor>> {
        let plan = self.plan(function)?;
        let error = |op: &str, problem: String| {
            let (function, op) = (function.to_owned(), op.to_owned());
            Error::Run { function, op, problem }
        };
        if let Some((name, _)) =
            inputs.iter().find(|(name, _)| plan.inputs.iter().all(|(known, ..)| known != name))
        {
            return Err(error(name, "there is no such input".into()));
        }
        let mut slots: Vec<Option<Tensor>> = vec![None; plan.slots];
        for (name, ty, slot) in &plan.inputs {
            let given = inputs.iter().find(|(given, _)| given == name);
            let (_, tensor) = given.ok_or_else(|| error(name, "this input is missing".into()))?;
            if !tensor.is(ty) {
                let problem = format!("this input is {:?}, not {ty}", tensor.shape());
                return Err(error(name, problem));
            }
            let mut tensor = tensor.clone();
            if ty.dtype == DataType::Float16 {
                tensor.round_to_f16();
            }
            slots[*slot] = Some(tensor);
        }
        for (name, ty) in &plan.states {
            if !states.get(name).is_some_and(|tensor| tensor.is(ty)) {
                return Err(error(name, format!("this state does not hold {ty}")));
            }
        }
        for step in &plan.steps {
            let results = step.run(&mut slots, states, &self.pool);
            let results =
                results.map_err(|text| error(&format!("{} {}", step.kind, step.name), text))?;
            for ((mut tensor, ty), &slot) in results.into_iter().zip(&step.types).zip(&step.results)
            {
                observe(&step.kind, &step.name, &tensor);
                let rounds = match step.rounding {
                    Rounding::Never => false,
                    Rounding::InHalf => self.precision == Precision::F16,
                    Rounding::Always => true,
                };
                if rounds && ty.dtype == DataType::Float16 {
                    tensor.round_to_f16();
                }
                slots[slot] = Some(tensor);
            }
        }
        let mut outputs = BTreeMap::new();
        for (name, source) in &plan.outputs {
            let tensor = match source {
                Source::Slot(slot) => slots[*slot].clone().expect("results are kept"),
                Source::Constant(constant) => {
                    constant.tensor().map_err(|text| error(name, text))?
                }
            };
            outputs.insert(name.clone(), tensor);
        }
        Ok(outputs)
    }

    fn plan(&self, function: &str) -> Result<&Plan> {
        self.functions.get(function).ok_or_else(|| Error::Run {
            function: function.to_owned(),
            op: "call".into(),
            problem: format!("there is no such function, only {:?}", self.functions.keys()),
        })
    }
}

impl Step {
    fn run(
        &self,
        slots: &mut [Option<Tensor>],
        states: &mut States,
        pool: &Pool,
    ) -> std::result::Result<Vec<Tensor>, String> {
        let input = |source: &Source| match source {
            Source::Constant(constant) => Input::Constant(constant.clone()),
            Source::Slot(slot) => Input::Tensor(slots[*slot].clone().expect("it is still in use")),
        };
        let inputs = self
            .inputs
            .iter()
            .map(|(name, sources)| (name.as_str(), sources.iter().map(input).collect()))
            .collect();
        self.dropped.iter().for_each(|&slot| slots[slot] = None);
        let mut call = Call { kind: &self.kind, inputs, types: &self.types, pool };
        if let Some(state) = &self.state {
            let lost = || "an earlier run failed and left this state behind".to_owned();
            return match (self.kind.as_str(), self.moves_state) {
                ("write_state", _) => {
                    states.held.insert(state.clone(), call.take("data")?);
                    Ok(Vec::new())
                }
                (_, true) => Ok(vec![states.held.remove(state).ok_or_else(lost)?]),
                (_, false) => Ok(vec![states.held.get(state).cloned().ok_or_else(lost)?]),
            };
        }
        let results = compute(&mut call)?;
        for (result, ty) in results.iter().zip(&self.types) {
            if !result.is(ty) {
                return Err(format!("it yields {:?}, not {ty}", result.shape()));
            }
        }
        Ok(results)
    }
}

/// Computes one operation.
fn compute(call: &mut Call<'_>) -> std::result::Result<Vec<Tensor>, String> {
    let result = match call.kind {
        "exp" | "sqrt" | "rsqrt" | "sigmoid" | "silu" | "tanh" | "softsign" | "relu" | "abs"
        | "cos" | "sin" | "erf" | "gelu" | "clip" | "leaky_relu" | "logical_not" => {
            elementwise::unary(call)
        }
        "add" | "sub" | "mul" | "real_div" | "maximum" | "minimum" | "pow" | "greater"
        | "greater_equal" | "less" | "less_equal" | "equal" | "not_equal" | "logical_and"
        | "logical_or" => elementwise::binary(call),
        "select" => elementwise::select(call),
        "cast" => elementwise::cast(call),
        "softmax" => reduce::softmax(call),
        "reduce_mean" | "reduce_sum" | "reduce_max" | "reduce_min" | "reduce_sum_square" => {
            reduce::reduce(call)
        }
        "reduce_argmax" => reduce::argmax(call),
        "layer_norm" => reduce::layer_norm(call),
        "l2_norm" => reduce::l2_norm(call),
        "topk" => return reduce::topk(call),
        "linear" => products::linear(call),
        "matmul" => products::matmul(call),
        "conv" => products::conv(call),
        "scaled_dot_product_attention" => products::attention(call),
        _ => return moves::run(call),
    };
    Ok(vec![result?])
}
