//! What the first request would wait for, done when a model is loaded.

use std::time::Instant;

use baton_graph::{Batch, ExecError, Executor, Rows, SeqId};

use super::GpuExecutor;
use crate::best;
use crate::step::{MOST_PARTS, Sizes, Tables, passes};

/// No caller names a sequence so: it is free again before there is one.
const SEQ: SeqId = SeqId(u32::MAX);
/// Tokens of a short prompt.
const SHORT: usize = 64;

impl GpuExecutor {
    /// Compiles the kernels that passes of a sequence's first tokens run, however many they are, and of later
    /// ones; computes one token and a short prompt, by which the driver fills all memory for the first time, and forgets
    /// them.
    ///
    /// # Errors
    /// If the driver refuses a kernel or memory is short.
    pub(crate) fn warm(&mut self) -> Result<(), ExecError> {
        let started = Instant::now();
        let most = self.limits.batch_tokens.min(self.limits.context).min(self.limits.kv_tokens);
        let short = SHORT.min(most);
        let batch = |tokens| Batch::one(SEQ, vec![0; tokens], Rows::Best(1));
        let mut sizes = Vec::new();
        // Products take other tiles with twice as many tokens, or not.
        let doubled = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|&n| n < most);
        for tokens in doubled.chain([most]) {
            sizes.push(self.first_sizes(&batch(tokens))?);
        }
        // What comes behind a long past has other kernels of attention.
        sizes.push(Sizes { parts: MOST_PARTS as u32, ..sizes[0] });
        self.program.compile(&sizes)?;
        tracing::debug!(time = ?started.elapsed(), "kernels are compiled");
        if self.program.is_timed() {
            // A table of times is of what was asked for.
            return Ok(());
        }
        for tokens in [short, 1] {
            self.forward(&batch(tokens))?;
            self.free(SEQ);
        }
        Ok(())
    }

    /// What the first pass of a batch has, which begins a sequence.
    fn first_sizes(&mut self, batch: &Batch) -> Result<Sizes, ExecError> {
        let best = best::wanted(batch).filter(|_| self.finder.is_some());
        self.pager.append_batch(batch)?;
        let mut tables = Tables::default();
        let passes = passes(batch, &self.pager, &self.room, !self.plan.whole_texts);
        tables.set(batch, &passes[0], &self.pager, &self.room, best);
        self.free(SEQ);
        Ok(tables.sizes)
    }
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::{Tiny, random_weights};
    use baton_graph::{Limits, Logits};

    use super::*;
    use crate::plan::Plan;
    use crate::{Gpu, Options};

    #[test]
    fn a_warm_executor_holds_nothing_and_compiles_nothing_more() {
        // One of its own: other tests compile kernels at the same time.
        let gpu = Gpu::open(&Options::from_env()).unwrap_or_else(|error| panic!("{error}"));
        let graph = Tiny::default().graph().unwrap();
        let weights = random_weights(&graph, 1);
        let limits = Limits { context: 200, kv_tokens: 200, batch_tokens: 150 };
        let new = || {
            let plan = Plan::new(&graph, &weights, &[]).unwrap();
            GpuExecutor::new(&gpu, &graph, plan, limits, usize::MAX).unwrap()
        };
        let run = |executor: &mut GpuExecutor| -> Vec<Logits> {
            let batches = [150, 1, 20, 1].map(|n| Batch::one(SeqId(0), vec![3; n], Rows::Last));
            batches.iter().map(|batch| executor.forward(batch).unwrap()).collect()
        };
        let (mut cold, mut warm) = (new(), new());
        let before = warm.usage();
        warm.warm().unwrap();
        assert_eq!((warm.usage(), warm.len(SEQ)), (before, 0));
        let compiled = crate::device::lock(&gpu.kernels).len();
        let found = run(&mut warm);
        assert_eq!(crate::device::lock(&gpu.kernels).len(), compiled);
        assert_eq!(found, run(&mut cold));
    }
}
