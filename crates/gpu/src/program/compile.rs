//! Kernels compiled before they are needed.

use std::num::NonZero;
use std::thread;

use super::{Program, Run};
use crate::GpuError;
use crate::step::Sizes;

/// Threads that compile at most.
const MOST_THREADS: usize = 8;

impl Program {
    /// Compiles what passes of these sizes run, in several threads: the driver takes most of a second
    /// for some kernels.
    ///
    /// # Errors
    /// If the driver refuses a kernel.
    pub(crate) fn compile(&mut self, all: &[Sizes]) -> Result<(), GpuError> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
        let gpu = &self.gpu;
        // Neighbours differ, so that each thread begins with another kernel.
        let mut lots: Vec<Vec<&mut Run>> = (0..threads).map(|_| Vec::new()).collect();
        for (at, run) in self.steps.iter_mut().flat_map(|(runs, _)| runs).enumerate() {
            lots[at % threads].push(run);
        }
        let compile = |lot: Vec<&mut Run>| {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for run in lot {
                all.iter().try_for_each(|sizes| run.encode(&mut pass, sizes))?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let each: Vec<_> =
                lots.into_iter().map(|lot| scope.spawn(move || compile(lot))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<(), GpuError>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            each.into_iter().try_for_each(join)
        })
    }
}
