//! Models in several packages: they answer as the model in one does, and as the reference.

use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision};
use baton_coreml::lower::{Chunks, Lowering, MilLowering, Part};
use baton_coreml::{Blobs, Package, PackageExecutor, in_memory};
use baton_cpu::{Isa, Pool};
use baton_graph::testing::conformance::Tolerance;
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, Executor, Graph, Limits, Rows, SeqId, reference};
use baton_weights::Weights;

const LIMITS: Limits = Limits { context: 40, kv_tokens: 40, batch_tokens: 40 };

fn lowering() -> MilLowering {
    // The smallest history that is long enough is found among several.
    let prefill = [1, 8].into_iter().flat_map(|n| [0, 16, 40].map(|h| (n, h))).collect();
    MilLowering { prefill, head_piece: 400, head_rows: 2, ..MilLowering::default() }
}

fn packages(graph: &Graph, weights: &Weights, parts: &[Part]) -> Vec<Package> {
    let package = |part: &Part| {
        let mut blobs = in_memory();
        let model = lowering().lower_part(graph, weights, part, &mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        Package::new(model, Some(blobs)).unwrap()
    };
    parts.iter().map(package).collect()
}

fn executor(graph: &Graph, weights: &Weights, packages: &[Package]) -> PackageExecutor {
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let ready = |package| {
        let interpreter = Interpreter::new(package, Precision::F32, pool.clone()).unwrap();
        // Weights that are read anew for each use are the same.
        (package, interpreter.streaming())
    };
    let packages = packages.iter().map(ready).collect();
    PackageExecutor::new(graph, weights, packages, LIMITS).unwrap()
}

#[test]
fn chunks_of_layers_and_pieces_of_the_head_answer_as_the_whole_does() {
    let tiny = Tiny { layers: 5, vocab: 997, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let tokens = random_tokens(37, tiny.vocab, 6);
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    let run = |chunks| {
        let parts = lowering().parts(&graph, chunks).unwrap();
        let packages = packages(&graph, &weights, &parts);
        let mut executor = executor(&graph, &weights, &packages);
        let batch = Batch::one(SeqId(0), tokens.clone(), Rows::All);
        let logits = executor.forward(&batch).unwrap();
        (parts.len(), logits, executor.export_kv(SeqId(0), 3..30).unwrap())
    };
    let (one, whole, kept) = run(Chunks::Whole);
    let tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };
    tolerance.check("whole", &whole.values, &expected.values);
    assert_eq!(one, 1);
    // A layer has 61,440 bytes in half precision, and the head 127,616.
    for (chunks, n) in [
        (Chunks::Count(1), 2),
        (Chunks::Count(3), 4),
        (Chunks::Bytes(125_000), 5),
        (Chunks::Bytes(61_440), 8),
    ] {
        let (packages, logits, block) = run(chunks);
        assert_eq!(packages, n, "{chunks:?}");
        tolerance.check(&format!("{chunks:?}"), &logits.values, &expected.values);
        assert_eq!(block.keys.len(), kept.keys.len());
        let near = |(a, b): (&half::f16, &half::f16)| (a.to_f32() - b.to_f32()).abs() < 2e-2;
        assert!(block.keys.iter().zip(&kept.keys).all(near), "{chunks:?}: keys");
        assert!(block.values.iter().zip(&kept.values).all(near), "{chunks:?}: values");
    }
}

#[test]
fn packages_that_are_not_all_of_a_model_are_refused() {
    let graph = Tiny { layers: 4, ..Tiny::default() }.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let parts = lowering().parts(&graph, Chunks::Count(2)).unwrap();
    let packages = packages(&graph, &weights, &parts);
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let open = |which: &[usize]| {
        let ready = |&i: &usize| {
            let made = Interpreter::new(&packages[i], Precision::F32, pool.clone()).unwrap();
            (&packages[i], made)
        };
        let packages = which.iter().map(ready).collect();
        PackageExecutor::new(&graph, &weights, packages, LIMITS).map(drop)
    };
    open(&[0, 1, 2]).unwrap();
    for missing in [&[0, 2][..], &[0, 1], &[2], &[], &[0, 1, 1, 2]] {
        assert!(open(missing).is_err(), "{missing:?}");
    }
}
