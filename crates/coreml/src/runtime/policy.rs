//! Which units Core ML may use for a function.
//!
//! Core ML takes them as what is allowed, and decides for itself; if all are, it may choose the GPU for
//! weights in tables, which is reported to be ten times slower than the Neural Engine.

use std::fmt;
use std::str::FromStr;

use crate::layout::names::anemll::PREFILL;
use crate::lower::{DECODE, HEAD};
use crate::mil::Function;
use crate::report::FunctionReport;

/// The variable that says which units functions may use: see [`Overrides`].
pub const OVERRIDES: &str = "BATON_COREML_UNITS";
/// A function with a smaller share of its operations on the Neural Engine is not worth it.
const WORTH: f64 = 0.5;

/// Units that Core ML may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeUnits {
    /// The CPU alone.
    Cpu,
    /// The CPU and the GPU.
    CpuAndGpu,
    /// The CPU and the Neural Engine.
    CpuAndNeuralEngine,
    /// All that there are.
    All,
}

impl ComputeUnits {
    const NAMES: [(&'static str, ComputeUnits); 4] = [
        ("cpu", ComputeUnits::Cpu),
        ("gpu", ComputeUnits::CpuAndGpu),
        ("ane", ComputeUnits::CpuAndNeuralEngine),
        ("all", ComputeUnits::All),
    ];

    /// What else can be tried if a function cannot be loaded for these.
    pub fn instead(self) -> Option<ComputeUnits> {
        match self {
            ComputeUnits::All | ComputeUnits::CpuAndNeuralEngine => Some(ComputeUnits::CpuAndGpu),
            ComputeUnits::CpuAndGpu => Some(ComputeUnits::Cpu),
            ComputeUnits::Cpu => None,
        }
    }
}

impl fmt::Display for ComputeUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ComputeUnits::Cpu => "the CPU",
            ComputeUnits::CpuAndGpu => "CPU and GPU",
            ComputeUnits::CpuAndNeuralEngine => "CPU and Neural Engine",
            ComputeUnits::All => "all units",
        })
    }
}

/// Units for functions by name, in the place of what would be chosen: `decode=gpu,head=cpu`, or one of
/// `cpu`, `gpu`, `ane` and `all` for every function. A name stands for all functions that begin with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Vec<(String, ComputeUnits)>);

impl Overrides {
    /// What the environment says.
    ///
    /// # Errors
    /// If it makes no sense, with the reason.
    pub fn from_env() -> Result<Overrides, String> {
        let text = std::env::var(OVERRIDES).unwrap_or_default();
        text.parse().map_err(|problem| format!("{OVERRIDES}={text:?}: {problem}"))
    }

    /// What they say of a function.
    pub(super) fn of(&self, name: &str) -> Option<ComputeUnits> {
        let said = self.0.iter().filter(|(known, _)| name.starts_with(known.as_str()));
        said.max_by_key(|(known, _)| known.len()).map(|(_, units)| *units)
    }
}

impl FromStr for Overrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = |name: &str| {
            let found = ComputeUnits::NAMES.iter().find(|(known, _)| *known == name.trim());
            let wrong = || format!("{:?} are no units; say cpu, gpu, ane or all", name.trim());
            found.map(|(_, units)| *units).ok_or_else(wrong)
        };
        let each = |part: &str| match part.split_once('=') {
            Some((function, name)) => Ok((function.trim().to_owned(), units(name)?)),
            None => Ok((String::new(), units(part)?)),
        };
        let parts = text.split(',').filter(|part| !part.trim().is_empty());
        parts.map(each).collect::<Result<_, _>>().map(Overrides)
    }
}

/// The units for a function: what `overrides` say, else
///
/// - the Neural Engine for whatever reads prompts, and for heads, if `report` has at least half of the
///   operations there, and the GPU if not;
/// - the GPU for single tokens, which are bound by memory, but the Neural Engine if weights are in tables.
pub fn units(
    name: &str,
    function: &Function,
    report: &FunctionReport,
    overrides: &Overrides,
) -> ComputeUnits {
    if let Some(units) = overrides.of(name) {
        return units;
    }
    let tables = || function.body.ops.iter().any(|op| op.kind == "constexpr_lut_to_dense");
    let has_states = || function.states().next().is_some();
    let single = ![HEAD, PREFILL].contains(&name) && (name == DECODE || has_states());
    match report.share().0 >= WORTH && (!single || tables()) {
        true => ComputeUnits::CpuAndNeuralEngine,
        false => ComputeUnits::CpuAndGpu,
    }
}

/// Loads something for units, or for those that are tried instead if that fails. The first error is
/// returned if nothing helps.
///
/// # Errors
/// If it cannot be loaded for any.
pub fn with_fallback<T, E: fmt::Display>(
    function: &str,
    units: ComputeUnits,
    mut load: impl FnMut(ComputeUnits) -> Result<T, E>,
) -> Result<T, E> {
    let first = match load(units) {
        Ok(loaded) => return Ok(loaded),
        Err(error) => error,
    };
    let mut next = units.instead();
    while let Some(units) = next {
        if let Ok(loaded) = load(units) {
            tracing::warn!("function {function} runs on {units} instead: {first}");
            return Ok(loaded);
        }
        next = units.instead();
    }
    Err(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mil::{Arg, DataType, Elements, FunctionBuilder, TensorType, Value};
    use crate::report::Report;
    use crate::{Model, Package};

    /// A product with a matrix, which can be in a table.
    fn function(tables: bool, state: bool) -> Function {
        let mut b = FunctionBuilder::new();
        let f16 = |shape: &[usize]| TensorType::new(DataType::Float16, shape);
        let x = b.input("x", f16(&[32, 32]));
        let weight = if tables {
            let indices = Value::tensor(DataType::UInt1, &[32, 32], Elements::Bytes(vec![0; 128]));
            let table =
                Value::tensor(DataType::Float16, &[1, 1, 2, 1], Elements::Bytes(vec![0; 4]));
            let args = [("indices", Arg::from(indices)), ("lut", table.into())];
            b.op("constexpr_lut_to_dense", "w", &args).unwrap()
        } else {
            b.input("w", f16(&[32, 32]))
        };
        let flags = [("transpose_x", false.into()), ("transpose_y", false.into())];
        let product = [("x", Arg::from(&x)), ("y", (&weight).into())];
        let mut y = b.op("matmul", "y", &[&product[..], &flags[..]].concat()).unwrap();
        if state {
            let state = b.state("kept", f16(&[32, 32]));
            b.ops("write_state", "w_kept", &[("input", (&state).into()), ("data", (&y).into())])
                .unwrap();
            y = b.op("read_state", "held", &[("input", (&state).into())]).unwrap();
        }
        b.finish(&[y])
    }

    fn chosen(name: &str, function: &Function, overrides: &str) -> ComputeUnits {
        let functions = [("main".to_owned(), function.clone())].into();
        let program = crate::mil::Program { functions, ..Default::default() };
        let package = Package::new(Model::new(program, None).unwrap(), None).unwrap();
        let report = Report::of(&package).functions.remove(0);
        units(name, function, &report, &overrides.parse().unwrap())
    }

    #[test]
    fn prompts_go_to_the_neural_engine_and_single_tokens_where_their_weights_suit() {
        use ComputeUnits::{CpuAndGpu, CpuAndNeuralEngine};
        for (name, tables, state, expected) in [
            ("prefill_64_h0", false, false, CpuAndNeuralEngine),
            ("prefill_64_h512", true, false, CpuAndNeuralEngine),
            ("head", false, false, CpuAndNeuralEngine),
            ("decode", false, true, CpuAndGpu),
            ("decode", true, true, CpuAndNeuralEngine),
            // What others call theirs.
            ("infer", false, true, CpuAndGpu),
        ] {
            assert_eq!(chosen(name, &function(tables, state), ""), expected, "{name}");
        }
    }

    #[test]
    fn what_the_neural_engine_does_not_compute_goes_to_the_gpu() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float32, &[32, 32]));
        let flags = [("transpose_x", false.into()), ("transpose_y", false.into())];
        let product = [("x", Arg::from(&x)), ("y", (&x).into())];
        let y = b.op("matmul", "y", &[&product[..], &flags[..]].concat()).unwrap();
        let single_precision = b.finish(&[y]);
        assert_eq!(chosen("prefill_64_h0", &single_precision, ""), ComputeUnits::CpuAndGpu);
    }

    #[test]
    fn what_is_said_of_a_function_counts_most() {
        let function = function(false, true);
        for (said, expected) in [
            ("cpu", ComputeUnits::Cpu),
            ("decode = ane", ComputeUnits::CpuAndNeuralEngine),
            ("all, dec=gpu,decode=cpu", ComputeUnits::Cpu),
            ("head=all", ComputeUnits::CpuAndGpu),
        ] {
            assert_eq!(chosen("decode", &function, said), expected, "{said}");
        }
        for wrong in ["tpu", "decode=", "decode=ane=gpu"] {
            let problem = wrong.parse::<Overrides>().unwrap_err();
            assert!(problem.contains("cpu, gpu, ane or all"), "{problem}");
        }
    }

    #[test]
    fn what_cannot_be_loaded_is_loaded_for_other_units() {
        use ComputeUnits::{All, Cpu, CpuAndGpu, CpuAndNeuralEngine};
        let attempt = |units, works: &[ComputeUnits]| {
            let mut tried = Vec::new();
            let loaded = with_fallback("f", units, |units| {
                tried.push(units);
                works.contains(&units).then_some(units).ok_or(format!("not on {units}"))
            });
            (loaded, tried)
        };
        assert_eq!(attempt(CpuAndNeuralEngine, &[All, CpuAndNeuralEngine]).1, [CpuAndNeuralEngine]);
        assert_eq!(attempt(CpuAndNeuralEngine, &[Cpu, CpuAndGpu]).0, Ok(CpuAndGpu));
        assert_eq!(attempt(All, &[Cpu]), (Ok(Cpu), vec![All, CpuAndGpu, Cpu]));
        let (failed, tried) = attempt(CpuAndNeuralEngine, &[]);
        assert_eq!(failed, Err("not on CPU and Neural Engine".into()));
        assert_eq!(tried, [CpuAndNeuralEngine, CpuAndGpu, Cpu]);
    }
}
