//! The unit on a machine with Core ML, in whose place stands one that interprets what it has compiled.

mod fake;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_coreml::report::{MeasuredUnit, Report};
use baton_coreml::runtime::ComputeUnits;
use baton_coreml::{CoreMl, Package};
use baton_graph::testing::conformance::{self, Tolerance};
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, ExecError, Executor, Graph, Limits, Rows, SeqId, Unit, reference};
use baton_weights::Weights;

use fake::{fake, pool};

const F32: Tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };
const SAME: Tolerance = Tolerance { nmse: 1e-6, worst: 2e-3 };

/// A new device for each model: weights for tests have no fingerprint by which a cache could tell them.
#[derive(Debug)]
struct NewDevices {
    room: tempfile::TempDir,
    number: AtomicUsize,
}

impl Unit for NewDevices {
    fn name(&self) -> &'static str {
        "coreml"
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> std::result::Result<Box<dyn Executor>, ExecError> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let device = fake(&self.room.path().join(number.to_string())).1;
        CoreMl::new(pool()).with_chunk(16).on(device).compile(graph, weights, limits)
    }
}

#[test]
fn a_model_on_the_device_answers_as_it_should() {
    let unit = NewDevices { room: tempfile::tempdir().unwrap(), number: AtomicUsize::new(0) };
    conformance::models(&unit, F32, SAME);
    conformance::caches(&unit, F32, SAME);
    conformance::failures(&unit, SAME);
}

#[test]
fn packages_are_made_and_compiled_once_and_functions_loaded_for_their_units() {
    let room = tempfile::tempdir().unwrap();
    let (fake, device) = fake(room.path());
    let unit = CoreMl::new(pool()).with_chunk(8).on(device.clone());
    let tiny = Tiny::default();
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 5);
    let limits = Limits { context: 24, kv_tokens: 24, batch_tokens: 24 };
    let tokens = random_tokens(20, tiny.vocab, 6);
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    for _ in 0..2 {
        let mut executor = unit.compile(&graph, &weights, limits).unwrap();
        let batch = Batch::one(SeqId(0), tokens.clone(), Rows::All);
        let found = executor.forward(&batch).unwrap();
        F32.check("on the device", &found.values, &expected.values);
    }
    // The layers and the head.
    assert_eq!(fake.compiled.load(Ordering::Relaxed), 2);
    assert_eq!(device.cache().list().unwrap().len(), 4, "two packages, and what they became");
    let loaded = fake.loaded.lock().unwrap().clone();
    let units = |package: usize, function: &str| {
        let setup = &loaded[package].functions[function];
        assert_eq!(setup.name.as_deref().unwrap_or(function), function);
        setup.units
    };
    assert_eq!(units(0, "prefill_8_h0"), ComputeUnits::CpuAndNeuralEngine);
    assert_eq!(units(0, "decode"), ComputeUnits::CpuAndGpu);
    // A context that is a little longer needs nothing new, another is another package.
    let longer = |context| Limits { context, kv_tokens: context, ..limits };
    unit.compile(&graph, &weights, longer(32)).unwrap();
    assert_eq!(fake.compiled.load(Ordering::Relaxed), 2);
    unit.compile(&graph, &weights, longer(33)).unwrap();
    assert_eq!(fake.compiled.load(Ordering::Relaxed), 3, "the head is the same, byte for byte");
}

#[test]
fn the_report_tells_where_operations_are_beside_where_they_were_predicted() {
    let room = tempfile::tempdir().unwrap();
    let (_, device) = fake(room.path());
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 5);
    let limits = Limits { context: 24, kv_tokens: 24, batch_tokens: 24 };
    let unit = CoreMl::new(pool()).with_chunk(8).on(device.clone());
    unit.compile(&graph, &weights, limits).unwrap();
    let is_package = |path: &PathBuf| path.extension().is_some_and(|end| end == "mlpackage");
    let paths = device.cache().list().unwrap().into_iter().map(|entry| entry.path);
    let packages = paths.filter(is_package).map(|path| (Package::open(&path).unwrap(), path));
    let (package, path) = packages.max_by_key(|(p, _)| p.model.program.functions.len()).unwrap();
    let mut report = Report::of(&package);
    report.add_placements(&device.placements(&path, &package).unwrap());
    for function in &report.functions {
        let decode = function.name == "decode";
        let unit = if decode { MeasuredUnit::Gpu } else { MeasuredUnit::NeuralEngine };
        assert!(function.ops.iter().all(|op| op.measured == Some(unit)), "{}", function.name);
        assert_eq!(function.measured_share, Some(if decode { 0.0 } else { 1.0 }));
    }
    let json = report.to_json();
    let function = &json["functions"][0];
    assert_eq!(function["name"], "decode");
    assert_eq!(function["measured_share"], 0.0);
    assert_eq!(function["rows"][0]["measured"], "GPU");
}
