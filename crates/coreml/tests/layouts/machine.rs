//! What folders take and leave on a machine: the room for caches and files, and what Core ML compiles.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use baton_coreml::lower::Chunks;
use baton_coreml::{FOLDER_FILE, FolderUnit, Foreign, Package, held_by_packages};
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Limits, Unit, reference};
use baton_weights::Weights;
use serde_json::{Value, json};

use crate::TOLERANCE;
use crate::fake::{fake, pool};
use crate::folders::{BATCH, BOTH, Kind, last, limits, own_graph};

/// Turns a package into what looks like one that Core ML has compiled, with what that says of its features.
fn pretend_compiled(package: &Path) {
    let model = Package::open(package).unwrap().model;
    let list = |tensors: Vec<(&str, &baton_coreml::mil::TensorType)>| -> Value {
        let feature = |(name, ty): (&str, &baton_coreml::mil::TensorType)| {
            let dtype = if ty.dtype.name() == "int32" { "Int32" } else { "Float16" };
            json!({ "name": name, "dataType": dtype, "shape": format!("{:?}", ty.shape) })
        };
        tensors.into_iter().map(feature).collect()
    };
    let functions = model.program.functions.iter().map(|(name, function)| {
        json!({
            "name": name,
            "inputSchema": list(function.tensor_inputs().collect()),
            "outputSchema": list(function.outputs().collect()),
            "stateSchema": list(function.states().collect()),
        })
    });
    let functions: Vec<Value> = functions.collect();
    let description = match &functions[..] {
        [only] => json!([only]),
        all => json!([{ "functions": all }]),
    };
    let compiled = package.with_extension("mlmodelc");
    fs::rename(package, &compiled).unwrap();
    fs::write(compiled.join("metadata.json"), description.to_string()).unwrap();
}

#[test]
fn what_core_ml_has_compiled_is_run_as_it_is_and_only_on_a_mac() {
    let tiny = Tiny { layers: 3, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let tokens = random_tokens(30, tiny.vocab, 5);
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    for kind in BOTH {
        let folder = kind.write(&graph, &weights, 40, Chunks::Count(2)).unwrap();
        fs::remove_file(folder.path().join(FOLDER_FILE)).unwrap();
        for entry in fs::read_dir(folder.path()).unwrap().collect::<Vec<_>>() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "mlpackage") {
                pretend_compiled(&path);
            }
        }
        let own = own_graph(folder.path());
        let unit = FolderUnit::new(folder.path(), pool());
        let error = unit.compile(&own, &Weights::new(), limits(40)).err().unwrap().to_string();
        assert!(error.contains("only a Mac") && error.contains(".mlpackage"), "{error}");
        let room = tempfile::tempdir().unwrap();
        let (machine, device) = fake(room.path());
        let unit = FolderUnit::new(folder.path(), pool()).on(device);
        let mut executor = unit.compile(&own, &Weights::new(), limits(40)).unwrap();
        let found = last(&mut *executor, 0, &tokens);
        TOLERANCE.check(&format!("{kind:?}"), &found, expected.row(29));
        let compiled = machine.compiled.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(compiled, 0, "what was compiled is not compiled again");
        let loaded = Mutex::lock(&machine.loaded).unwrap();
        assert!(loaded.iter().all(|compiled| compiled.path.starts_with(folder.path())));
        let names = loaded[1].functions.keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names, if kind == Kind::Anemll { "infer prefill" } else { "main" });
    }
}

#[test]
fn what_packages_hold_of_the_cache_goes_by_their_own_context_and_is_refused_if_there_is_no_memory()
{
    let graph = Tiny { layers: 3, ..Tiny::default() }.graph().unwrap();
    let weights = random_weights(&graph, 11);
    for kind in BOTH {
        let folder = kind.write(&graph, &weights, 40, Chunks::Count(2)).unwrap();
        let held = |context: usize, sequences: usize| {
            let limits = Limits { context, kv_tokens: context * sequences, batch_tokens: context };
            held_by_packages(folder.path(), &graph, &limits, true).unwrap()
        };
        assert_eq!(held(16, 1), held(40, 1), "{kind:?}");
        let each = held(16, 3) - held(16, 2);
        // Keys and values of three layers with two heads of 16 features, in half precision.
        let least = 2 * 3 * 2 * 16 * 2 * if kind == Kind::Anemll { 40 } else { 40 - BATCH as u64 };
        assert!((least..4 * least).contains(&each), "{kind:?}: {each}");
        assert!(held(16, 1) > each);
        // Of more sequences than any machine has room for.
        let limits = Limits { context: 40, kv_tokens: 40 << 40, batch_tokens: 40 };
        let unit = FolderUnit::new(folder.path(), pool());
        let error = unit.compile(&graph, &weights, limits).err().unwrap().to_string();
        assert!(error.contains("MiB are available") && error.contains("shorter"), "{error}");
    }
}

#[test]
fn a_folder_is_installed_whole_whether_it_is_described_or_not() {
    let tiny = Tiny { layers: 3, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    for (kind, described) in BOTH.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let folder = kind.write(&graph, &weights, 40, Chunks::Count(2)).unwrap();
        if !described {
            fs::remove_file(folder.path().join(FOLDER_FILE)).unwrap();
        }
        let room = tempfile::tempdir().unwrap();
        let (machine, device) = fake(room.path());
        let compiled = || machine.compiled.load(std::sync::atomic::Ordering::Relaxed);
        let foreign = Foreign::find(folder.path()).unwrap().unwrap();
        // Embeddings, two chunks, the head; and what moves caches on.
        let n = if kind == Kind::Anemll { 4 } else { 5 };
        let mut told = Vec::new();
        let places = foreign
            .install(&device, &mut |step| {
                if told.last() != Some(&step.package.to_owned()) {
                    assert_eq!((step.index, step.count), (told.len(), n), "{step:?}");
                    told.push(step.package.to_owned());
                }
            })
            .unwrap();
        let names: Vec<String> = places.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!((&names, compiled()), (&told, n));
        assert!(places.iter().all(|(_, place)| place.is_dir()), "{places:?}");
        // What is there is loaded.
        let unit = FolderUnit::new(folder.path(), pool()).on(device.clone());
        match described {
            true => unit.compile(&graph, &weights, limits(40)).unwrap(),
            false => unit.compile(&own_graph(folder.path()), &Weights::new(), limits(40)).unwrap(),
        };
        assert_eq!(compiled(), n);
    }
}

#[test]
fn what_is_written_at_least_is_known_before() {
    let tiny = Tiny { layers: 3, vocab: 4000, window: Some(7), ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    for kind in BOTH {
        let context = 400;
        let least = kind.layout(context).least_bytes(&graph, 16.0);
        let folder = kind.write(&graph, &weights, context, Chunks::Count(1)).unwrap();
        let written: u64 = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "mlpackage"))
            .map(|path| Package::open(&path).unwrap().weight_bytes())
            .sum();
        let share = least as f64 / written as f64;
        assert!((0.97..=1.0).contains(&share), "{kind:?}: {least} of {written}");
    }
}
