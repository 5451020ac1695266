//! The GPU as a compute unit.

use std::sync::Arc;

use baton_graph::{ExecError, Executor, Graph, Limits, Roof, Unit};
use baton_weights::Weights;

use crate::executor::GpuExecutor;
use crate::plan::Plan;
use crate::roof;
use crate::{FEW, Gpu, GpuError, Options};

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

/// Operations of a batch in software: some two seconds of two cores. Between batches an answer can be
/// cancelled; within one the device cannot be stopped.
const SOFTWARE_OPS: u64 = 20_000_000_000;
/// Tokens of a tile in `shaders/matmul_tiled.wgsl`: a part of one takes as long as all of it.
const TILE: usize = 64;

/// Most tokens of a batch in software: whole tiles, or as many as do without.
fn software_batch(ops_per_token: usize) -> usize {
    let tokens = SOFTWARE_OPS / ops_per_token.max(1) as u64;
    match usize::try_from(tokens).unwrap_or(usize::MAX) {
        tokens @ TILE.. => tokens / TILE * TILE,
        tokens => tokens.clamp(1, FEW),
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
        // As it was asked for, before a renderer in software gets less.
        limits.check_range()?;
        let mut limits = limits;
        if self.gpu.is_software() && !plan.makes_vectors() {
            limits.batch_tokens = limits.batch_tokens.min(software_batch(plan.ops_per_token()));
        }
        let mut executor = GpuExecutor::new(&self.gpu, graph, plan, limits, self.pass_tokens)?;
        // A renderer in software compiles when it runs, so that nothing would be gained.
        if !self.gpu.is_software() {
            executor.warm()?;
        }
        Ok(Box::new(executor))
    }
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::{Tiny, random_weights};

    use super::*;

    #[test]
    fn in_software_a_batch_takes_a_second_or_two() {
        // As of models of 135 million, a billion and eight billion parameters.
        let sizes = [270_000_000, 2_000_000_000, 15_000_000_000, usize::MAX];
        assert_eq!(sizes.map(software_batch), [64, FEW, 1, 1]);
        assert_eq!(software_batch(20_000_000), 15 * TILE);
        let graph = Tiny { layers: 2, hidden: 1024, ffn: 4096, ..Tiny::default() }.graph().unwrap();
        let weights = random_weights(&graph, 1);
        let plan = Plan::new(&graph, &weights, &[]).unwrap();
        // Query and output of 64 by 1024, key and value of 32, and the three of the network; of the last
        // layer, those behind attention have rows of logits only.
        let ops = 2 * 1024 * (2 * 64 + 2 * 32 + 3 * 4096 + 64 + 2 * 32);
        assert_eq!((plan.ops_per_token(), plan.makes_vectors()), (ops, false));
        let gpu = crate::testing::gpu(false);
        let limits = Limits { context: 1024, kv_tokens: 1024, batch_tokens: 1024 };
        let executor = GpuUnit::new(gpu.clone()).compile(&graph, &weights, limits).unwrap();
        let most = if gpu.is_software() { 768 } else { 1024 };
        assert_eq!(executor.limits().batch_tokens, most);
    }
}
