//! Runs the functions of a package on the CPU.
//!
//! ```text
//! tensor, call     tensors while a function runs; an operation with its operands
//! constants        weights, read when they are wanted
//! expand           quantized weights as numbers
//! plan, room       functions with their names resolved, and the memory that they take
//! evaluate         a single operation of constants
//! elementwise, reduce, products, moves   the operations
//! scan             which results leave half precision
//! states           what a function keeps from call to call
//! ```
//!
//! It computes what Core ML would, plainly and checked against Core ML's own tools, and shows what half
//! precision does to a model: with [`Precision::F16`] every intermediate result is rounded as the
//! hardware keeps it, with [`Precision::F16Steps`] also what is computed on the way to one.

mod call;
mod constants;
mod elementwise;
mod evaluate;
mod expand;
mod moves;
mod plan;
mod products;
mod reduce;
mod room;
mod scan;
mod states;
mod tensor;

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_cpu::Pool;

use self::call::{Call, Input};
use self::constants::{Constant, Constants};
pub(crate) use self::evaluate::evaluate;
use self::room::Needs;
pub use self::scan::Extreme;
use self::scan::Scan;
pub use self::states::States;
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
    /// Half precision, as on the Neural Engine; what is inside an operation is in single precision.
    F16,
    /// Half precision also inside of operations, where coremltools' rules have it: a softmax rounds its
    /// differences, exponentials and their sum, an rsqrt its root. Sums are added up in single precision.
    F16Steps,
}

/// The functions of a package, ready to run.
#[derive(Debug)]
pub struct Interpreter {
    functions: BTreeMap<String, Plan>,
    precision: Precision,
    pool: Arc<Pool>,
    /// Whether weights are kept from one operation to the next that uses them.
    keeps: bool,
    scan: Option<Scan>,
    /// Bytes that there are for what functions compute.
    room: u64,
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
    needs: Needs,
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
    /// The place of each result; none if nobody reads it.
    results: Vec<Option<usize>>,
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
    /// Prepares all functions of a package. Weights are read, and quantized ones expanded, when they are
    /// first used, once for all functions. Operations whose results nobody reads are left out.
    ///
    /// A function that takes more memory than the system can give now is an error when it is to run.
    ///
    /// # Errors
    /// If a weight is missing, or quantized in a way that is not known.
    pub fn new(package: &Package, precision: Precision, pool: Arc<Pool>) -> Result<Interpreter> {
        let mut constants = Constants::new(package);
        let functions = package.model.program.functions.iter();
        let plan = |(name, function): (&String, &Function)| {
            Ok((name.clone(), Plan::new(function, &mut constants)?))
        };
        let functions = functions.map(plan).collect::<Result<_>>()?;
        let room = room::available();
        Ok(Interpreter { functions, precision, pool, keeps: true, scan: None, room })
    }

    /// Reads weights anew for each use instead of keeping them: no more memory is needed than for the
    /// largest of them, and for what operations compute.
    pub fn streaming(self) -> Interpreter {
        Interpreter { keeps: false, ..self }
    }

    /// Lets calls of a function take so many bytes, in the place of what the system can give.
    pub fn within(self, room: u64) -> Interpreter {
        Interpreter { room, ..self }
    }

    /// Takes note of how large results get: see [`Interpreter::extremes`].
    pub fn scanning(self) -> Interpreter {
        Interpreter { scan: Some(Scan::default()), ..self }
    }

    /// The largest result of each operation that has computed numbers in half precision so far, in the
    /// order in which they did first. Empty unless it is [scanning](Interpreter::scanning).
    pub fn extremes(&self) -> Vec<Extreme> {
        self.scan.as_ref().map(Scan::extremes).unwrap_or_default()
    }

    /// Name and type of each tensor that a function takes; none if there is no such function.
    pub fn inputs(&self, function: &str) -> impl Iterator<Item = (&str, &TensorType)> {
        let plan = self.functions.get(function);
        plan.into_iter().flat_map(|plan| &plan.inputs).map(|(name, ty, _)| (name.as_str(), ty))
    }

    /// The states of a function, filled with zeros.
    ///
    /// # Errors
    /// If there is no such function, or no memory for its states.
    pub fn states(&self, function: &str) -> Result<States> {
        let plan = self.plan(function)?;
        let bytes = plan.states.iter().map(|(_, ty)| room::bytes(ty));
        room::check(function, bytes.fold(0, u64::saturating_add), self.room)?;
        let zeros = |(name, ty): &(String, TensorType)| {
            let zeros = Tensor::zeros(ty).ok_or_else(|| Error::Run {
                function: function.to_owned(),
                op: name.clone(),
                problem: format!("there is no memory for a state of {ty}"),
            })?;
            Ok((name.clone(), zeros))
        };
        Ok(States { held: plan.states.iter().map(zeros).collect::<Result<_>>()? })
    }

    /// Runs a function. Inputs that are floating-point numbers are rounded to their type.
    ///
    /// # Errors
    /// If there is no such function, an input is missing, unknown or of another type, an operation
    /// cannot be computed, or there is not the memory for it.
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
        let calls = &mut [(inputs, states)];
        let mut results = self.execute(function, calls, observe)?;
        Ok(results.pop().expect("a result for each call"))
    }

    /// Runs a function without states once for each of some inputs, all of them operation by operation, so
    /// that each weight is read once.
    ///
    /// # Errors
    /// As [`Interpreter::run`].
    pub fn run_all(
        &self,
        function: &str,
        calls: &[Vec<(&str, Tensor)>],
    ) -> Result<Vec<BTreeMap<String, Tensor>>> {
        let mut states = vec![States::default(); calls.len()];
        let mut calls: Vec<(&[_], &mut States)> =
            calls.iter().map(Vec::as_slice).zip(&mut states).collect();
        self.execute(function, &mut calls, &mut |_, _, _| {})
    }

    fn execute(
        &self,
        function: &str,
        calls: &mut [(&[(&str, Tensor)], &mut States)],
        observe: &mut dyn FnMut(&str, &str, &Tensor),
    ) -> Result<Vec<BTreeMap<String, Tensor>>> {
        let plan = self.plan(function)?;
        let error = |op: &str, problem: String| {
            let (function, op) = (function.to_owned(), op.to_owned());
            Error::Run { function, op, problem }
        };
        room::check(function, plan.needs.total(calls.len(), self.keeps), self.room)?;
        let mut places = Vec::new();
        for (inputs, states) in calls.iter() {
            let slots = plan.begin(inputs, states).map_err(|(op, problem)| error(&op, problem))?;
            places.push(slots);
        }
        for step in &plan.steps {
            for ((_, states), slots) in calls.iter_mut().zip(&mut places) {
                let results = step.run(slots, states, self.precision, &self.pool);
                let results =
                    results.map_err(|text| error(&format!("{} {}", step.kind, step.name), text))?;
                let results = results.into_iter().zip(&step.types).zip(&step.results);
                for ((mut tensor, ty), slot) in results {
                    observe(&step.kind, &step.name, &tensor);
                    let half = ty.dtype == DataType::Float16;
                    if let Some(scan) = self.scan.as_ref().filter(|_| half) {
                        scan.see(function, &step.kind, &step.name, &tensor);
                    }
                    let rounds = match step.rounding {
                        Rounding::Never => false,
                        Rounding::InHalf => self.precision != Precision::F32,
                        Rounding::Always => true,
                    };
                    if rounds && half {
                        tensor.round_to_f16();
                    }
                    if let Some(slot) = *slot {
                        slots[slot] = Some(tensor);
                    }
                }
            }
            if !self.keeps {
                step.constants().for_each(|constant| constant.release());
            }
        }
        let output = |slots: &[Option<Tensor>], (name, source): &(String, Source)| {
            let tensor = match source {
                Source::Slot(slot) => slots[*slot].clone().expect("results are kept"),
                Source::Constant(constant) => {
                    constant.tensor().map_err(|text| error(name, text))?
                }
            };
            Ok((name.clone(), tensor))
        };
        let outputs = |slots: Vec<Option<Tensor>>| {
            plan.outputs.iter().map(|named| output(&slots, named)).collect()
        };
        places.into_iter().map(outputs).collect()
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
    /// The constants among its operands.
    fn constants(&self) -> impl Iterator<Item = &Constant> {
        let sources = self.inputs.iter().flat_map(|(_, sources)| sources);
        sources.filter_map(|source| match source {
            Source::Constant(constant) => Some(&**constant),
            Source::Slot(_) => None,
        })
    }

    fn run(
        &self,
        slots: &mut [Option<Tensor>],
        states: &mut States,
        precision: Precision,
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
        let rounds_steps = precision == Precision::F16Steps
            && self.types.first().is_some_and(|ty| ty.dtype == DataType::Float16);
        let mut call = Call { kind: &self.kind, inputs, types: &self.types, rounds_steps, pool };
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
