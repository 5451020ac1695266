//! The layouts of other projects, driven as those projects' programs drive them, against the reference.

mod anemll;
#[path = "../fake/mod.rs"]
mod fake;
mod folders;
mod llm_cli;
mod machine;
mod order;

use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision};
use baton_coreml::layout::{Layout, Piece, Prefix, Task};
use baton_coreml::lower::{Chunks, MilLowering, Ranges};
use baton_coreml::{Blobs, Model, Package, calibrate, in_memory};
use baton_cpu::{Isa, Pool};
use baton_graph::testing::conformance::Tolerance;
use baton_graph::{Graph, reference};
use baton_models::testing::goldens;
use baton_models::{BuildOptions, Model as Checkpoint};
use baton_weights::Weights;

/// As of the other functions of packages.
const TOLERANCE: Tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };

fn prefix() -> Prefix {
    Prefix::new("model").unwrap()
}

/// A model's packages in a layout.
struct Laid {
    pieces: Vec<Piece>,
    packages: Vec<Package>,
}

impl Laid {
    fn out(
        layout: &Layout,
        graph: &Graph,
        weights: &Weights,
        lowering: &MilLowering,
        chunks: Chunks,
    ) -> Laid {
        let task = Task { graph, weights, lowering };
        let pieces = layout.pieces(task, chunks).unwrap();
        let package = |at| {
            let mut blobs = in_memory();
            let model = layout.lower(task, &pieces, at, &mut blobs).unwrap();
            // What is read again is what was written.
            let read = Model::from_bytes(&model.to_bytes()).unwrap();
            assert_eq!(read, model, "{}", pieces[at].file);
            assert_eq!(read.to_bytes(), model.to_bytes());
            let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
            Package::new(read, Some(blobs)).unwrap()
        };
        let packages = (0..pieces.len()).map(package).collect();
        Laid { pieces, packages }
    }

    fn files(&self) -> Vec<&str> {
        self.pieces.iter().map(|piece| piece.file.as_str()).collect()
    }
}

fn interpreter(package: &Package) -> Interpreter {
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    Interpreter::new(package, Precision::F32, pool).unwrap()
}

/// The ranges of a model, but that its hidden state is taken to be so large that it must be scaled.
fn scaled(graph: &Graph, weights: &Weights, tokens: &[u32]) -> Ranges {
    let seen = calibrate(graph, weights, tokens, tokens.len()).unwrap();
    Ranges { residual: Some(50_000.0), ..seen.ranges }
}

/// A small checkpoint with the tokens that belong to it.
fn checkpoint(name: &str) -> (Graph, Weights, Vec<u32>) {
    let golden = goldens().into_iter().find(|g| g.name.starts_with(&format!("{name},")));
    let golden = golden.unwrap_or_else(|| panic!("there is no checkpoint {name}"));
    let model = Checkpoint::open(&golden.path).unwrap();
    let (graph, weights) = model.build(&BuildOptions { context: golden.context }).unwrap();
    (graph, weights, golden.ids)
}

/// Checks logits of rows, each by its position in a text, against the reference.
fn check(name: &str, graph: &Graph, weights: &Weights, tokens: &[u32], rows: &[(usize, Vec<f32>)]) {
    let expected = reference::logits(graph, weights, tokens).unwrap();
    assert!(!rows.is_empty(), "{name}: nothing to compare");
    for (position, row) in rows {
        TOLERANCE.check(&format!("{name}, position {position}"), row, expected.row(*position));
    }
}
