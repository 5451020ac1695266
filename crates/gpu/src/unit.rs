//! The GPU as a compute unit.

use std::sync::Arc;

use baton_graph::{ExecError, Executor, Graph, Limits, Roof, Unit};
use baton_weights::Weights;

use crate::executor::GpuExecutor;
use crate::plan::Plan;
use crate::roof;
use crate::{Gpu, GpuError, Options};

/// A GPU that runs graphs.
///
/// Keys and values are kept in half precision. `BATON_TIMING=1` in the environment makes each
/// executor print a table of times when it is dropped, where the adapter can measure them.
#[derive(Clone, Debug)]
pub struct GpuUnit {
    gpu: Arc<Gpu>,
    disabled_passes: Vec<String>,
    pass_tokens: usize,
}

impl GpuUnit {
    /// Opens a GPU.
    ///
    /// # Errors
    /// If there is none that fits.
    pub fn open(options: &Options) -> Result<GpuUnit, GpuError> {
        Gpu::open(options).map(GpuUnit::new)
    }

    /// A GPU that is open.
    pub fn new(gpu: Arc<Gpu>) -> GpuUnit {
        GpuUnit { gpu, disabled_passes: Vec::new(), pass_tokens: usize::MAX }
    }

    /// Leaves out the [graph passes](baton_graph::passes::ALL) of these names.
    pub fn without_passes(mut self, names: &[&str]) -> GpuUnit {
        self.disabled_passes = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Computes at most so many tokens in one pass; longer batches take several. Memory for
    /// intermediate values is only as much as that needs.
    pub fn with_pass_tokens(mut self, tokens: usize) -> GpuUnit {
        self.pass_tokens = tokens.max(1);
        self
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Unit for GpuUnit {
    fn name(&self) -> &'static str {
        "gpu"
    }

    /// None of a renderer in software: that is the CPU, whose own limits are known better.
    fn roof(&self) -> Option<Roof> {
        if self.gpu.is_software() {
            return None;
        }
        let measured = roof::measure(&self.gpu);
        measured.inspect_err(|error| tracing::warn!("GPU: its limits are not known: {error}")).ok()
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let disabled: Vec<&str> = self.disabled_passes.iter().map(String::as_str).collect();
        let plan = Plan::new(graph, weights, &disabled)?;
        let mut executor = GpuExecutor::new(&self.gpu, graph, plan, limits, self.pass_tokens)?;
        // A renderer in software compiles when it runs, so that nothing would be gained.
        if !self.gpu.is_software() {
            executor.warm()?;
        }
        Ok(Box::new(executor))
    }
}
