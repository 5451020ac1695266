//! Folders of packages: run as the model is, tokens one by one through the states, and refused if damaged.

mod fake;

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use baton_coreml::lower::{Chunks, Lowering, MilLowering};
use baton_coreml::runtime::{Device, Hashes, Platform, Preparing};
use baton_coreml::{
    FOLDER_FILE, FOLDER_FORMAT, Folder, FolderUnit, Installing, PackageWriter, describe_files,
};
use baton_graph::testing::conformance::{self, Tolerance};
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, ExecError, Executor, Graph, Limits, Rows, SeqId, Unit, hex, reference};
use baton_weights::Weights;
use serde_json::{Value, json};
use tempfile::TempDir;

use fake::{fake, pool};

const F32: Tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };
/// A chunk by the prefill function and tokens by the decode function round differently.
const SAME: Tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };
const LIMITS: Limits = Limits { context: 40, kv_tokens: 80, batch_tokens: 40 };

/// A folder of the packages of a graph, with a decode function for single tokens.
fn write(
    graph: &Graph,
    weights: &Weights,
    context: usize,
    chunks: Chunks,
) -> baton_coreml::Result<TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let prefill = [(4, 0), (4, context)].into();
    let lowering = MilLowering { prefill, decode: Some(context), ..MilLowering::default() };
    let mut packages = Vec::new();
    for (i, part) in lowering.parts(graph, chunks)?.iter().enumerate() {
        let file = format!("{i}.mlpackage");
        let mut writer = PackageWriter::create(&folder.path().join(&file))?;
        let model = lowering.lower_part(graph, weights, part, &mut writer.weights)?;
        writer.finish(&model)?;
        packages.push(json!({ "file": file }));
    }
    let description = json!({
        "format": FOLDER_FORMAT,
        "fingerprint": hex(graph.fingerprint()),
        "context": context,
        "packages": packages,
        "files": describe_files(folder.path())?,
    });
    fs::write(folder.path().join(FOLDER_FILE), description.to_string()).unwrap();
    Ok(folder)
}

/// The unit that compiles a graph into a folder and runs that.
struct ThroughFolder(Chunks);

impl Unit for ThroughFolder {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        graph.check_limits(&limits)?;
        let folder = write(graph, weights, limits.context, self.0)?;
        FolderUnit::new(folder.path(), pool()).compile(graph, weights, limits)
    }
}

#[test]
fn models_in_a_folder_agree_with_the_reference_token_by_token_too() {
    for chunks in [Chunks::Whole, Chunks::Count(1)] {
        conformance::models(&ThroughFolder(chunks), F32, SAME);
    }
}

#[test]
fn a_folder_runs_by_core_ml_where_that_is() {
    let tiny = Tiny { layers: 3, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let tokens = random_tokens(30, tiny.vocab, 5);
    let folder = write(&graph, &weights, LIMITS.context, Chunks::Count(2)).unwrap();
    let room = tempfile::tempdir().unwrap();
    let (machine, device) = fake(room.path());
    let cache = device.cache().clone();
    let unit = FolderUnit::new(folder.path(), pool()).on(device);
    let mut executor = unit.compile(&graph, &weights, LIMITS).unwrap();
    assert_eq!(machine.loaded.lock().unwrap().len(), 3, "two chunks and the head");
    // By the hashes of its description it has the place that it has by what its files hold.
    let package = folder.path().join("0.mlpackage");
    let again = |_: &Path| -> baton_coreml::Result<std::path::PathBuf> { panic!("it is there") };
    cache.compiled(&package, &machine.system(), &Hashes::new(), again).unwrap();
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    let batch = Batch::one(SeqId(0), tokens, Rows::All);
    F32.check("on a device", &executor.forward(&batch).unwrap().values, &expected.values);
}

#[test]
fn states_follow_caches_that_are_shared_cut_and_handed_over() {
    conformance::caches(&ThroughFolder(Chunks::Whole), F32, SAME);
    conformance::failures(&ThroughFolder(Chunks::Whole), SAME);
}

#[test]
fn states_change_from_one_sequence_to_another_and_back() {
    let tiny = Tiny { layers: 3, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let mut executor = ThroughFolder(Chunks::Count(2)).compile(&graph, &weights, LIMITS).unwrap();
    let texts = [5, 6].map(|seed| random_tokens(30, tiny.vocab, seed));
    let expected = [0, 1].map(|i| reference::logits(&graph, &weights, &texts[i]).unwrap());
    let mut at = [0; 2];
    let mut step = |executor: &mut dyn Executor, i: usize, n: usize| {
        let tokens = texts[i][at[i]..at[i] + n].to_vec();
        let batch = Batch::one(SeqId(i as u32), tokens, Rows::Last);
        let logits = executor.forward(&batch).unwrap();
        at[i] += n;
        F32.check(
            &format!("sequence {i} at {}", at[i]),
            &logits.values,
            expected[i].row(at[i] - 1),
        );
    };
    // Chunks and single tokens, of one and of the other.
    for (i, n) in [(0, 7), (0, 1), (0, 1), (1, 1), (1, 1), (0, 1), (1, 6), (1, 1), (0, 3), (0, 1)] {
        step(&mut *executor, i, n);
    }
    // What was cut off is another token's now.
    executor.truncate(SeqId(0), 4).unwrap();
    at[0] = 4;
    let mut step = |executor: &mut dyn Executor, i: usize| {
        let batch = Batch::one(SeqId(i as u32), vec![texts[i][at[i]]], Rows::Last);
        let logits = executor.forward(&batch).unwrap();
        F32.check("after the cut", &logits.values, expected[i].row(at[i]));
        at[i] += 1;
    };
    [0, 0, 1, 0].into_iter().for_each(|i| step(&mut *executor, i));
}

/// What becomes of a folder that is damaged.
fn outcome(graph: &Graph, weights: &Weights, folder: &Path) -> Result<(), String> {
    let compiled = FolderUnit::new(folder, pool()).compile(graph, weights, LIMITS);
    compiled.map(drop).map_err(|error| error.to_string())
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[test]
fn files_that_are_missing_changed_or_cut_are_named() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 3);
    let folder = write(&graph, &weights, LIMITS.context, Chunks::Count(1)).unwrap();
    let outcome = || outcome(&graph, &weights, folder.path());
    outcome().unwrap();
    let files = files(folder.path());
    // Three of each of two packages, and the description.
    assert_eq!(files.len(), 7);
    for path in &files {
        let bytes = fs::read(path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut changed = bytes.clone();
        changed[bytes.len() / 2] ^= 0x15;
        for damaged in [Some(changed), Some(bytes[..bytes.len() - 1].to_vec()), None] {
            match &damaged {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
            // A digit of the description may become another one, which then names another file.
            let error = outcome().expect_err(name);
            assert!(error.contains(name) || name == FOLDER_FILE, "{name}: {error}");
        }
        fs::write(path, &bytes).unwrap();
    }
    outcome().unwrap();
}

#[test]
fn files_that_are_longer_than_listed_or_no_files_are_refused_unread() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 3);
    let folder = write(&graph, &weights, LIMITS.context, Chunks::Whole).unwrap();
    for path in files(folder.path()) {
        let bytes = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        // With a hole of a tebibyte, which nobody could read to its end.
        let file = fs::File::options().write(true).open(&path).unwrap();
        if file.set_len(1 << 40).is_ok() {
            let error = outcome(&graph, &weights, folder.path()).expect_err(name);
            assert!(error.contains(name), "{name}: {error}");
        }
        drop(file);
        fs::remove_file(&path).unwrap();
        #[cfg(unix)]
        {
            // A pipe that nobody writes into: who opens it waits.
            let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
            let error = outcome(&graph, &weights, folder.path()).expect_err(name);
            assert!(error.contains(name), "{name}: {error}");
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, &bytes).unwrap();
    }
    outcome(&graph, &weights, folder.path()).unwrap();
}

#[test]
fn files_that_are_read_must_be_listed_and_others_may_lie_there() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 3);
    let folder = write(&graph, &weights, LIMITS.context, Chunks::Whole).unwrap();
    let outcome = || outcome(&graph, &weights, folder.path());
    let at = |name: &str| folder.path().join(name);
    // Without an outline, the model is elsewhere.
    for stray in [".DS_Store", "notes.txt", "tokenizer.json", "a.gguf", "0.mlpackage/.DS_Store"] {
        fs::write(at(stray), "mine").unwrap();
        outcome().unwrap();
    }
    fs::remove_file(at("a.gguf")).unwrap();
    let model = [baton_models::OUTLINE_FILE, "embeddings.safetensors", "config.json"];
    for name in model {
        fs::write(at(name), "{}").unwrap();
    }
    let path = at(FOLDER_FILE);
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut listed = describe_files(folder.path()).unwrap();
    for stray in [FOLDER_FILE, ".DS_Store", "notes.txt", "0.mlpackage/.DS_Store"] {
        listed.as_object_mut().unwrap().remove(stray).unwrap();
    }
    let mut write_list = |listed: &Value| {
        value["files"] = listed.clone();
        fs::write(&path, value.to_string()).unwrap();
    };
    write_list(&listed);
    outcome().unwrap();
    // All that is listed is read here: none of it may be left out.
    for name in listed.as_object().unwrap().keys() {
        let mut shorter = listed.clone();
        shorter.as_object_mut().unwrap().remove(name);
        write_list(&shorter);
        let error = outcome().expect_err(name);
        assert!(error.contains(name) && error.contains("not listed"), "{name}: {error}");
    }
    write_list(&listed);
    fs::write(at("special_tokens_map.json"), "{}").unwrap();
    assert!(outcome().unwrap_err().contains("special_tokens_map.json"));
}

#[test]
fn descriptions_that_make_no_sense_are_errors() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 3);
    let folder = write(&graph, &weights, LIMITS.context, Chunks::Whole).unwrap();
    let path = folder.path().join(FOLDER_FILE);
    let good: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        change(&mut value);
        fs::write(&path, value.to_string()).unwrap();
        outcome(&graph, &weights, folder.path())
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(&str, Change<'_>); 16] = [
        ("compile the model again", &|v| v["format"] = 2.into()),
        ("no format that is known", &|v| v["format"] = 4.into()),
        ("no format that is known", &|v| *v = json!([])),
        ("laid out for anemll", &|v| v["layout"] = "anemll".into()),
        ("no fingerprint", &|v| v["fingerprint"] = Value::Null),
        ("of another model", &|v| v["fingerprint"] = "00".into()),
        ("no context", &|v| v["context"] = 0.into()),
        ("lists no packages", &|v| v["packages"] = Value::Null),
        ("without a file", &|v| v["packages"][0] = json!({})),
        ("outside of the folder", &|v| v["packages"][0]["file"] = "../x.mlpackage".into()),
        ("twice", &|v| v["packages"] = json!([v["packages"][0], v["packages"][0]])),
        ("1000 packages for a model of", &|v| {
            let package = |i: usize| json!({ "file": format!("{i}.mlpackage") });
            v["packages"] = (0..1000).map(package).collect();
        }),
        ("is listed", &|v| v["packages"][0]["file"] = "y.mlpackage".into()),
        ("lists no files", &|v| v["files"] = json!([1])),
        ("outside of the folder", &|v| v["files"]["/etc/passwd"] = json!({ "bytes": 1 })),
        ("no length or no hash", &|v| v["files"]["0.mlpackage/Manifest.json"] = json!({})),
    ];
    for (expected, change) in cases {
        let error = changed(change).expect_err(expected);
        assert!(
            error.contains(expected) && error.contains(FOLDER_FILE)
                || error.contains("another model"),
            "{error}"
        );
    }
    // Functions for fewer tokens than asked for, which the description does not know.
    let short = write(&graph, &weights, 16, Chunks::Whole).unwrap();
    let error = outcome(&graph, &weights, short.path()).unwrap_err();
    assert!(error.contains("context of 40"), "{error}");
    assert!(changed(&|v| v["packages"] = json!([])).is_err());
    changed(&|_| {}).unwrap();
    fs::remove_file(&path).unwrap();
    let error = outcome(&graph, &weights, folder.path()).unwrap_err();
    assert!(error.contains("baton compile"), "{error}");
}

#[test]
fn a_folder_that_was_installed_is_run_without_compiling() {
    let room = tempfile::tempdir().unwrap();
    let (fake, device) = fake(room.path());
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 5);
    let folder = write(&graph, &weights, LIMITS.context, Chunks::Count(2)).unwrap();
    let install = |device: &Device| {
        let mut told = Vec::new();
        let tell = &mut |Installing { package, index, count, step }: Installing<'_>| {
            told.push((format!("{package} {index} {count}"), format!("{step:?}")));
        };
        Folder::open(folder.path())?.install(device, tell).map(|places| (places, told))
    };
    let (places, told) = install(&device).unwrap();
    let names: Vec<&str> = places.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["0.mlpackage", "1.mlpackage", "2.mlpackage"]);
    assert!(places.iter().all(|(_, place)| place.starts_with(device.cache().folder())));
    assert!(places.iter().all(|(_, place)| place.is_dir()));
    let of = |package: &str| {
        let steps = told.iter().filter(|(told, _)| told == package);
        steps.map(|(_, step)| step.as_str()).collect::<Vec<_>>()
    };
    let layers = ["decode", "prefill_4_h0", "prefill_4_h40"].map(Preparing::Loading);
    let layers = layers.map(|step| format!("{step:?}"));
    for package in ["0.mlpackage 0 3", "1.mlpackage 1 3"] {
        assert_eq!(of(package)[0], "Compiling");
        assert_eq!(of(package)[1..], layers);
    }
    assert_eq!(of("2.mlpackage 2 3"), ["Compiling", "Loading(\"head\")"]);

    // What runs is loaded from the same places, for the same units.
    let prepared = std::mem::take(&mut *fake.prepared.lock().unwrap());
    FolderUnit::new(folder.path(), pool())
        .on(device.clone())
        .compile(&graph, &weights, LIMITS)
        .unwrap();
    assert_eq!(fake.compiled.load(Ordering::Relaxed), 3);
    let loaded = fake.loaded.lock().unwrap().clone();
    let functions = loaded.into_iter().flat_map(|package| {
        let path = package.path;
        package.functions.into_iter().map(move |(name, setup)| (path.clone(), name, setup))
    });
    assert_eq!(functions.collect::<Vec<_>>(), prepared);

    // A second time, the functions are loaded alone.
    let (again, told) = install(&device).unwrap();
    assert_eq!(again, places);
    assert!(told.iter().all(|(_, step)| step.starts_with("Loading")), "{told:?}");
    let file = folder.path().join("0.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let error = install(&device).unwrap_err().to_string();
    assert!(error.contains("compile the model again"), "{error}");
}
