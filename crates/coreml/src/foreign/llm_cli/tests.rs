//! Calls that fail in the middle of what changes the caches of a sequence.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_cpu::{Isa, Pool};
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, Executor, Graph, Limits, Rows, SeqId, reference};
use baton_weights::Weights;

use super::*;
use crate::executor::PackageExecutor;
use crate::foreign::signature::Signature;
use crate::interpret::{Interpreter, Precision};
use crate::layout::{Content, Layout, LlmCli, Prefix, Task};
use crate::lower::{Chunks, MilLowering};
use crate::runtime::{Interpreted, Job, Rows as RowsOf, RowsMut, StateId};
use crate::{Blobs, Package, in_memory};

const WINDOW: usize = 8;
const CONTEXT: usize = 40;

/// Lets a number of calls be, and fails the one behind them.
#[derive(Debug)]
struct Failing {
    runtime: Interpreted,
    /// The package whose calls are counted.
    package: usize,
    left: Arc<AtomicUsize>,
}

impl Runtime for Failing {
    fn array(&mut self, ty: &TensorType) -> Result<ArrayId> {
        self.runtime.array(ty)
    }

    fn release(&mut self, array: ArrayId) {
        self.runtime.release(array);
    }

    fn state(&mut self, package: usize, function: &str) -> Result<StateId> {
        self.runtime.state(package, function)
    }

    fn release_state(&mut self, state: StateId) {
        self.runtime.release_state(state);
    }

    fn set(&mut self, array: ArrayId, tensor: Tensor) -> Result<()> {
        self.runtime.set(array, tensor)
    }

    fn get(&self, array: ArrayId) -> Result<Tensor> {
        self.runtime.get(array)
    }

    fn set_rows(&mut self, place: Place<'_>, rows: &mut RowsOf<'_>) -> Result<()> {
        self.runtime.set_rows(place, rows)
    }

    fn get_rows(&self, place: Place<'_>, rows: &mut RowsMut<'_>) -> Result<()> {
        self.runtime.get_rows(place, rows)
    }

    fn start(&mut self, calls: &[Call<'_>]) -> Result<Job> {
        if calls.iter().any(|call| call.package == self.package)
            && self.left.fetch_sub(1, Ordering::Relaxed) == 0
        {
            return Err(Error::malformed("it was to fail"));
        }
        self.runtime.start(calls)
    }

    fn wait(&mut self, job: Job) -> Result<()> {
        self.runtime.wait(job)
    }
}

/// The packages of a model as they are called.
fn packages(graph: &Graph, weights: &Weights) -> Vec<Package> {
    let layout = LlmCli::new(Prefix::new("m").unwrap(), CONTEXT, WINDOW).unwrap();
    let (layout, lowering) = (Layout::LlmCli(layout), MilLowering::default());
    let task = Task { graph, weights, lowering: &lowering };
    let pieces = layout.pieces(task, Chunks::Count(2)).unwrap();
    let called = (0..pieces.len()).filter(|&at| pieces[at].content != Content::LogitProcessor);
    let package = |at| {
        let mut blobs = in_memory();
        let model = layout.lower(task, &pieces, at, &mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        Package::new(model, Some(blobs)).unwrap()
    };
    called.map(package).collect()
}

#[test]
fn caches_are_right_after_whatever_call_has_failed() {
    let graph = Tiny { layers: 3, ..Tiny::default() }.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let tokens = random_tokens(30, graph.vocab(), 5);
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    let packages = packages(&graph, &weights);
    let signatures: Vec<Signature> =
        packages.iter().map(|package| Signature::of(Path::new("x"), package).unwrap()).collect();
    let plan = Plan::of(&signatures).unwrap();
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let limits = Limits { context: CONTEXT, kv_tokens: 2 * CONTEXT, batch_tokens: CONTEXT };
    // Each call that moves on the caches of a layer, and each of the chunks: the failure of the second window's
    // calls leaves caches behind of which some have moved and some have not.
    let processor = packages.len() - 1;
    for (package, calls) in [(processor, 2 * 3), (1, 2), (2, 2), (processor - 1, 2)] {
        for fail_at in 0..calls {
            let left = Arc::new(AtomicUsize::new(usize::MAX));
            let interpreters = packages.iter().map(|package| {
                Interpreter::new(package, Precision::F32, Arc::clone(&pool)).unwrap()
            });
            let runtime = Interpreted::new(interpreters.collect());
            let failing = Failing { runtime, package, left: Arc::clone(&left) };
            let cache = plan.sizes().cache;
            let program = Windows::new(&plan, Box::new(failing), cache, &limits, 0);
            let mut executor = PackageExecutor::of(&graph, limits, Box::new(program));
            let mut forward = |from: usize, to: usize| {
                let batch = Batch::one(SeqId(1), tokens[from..to].to_vec(), Rows::All);
                executor.forward(&batch)
            };
            forward(0, 5).unwrap();
            left.store(fail_at, Ordering::Relaxed);
            // The ends of two windows lie in it.
            let what = format!("call {fail_at} of package {package}");
            assert!(forward(5, 18).is_err(), "{what}");
            left.store(usize::MAX, Ordering::Relaxed);
            for (from, to) in [(5, 18), (18, 25), (25, 30)] {
                let logits = forward(from, to).unwrap();
                for (row, at) in (from..to).enumerate() {
                    let found = logits.row(row).iter().zip(expected.row(at));
                    let apart = found.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(apart < 0.02, "{what}: token {at} is {apart} apart");
                }
            }
        }
    }
}
