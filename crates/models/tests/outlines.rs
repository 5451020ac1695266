//! Folders that hold a few of a model's tensors and stand for all of it.

use std::fs::{self, File};
use std::path::Path;

use baton_models::testing::{Golden, goldens};
use baton_models::{BuildOptions, Model, OUTLINE_FILE, PACKAGES_FILE, Source};
use serde_json::Value;
use tempfile::TempDir;

/// The folder that stands for a model.
fn outline_of(model: &Model) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let names = model.looked_up().unwrap();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let file = match model.source() {
        Source::Checkpoint { folder: from, .. } => {
            fs::copy(from.join("config.json"), at("config.json")).unwrap();
            "embeddings.safetensors"
        }
        _ => "embeddings.gguf",
    };
    model.source().write_some(&names, File::create(at(file)).unwrap()).unwrap();
    fs::write(at(PACKAGES_FILE), "{}").unwrap();
    fs::write(at(OUTLINE_FILE), model.outline()).unwrap();
    folder
}

/// One of each file.
fn models() -> impl Iterator<Item = Golden> {
    let mut all = goldens();
    all.dedup_by(|a, b| a.path == b.path);
    all.into_iter()
}

#[test]
fn the_graph_of_an_outline_is_that_of_the_model() {
    let mut seen = 0;
    for golden in models() {
        let model = Model::open(&golden.path).unwrap();
        if model.is_embedding() || golden.name.starts_with("gpt-oss") {
            continue;
        }
        let folder = outline_of(&model);
        let outlined = Model::open(folder.path()).unwrap();
        assert_eq!((model.packages(), outlined.packages()), (None, Some(folder.path())));
        assert_eq!(outlined.config(), model.config(), "{}", golden.name);
        let options = BuildOptions { context: golden.context };
        let [(graph, weights), (found, held)] =
            [&model, &outlined].map(|m| m.build(&options).unwrap());
        assert_eq!(found, graph, "{}", golden.name);
        assert!(held.stored_bytes() < weights.stored_bytes(), "{}", golden.name);
        let facts = |m: &Model| (m.parameters(), m.stored_bytes(), m.name().to_owned());
        assert_eq!(facts(&outlined), facts(&model));
        seen += 1;
    }
    assert!(seen > 10, "{seen} models");
}

#[test]
fn outlines_that_are_missing_or_damaged_are_errors() {
    let golden = models().next().unwrap();
    let model = Model::open(&golden.path).unwrap();
    let folder = outline_of(&model);
    let path = folder.path().join(OUTLINE_FILE);
    let open = |folder: &Path| match Model::open(folder) {
        Ok(model) => {
            let built = model.build(&BuildOptions { context: 8 });
            built.map(drop).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    let text = fs::read_to_string(&path).unwrap();
    let good: Value = serde_json::from_str(&text).unwrap();
    open(folder.path()).unwrap();
    let first = good["tensors"][0].clone();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        change(&mut value);
        fs::write(&path, value.to_string()).unwrap();
        open(folder.path()).unwrap_err()
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(&str, Change<'_>); 8] = [
        ("has no name", &|v| v["name"] = 1.into()),
        ("no fingerprint", &|v| v["fingerprint"] = "00".into()),
        ("lists no tensors", &|v| v["tensors"] = "many".into()),
        ("describes no tensor", &|v| v["tensors"][0][2][0] = (-1).into()),
        ("describes no tensor", &|v| v["tensors"][0][2] = vec![u64::MAX, 3].into()),
        ("occurs twice", &|v| v["tensors"].as_array_mut().unwrap().push(first.clone())),
        ("has shape", &|v| {
            v["tensors"].as_array_mut().unwrap().iter_mut().for_each(|t| t[2] = vec![3].into())
        }),
        ("is missing", &|v| {
            v["tensors"].as_array_mut().unwrap().iter_mut().for_each(|t| {
                t[0] = format!("x.{}", t[0].as_str().unwrap()).into();
            })
        }),
    ];
    for (expected, change) in cases {
        let error = changed(change);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    for cut in (0..text.len()).step_by(text.len() / 50) {
        fs::write(&path, &text[..cut]).unwrap();
        assert!(open(folder.path()).unwrap_err().contains(OUTLINE_FILE), "{cut} bytes");
    }
    fs::remove_file(&path).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(error.contains("compile the model again"), "{error}");
}
