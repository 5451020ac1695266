//! The compute units by name: the one place that knows which there are.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use baton_cpu::{Cpu, CpuOptions};
use baton_graph::reference::Reference;
use baton_graph::{Executor, Graph, Limits, Unit};
use baton_weights::Weights;

use crate::lanes::{Lane, Lanes, WatchedUnit};
use crate::{Error, LoadOptions, RelayUnit, Result};

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnitKind {
    /// The CPU, with kernels for its instruction set.
    #[default]
    Cpu,
    /// The interpreter that defines what is right: very slow, for finding faults.
    Reference,
}

impl UnitKind {
    /// Every kind.
    pub const ALL: [UnitKind; 2] = [UnitKind::Cpu, UnitKind::Reference];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            UnitKind::Cpu => "cpu",
            UnitKind::Reference => "reference",
        }
    }

    /// The units of this machine that are meant for work.
    pub fn available() -> Vec<UnitKind> {
        vec![UnitKind::Cpu]
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
            // It runs the graph as the architecture built it: passes are what it is to judge.
            UnitKind::Reference => Ok(Box::new(Reference)),
        }
    }

    /// Whether it keeps quantized weights in an order of its own, in memory of its own.
    pub(crate) fn copies_weights(self) -> bool {
        self == UnitKind::Cpu
    }
}

impl fmt::Display for UnitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for UnitKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Some(kind) = UnitKind::ALL.into_iter().find(|kind| kind.name() == name) {
            return Ok(kind);
        }
        let problem = match name {
            "gpu" => "this version of Baton has no unit for graphics processors",
            "ane" => {
                "the Neural Engine is reached through Core ML, for which this version has no unit"
            }
            _ => "there is no such unit",
        };
        Err(Error::NoUnit { name: name.to_owned(), problem })
    }
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
        for name in ["gpu", "ane", "tpu", ""] {
            let error = name.parse::<UnitKind>().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains("cpu"), "{error}");
        }
    }
}
