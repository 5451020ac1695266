//! The compute units by name: the one place that knows which there are.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use baton_coreml::{CoreMl, FolderUnit, held_by_packages, states_and_history};
use baton_cpu::{Cpu, CpuOptions, Isa, Pool, physical_cores};
use baton_gpu::{Found, Gpu, GpuError, GpuUnit, Options};
use baton_graph::reference::Reference;
use baton_graph::{ExecError, Executor, Graph, KvType, Limits, Op, Unit};
use baton_weights::Weights;

use crate::core_ml::{device, has_core_ml, platform};
use crate::lanes::{Lane, Lanes, WatchedUnit};
use crate::{Error, LoadOptions, RelayUnit, Result};

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnitKind {
    /// The CPU, with kernels for its instruction set.
    #[default]
    Cpu,
    /// The GPU, through Vulkan or Metal.
    Gpu,
    /// The packages for the Neural Engine: run by Core ML on a Mac, interpreted on the CPU elsewhere.
    CoreMl,
    /// The interpreter that defines what is right: very slow, for finding faults.
    Reference,
}

impl UnitKind {
    /// Every kind.
    pub const ALL: [UnitKind; 4] =
        [UnitKind::Cpu, UnitKind::Gpu, UnitKind::CoreMl, UnitKind::Reference];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            UnitKind::Cpu => "cpu",
            UnitKind::Gpu => "gpu",
            UnitKind::CoreMl => "coreml",
            UnitKind::Reference => "reference",
        }
    }

    /// The units of this machine that are meant for work.
    pub fn available() -> Vec<UnitKind> {
        static GPU: OnceLock<bool> = OnceLock::new();
        // A GPU in software is the CPU, only slower: it is used if it is asked for. So is the interpreter
        // that stands in the place of Core ML where there is none.
        available(*GPU.get_or_init(Gpu::is_in_hardware), has_core_ml().is_ok())
    }

    /// The device that it would run on, with all that its speed depends on besides the machine; empty
    /// if that is nothing.
    pub(crate) fn device(self) -> String {
        match self {
            UnitKind::Gpu => found_gpu().map_or_else(String::new, |gpu| gpu.name.clone()),
            UnitKind::CoreMl => platform().as_ref().map_or_else(|_| String::new(), |p| p.system()),
            UnitKind::Cpu | UnitKind::Reference => String::new(),
        }
    }

    /// What it will hold of a model whose weights are mapped from files.
    ///
    /// # Errors
    /// If the packages that it would run are not what their folder says.
    pub(crate) fn holding(
        self,
        graph: &Graph,
        weights: &Weights,
        limits: &Limits,
        options: &LoadOptions,
    ) -> Result<Holding> {
        let kv_type = options.kv_type;
        let halves = graph.kv_bytes_per_token(KvType::F16);
        let (copied, kv_per_token) = match self {
            // Quantized weights in an order of its own.
            UnitKind::Cpu => (weights.quantized_bytes(), graph.kv_bytes_per_token(kv_type)),
            UnitKind::Gpu => (weights.stored_bytes(), halves),
            UnitKind::CoreMl => (computed_with(graph).saturating_mul(2), halves),
            // A cache of singles.
            UnitKind::Reference => (0, 2 * halves),
        };
        let apart = self == UnitKind::Gpu && found_gpu().is_some_and(|gpu| gpu.own_memory);
        let states = match self {
            UnitKind::CoreMl => {
                let on_device = platform().is_ok() && options.compiled.is_some();
                match &options.packages {
                    Some(folder) => held_by_packages(folder, graph, limits, on_device)
                        .map_err(ExecError::from)?,
                    // What is lowered for the interpreter has no function with states.
                    None => states_and_history(graph, limits, on_device, on_device),
                }
            }
            _ => 0,
        };
        Ok(Holding { copied, kv_per_token, states, apart })
    }

    /// The unit, made ready as `options` say.
    pub(crate) fn unit(self, options: &LoadOptions) -> Result<Box<dyn Unit>> {
        match self {
            UnitKind::Cpu => {
                let LoadOptions { threads, kv_type, .. } = *options;
                let (disabled_passes, packed) =
                    (options.disabled_passes.clone(), options.packed.clone());
                let options =
                    CpuOptions { threads, kv_type, disabled_passes, packed, ..Default::default() };
                Ok(Box::new(Cpu::new(options)?))
            }
            UnitKind::Gpu | UnitKind::CoreMl if options.kv_type != KvType::F16 => {
                let problem = format!(
                    "it keeps the cache in f16 only, not in {}; leave --kv-type out",
                    options.kv_type
                );
                Err(Error::NoUnit { name: self.to_string(), problem })
            }
            UnitKind::Gpu => {
                let disabled: Vec<&str> =
                    options.disabled_passes.iter().map(String::as_str).collect();
                match opened_gpu() {
                    Ok(gpu) => Ok(Box::new(GpuUnit::new(gpu).without_passes(&disabled))),
                    Err(error) => {
                        Err(Error::NoUnit { name: self.to_string(), problem: error.to_string() })
                    }
                }
            }
            UnitKind::CoreMl => {
                let threads = options.threads.unwrap_or_else(physical_cores);
                let pool = Pool::new(threads, Isa::from_env()?).map_err(|error| Error::NoUnit {
                    name: self.to_string(),
                    problem: error.to_string(),
                })?;
                let pool = Arc::new(pool);
                let device = device(platform(), options.compiled.clone())?;
                Ok(match (&options.packages, device) {
                    (Some(folder), Some(device)) => {
                        Box::new(FolderUnit::new(folder, pool).on(device))
                    }
                    (Some(folder), None) => Box::new(FolderUnit::new(folder, pool)),
                    (None, Some(device)) => Box::new(CoreMl::new(pool).on(device)),
                    (None, None) => Box::new(CoreMl::new(pool)),
                })
            }
            // It runs the graph as the architecture built it: passes are what it is to judge.
            UnitKind::Reference => Ok(Box::new(Reference)),
        }
    }
}

/// What a unit holds of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Bytes of weights in an order, a precision or a place of its own.
    pub(crate) copied: usize,
    /// Bytes of cache for each token.
    pub(crate) kv_per_token: usize,
    /// Bytes of what it keeps of the cache in another form.
    pub(crate) states: u64,
    /// Whether all that is in memory that is not the machine's.
    pub(crate) apart: bool,
}

/// Elements of all weights of a graph but tables of which rows are picked only.
fn computed_with(graph: &Graph) -> usize {
    let operands = graph.nodes().iter().filter(|node| !matches!(node.op, Op::Embedding { .. }));
    let ids: HashSet<_> = operands.flat_map(|node| node.op.weights()).collect();
    let elements = |shape: &[usize]| shape.iter().fold(1usize, |n, &dim| n.saturating_mul(dim));
    let each = ids.into_iter().map(|id| elements(&graph.weights()[id.index()].shape));
    each.fold(0, usize::saturating_add)
}

/// The GPU that would be opened, which is looked for once.
fn found_gpu() -> Option<&'static Found> {
    static FOUND: OnceLock<Option<Found>> = OnceLock::new();
    FOUND.get_or_init(|| Gpu::find(&Options::from_env())).as_ref()
}

pub use baton_gpu::quiet_drivers;

/// The names of the GPUs of this machine, software renderers included.
pub fn gpus() -> Vec<String> {
    Gpu::adapters()
}

impl fmt::Display for UnitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for UnitKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        named(name, has_core_ml())
    }
}

/// The units that are meant for work, if there is a GPU and if there is Core ML.
fn available(gpu: bool, core_ml: bool) -> Vec<UnitKind> {
    let units = [(UnitKind::Cpu, true), (UnitKind::Gpu, gpu), (UnitKind::CoreMl, core_ml)];
    units.into_iter().filter(|(_, there)| *there).map(|(unit, _)| unit).collect()
}

/// The unit of a name. The Neural Engine is reached by Core ML alone, which may be there or not.
fn named(name: &str, core_ml: std::result::Result<(), &str>) -> Result<UnitKind> {
    let known = UnitKind::ALL.into_iter().find(|kind| kind.name() == name);
    let problem = match (known, name, core_ml) {
        (Some(kind), ..) => return Ok(kind),
        (None, "ane", Ok(())) => return Ok(UnitKind::CoreMl),
        (None, "ane", Err(reason)) => {
            format!("{reason}; the unit coreml runs the same packages on the CPU")
        }
        (None, ..) => "there is no such unit".into(),
    };
    Err(Error::NoUnit { name: name.to_owned(), problem })
}

/// The GPU, which all models share. One that was lost or refused is looked for again.
fn opened_gpu() -> std::result::Result<Arc<Gpu>, GpuError> {
    static OPEN: Mutex<Weak<Gpu>> = Mutex::new(Weak::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = open.upgrade().filter(|gpu| gpu.check().is_ok()) {
        return Ok(gpu);
    }
    let gpu = Gpu::open(&Options::from_env())?;
    *open = Arc::downgrade(&gpu);
    Ok(gpu)
}

/// Compiles a graph for the units that `options` name.
pub(crate) fn compile(
    graph: &Graph,
    weights: &Weights,
    limits: Limits,
    options: &LoadOptions,
) -> Result<(Box<dyn Executor>, Lanes)> {
    let watched = |unit: Box<dyn Unit>, lane: &Arc<Lane>| WatchedUnit {
        unit,
        lane: Arc::clone(lane),
        timeline: options.timeline.clone(),
    };
    let decode = options.unit.unit(options)?;
    let prefill: Option<Box<dyn Unit>> = match (&options.remote, options.second_unit()) {
        (Some(remote), _) => Some(Box::new(remote.clone())),
        (None, Some(prefill)) => Some(prefill.unit(options)?),
        (None, None) => None,
    };
    let Some(prefill) = prefill else {
        let lanes = Lanes::one(decode.name());
        let executor = watched(decode, &lanes.decode).compile(graph, weights, limits)?;
        return Ok((executor, lanes));
    };
    let lanes = Lanes::two(prefill.name(), decode.name());
    let relay = RelayUnit {
        prefill: Box::new(watched(prefill, &lanes.prefill)),
        decode: Box::new(watched(decode, &lanes.decode)),
        options: options.relay,
    };
    Ok((relay.compile(graph, weights, limits)?, lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_names_and_those_that_are_missing_a_way_out() {
        for kind in UnitKind::ALL {
            assert_eq!(kind.to_string().parse::<UnitKind>().unwrap(), kind);
        }
        for name in ["ane", "tpu", ""] {
            let error = named(name, Err("no Core ML")).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains("cpu"), "{error}");
        }
    }

    #[test]
    fn the_neural_engine_is_core_ml_where_that_is() {
        use UnitKind::{CoreMl, Cpu, Gpu};
        assert_eq!(named("ane", Ok(())).unwrap(), CoreMl);
        assert_eq!(named("coreml", Ok(())).unwrap(), CoreMl);
        assert_eq!(named("coreml", Err("no Core ML")).unwrap(), CoreMl);
        let error = named("ane", Err("no Core ML")).unwrap_err().to_string();
        assert!(error.contains("no Core ML; the unit coreml runs"), "{error}");
        // Where there is Core ML, auto looks at it as at every other unit.
        assert_eq!(available(false, false), [Cpu]);
        assert_eq!(available(true, false), [Cpu, Gpu]);
        assert_eq!(available(true, true), [Cpu, Gpu, CoreMl]);
    }
}
