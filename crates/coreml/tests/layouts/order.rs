//! Folders without a description, of which chunks were left out, swapped or taken from another model.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use baton_coreml::layout::names::anemll::{META, meta as fields};
use baton_coreml::layout::names::place;
use baton_coreml::lower::Chunks;
use baton_coreml::{FOLDER_FILE, Foreign, Package};
use baton_graph::testing::{Tiny, random_weights};
use tempfile::TempDir;

use crate::folders::{BOTH, Kind};

const LAYERS: usize = 4;
const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";

/// A folder with a chunk for each layer.
fn folder(kind: Kind) -> TempDir {
    let tiny = Tiny { layers: LAYERS, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let folder = kind.write(&graph, &weights, 40, Chunks::Count(LAYERS)).unwrap();
    fs::remove_file(folder.path().join(FOLDER_FILE)).unwrap();
    folder
}

/// The package of a layer's chunk, from 0, among so many.
fn chunk(kind: Kind, folder: &Path, layer: usize, of: usize) -> PathBuf {
    folder.join(match kind {
        Kind::Anemll => format!("model_FFN_PF_chunk_{:02}of{of:02}.mlpackage", layer + 1),
        Kind::LlmCli => format!("model_chunk{}.mlpackage", layer + 2),
    })
}

fn swap(one: &Path, other: &Path) {
    let away = one.with_extension("away");
    fs::rename(one, &away).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&away, other).unwrap();
}

/// Takes the chunk of a layer out, and names the rest as if it had never been.
fn leave_out(kind: Kind, folder: &Path, layer: usize) {
    fs::remove_dir_all(chunk(kind, folder, layer, LAYERS)).unwrap();
    let left = (0..LAYERS).filter(|&i| i != layer);
    for (i, at) in left.enumerate() {
        fs::rename(chunk(kind, folder, at, LAYERS), chunk(kind, folder, i, LAYERS - 1)).unwrap();
    }
    match kind {
        Kind::Anemll => {
            let meta = fs::read_to_string(folder.join(META)).unwrap();
            let meta = meta.replace("_01of04", "_01of03");
            let n = |n: usize| format!("{}: {n}\n", fields::NUM_CHUNKS);
            fs::write(folder.join(META), meta.replace(&n(LAYERS), &n(LAYERS - 1))).unwrap();
        }
        Kind::LlmCli => {
            let head = |n: usize| folder.join(format!("model_chunk{}.mlpackage", n + 2));
            fs::rename(head(LAYERS), head(LAYERS - 1)).unwrap();
        }
    }
}

/// Changes what their maker has noted in all packages.
fn change_notes(folder: &Path, change: impl Fn(&mut BTreeMap<String, String>)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.join(MODEL).exists() {
            let mut model = Package::open(&path).unwrap().model;
            change(&mut model.metadata.user);
            fs::write(path.join(MODEL), model.to_bytes()).unwrap();
        }
    }
}

fn without_notes(folder: &Path) {
    change_notes(folder, BTreeMap::clear);
}

/// What is wrong with a folder; it must say what to do.
fn error(folder: &Path) -> String {
    let error = match Foreign::find(folder) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("nothing is wrong"),
    };
    assert!(error.contains("anew, or compile the model again"), "{error}");
    error
}

#[test]
fn packages_say_where_among_those_of_which_model_they_belong() {
    for kind in BOTH {
        let whole = folder(kind);
        let at = |layer: usize| chunk(kind, whole.path(), layer, LAYERS);
        assert!(Foreign::find(whole.path()).unwrap().is_some());
        let wrong = |text: &str| {
            let found = error(whole.path());
            assert!(found.contains(text), "{kind:?}: {found}");
        };
        swap(&at(1), &at(2));
        let of = if kind == Kind::Anemll { 6 } else { 7 };
        wrong(&format!("is part 4 of {of}, where part 3 of {of} belongs"));
        swap(&at(1), &at(2));
        // The same chunk of a model of the same sizes.
        let other = folder(kind);
        change_notes(other.path(), |notes| {
            drop(notes.insert(place::MODEL.into(), "02".repeat(32)))
        });
        assert!(Foreign::find(other.path()).unwrap().is_some());
        swap(&at(3), &chunk(kind, other.path(), 3, LAYERS));
        wrong("of another model");
        swap(&at(3), &chunk(kind, other.path(), 3, LAYERS));
        without_notes(other.path());
        swap(&at(3), &chunk(kind, other.path(), 3, LAYERS));
        wrong("does not say of which model");
        for layer in [0, 2, LAYERS - 1] {
            let part = folder(kind);
            leave_out(kind, part.path(), layer);
            let found = error(part.path());
            assert!(
                found.contains("is part ") || found.contains("of 4 chunks"),
                "{kind:?}: {found}"
            );
        }
    }
}

#[test]
fn chunks_without_notes_are_known_by_the_layers_of_the_cache_that_they_write() {
    let kind = Kind::Anemll;
    let whole = folder(kind);
    without_notes(whole.path());
    assert!(Foreign::find(whole.path()).unwrap().is_some());
    let at = |layer: usize| chunk(kind, whole.path(), layer, LAYERS);
    swap(&at(1), &at(2));
    let found = error(whole.path());
    assert!(found.contains("has the layers 2 to 2, where those from 1 on belong"), "{found}");
    for (layer, text) in [
        (0, "has the layers 1 to 1, where those from 0 on belong"),
        (1, "has the layers 2 to 2, where those from 1 on belong"),
        (LAYERS - 1, "a cache of 4 layers, and chunks of 3 alone: one is missing"),
    ] {
        let part = folder(kind);
        without_notes(part.path());
        leave_out(kind, part.path(), layer);
        let found = error(part.path());
        assert!(found.contains(text), "{layer}: {found}");
    }
}

#[test]
fn a_model_of_other_layers_than_its_packages_is_known_by_its_config() {
    for kind in BOTH {
        let whole = folder(kind);
        without_notes(whole.path());
        let config = |text: &str| fs::write(whole.path().join("config.json"), text).unwrap();
        for text in [
            r#"{ "num_hidden_layers": 4 }"#,
            r#"{ "tokenizer_class": "X" }"#,
            r#"{ "num_hidden_layers": 6, "num_kv_shared_layers": 2 }"#,
            r#"{ "num_hidden_layers": 6, "layer_types": ["full_attention", "conv"] }"#,
            r#"{ "num_hidden_layers": 6, "hybrid_override_pattern": "M*M*" }"#,
            "no JSON",
        ] {
            config(text);
            assert!(Foreign::find(whole.path()).unwrap().is_some(), "{text}");
        }
        for text in
            [r#"{ "num_hidden_layers": 5 }"#, r#"{ "text_config": { "num_hidden_layers": 5 } }"#]
        {
            config(text);
            let found = error(whole.path());
            assert!(
                found.contains("packages of 4 layers, and config.json is of a model of 5"),
                "{found}"
            );
        }
    }
}
