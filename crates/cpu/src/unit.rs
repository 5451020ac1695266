//! The CPU as a compute unit.

use std::sync::Arc;

use baton_graph::{ExecError, Executor, Graph, KvType, Limits, Roof, Unit};
use baton_weights::Weights;

use crate::cache::PackedCache;
use crate::executor::CpuExecutor;
use crate::isa::{Isa, UnsupportedIsa};
use crate::plan::{Plan, Switches};
use crate::pool::Pool;
use crate::roof;
use crate::threads::physical_cores;

/// The environment variable that, set to `0`, keeps steps apart and values out of place.
const FUSE_ENV: &str = "BATON_CPU_FUSE";

/// How to use the CPU.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the calling one included; by default one for each physical core that the process
    /// may run on.
    pub threads: Option<usize>,
    /// The instruction set; by default what [`isa::ENV`](crate::isa::ENV) names, else the best one.
    pub isa: Option<Isa>,
    /// Whether steps are joined and values are overwritten in place. By default they are, unless
    /// the environment variable `BATON_CPU_FUSE` is `0`; for finding faults.
    pub fuse: Option<bool>,
    /// What keys and values are kept as.
    pub kv_type: KvType,
    /// Names of [graph passes](baton_graph::passes::ALL) not to run.
    pub disabled_passes: Vec<String>,
    /// Where packed weights of model files are kept, so that the next load finds them; by default
    /// nowhere.
    pub packed: Option<PackedCache>,
}

/// The compute unit that every machine has.
///
/// All executors that it compiles share its threads. `BATON_TIMING=1` in the environment makes each
/// of them print a table of times when it is dropped.
#[derive(Debug)]
pub struct Cpu {
    pool: Arc<Pool>,
    fuse: bool,
    kv_type: KvType,
    disabled_passes: Vec<String>,
    packed: Option<PackedCache>,
}

impl Cpu {
    /// The CPU with its threads started.
    ///
    /// # Errors
    /// If an instruction set is asked for that the machine lacks or that does not exist.
    pub fn new(options: CpuOptions) -> Result<Cpu, UnsupportedIsa> {
        let isa = match options.isa {
            Some(isa) => isa,
            None => Isa::from_env()?,
        };
        let threads = options.threads.unwrap_or_else(physical_cores);
        let fuse = options.fuse.unwrap_or_else(|| std::env::var(FUSE_ENV).as_deref() != Ok("0"));
        let pool = Arc::new(Pool::new(threads, isa)?);
        let CpuOptions { kv_type, disabled_passes, packed, .. } = options;
        Ok(Cpu { pool, fuse, kv_type, disabled_passes, packed })
    }

    /// Its threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set that its kernels use.
    pub fn isa(&self) -> Isa {
        self.pool.isa()
    }
}

impl Unit for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn roof(&self) -> Option<Roof> {
        let read = roof::read_rate(self.threads()).ok()?;
        Some(Roof { read, ops: roof::product_rate(self.isa(), self.threads()) })
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let disabled: Vec<&str> = self.disabled_passes.iter().map(String::as_str).collect();
        let switches = Switches { fuse: self.fuse, disabled_passes: &disabled };
        let mut plan = Plan::new(graph, weights, switches)?;
        plan.pack(&self.pool, self.packed.as_ref())?;
        Ok(Box::new(CpuExecutor::new(graph, plan, Arc::clone(&self.pool), limits, self.kv_type)?))
    }
}
