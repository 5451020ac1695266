//! Packed weights that stay on the disk, on a model of a few kilobytes.

use std::fs;

use crate::program::{Home, Output, finish};

/// A model with weights of 4 bits, and no tokenizer: it can be measured, not asked.
const QUANTIZED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden/gpt-oss/model.gguf");

fn measure(home: &Home, model: &str, more: &[&str]) -> Output {
    let args = ["bench", model, "-p", "4", "-n", "0", "-r", "1", "-t", "1", "--no-cold-load"];
    home.run(&[&args, more].concat())
}

fn listed(home: &Home) -> Vec<String> {
    home.run(&["cache"]).ok().lines().map(str::to_owned).collect()
}

#[test]
fn what_was_packed_is_listed_and_can_be_cleared() {
    let home = Home::new();
    assert_eq!(listed(&home).len(), 2, "a head and a sum");
    measure(&home, QUANTIZED, &[]).ok();
    let lines = listed(&home);
    assert_eq!(lines.len(), 3);
    assert!(lines[1].contains("gpt-oss/model.gguf") && lines[1].contains("just now"), "{lines:?}");
    assert!(lines[2].ends_with(home.path("store/packed").to_str().unwrap()), "{lines:?}");
    // The second time it is found, and there is nothing to add.
    measure(&home, QUANTIZED, &[]).ok();
    assert_eq!(listed(&home).len(), 3);
    let cleared = home.run(&["cache", "--clear"]);
    assert!(cleared.stderr.contains("freed"), "{cleared:?}");
    assert_eq!(cleared.ok(), "");
    assert_eq!(listed(&home).len(), 2);
}

#[test]
fn what_core_ml_has_compiled_is_listed_and_cleared_too() {
    let home = Home::new();
    let folder = home.path("store/coreml");
    let compiled = folder.join("0123.mlmodelc");
    fs::create_dir_all(compiled.join("weights")).unwrap();
    fs::write(compiled.join("weights/weight.bin"), [0; 2048]).unwrap();
    fs::write(folder.join("0123.mlmodelc.source"), "/models/X.mlpackage").unwrap();
    let lines = listed(&home);
    let found = lines.iter().find(|line| line.contains("compiled /models/X.mlpackage"));
    assert!(found.is_some_and(|line| line.contains("just now")), "{lines:?}");
    assert!(lines[lines.len() - 1].ends_with(folder.to_str().unwrap()), "{lines:?}");
    // A program that uses it holds this.
    let held = fs::File::create(folder.join("0123.mlmodelc.use")).unwrap();
    held.lock_shared().unwrap();
    let left = home.run(&["cache", "--clear"]);
    assert!(left.stderr.contains("running programs use") && compiled.exists(), "{left:?}");
    drop(held);
    home.run(&["cache", "--clear"]).ok();
    assert!(!compiled.exists());
    assert_eq!(listed(&home).len(), 2);
}

#[test]
fn a_limit_of_nothing_keeps_nothing() {
    let home = Home::new();
    measure(&home, QUANTIZED, &["--packed-limit", "0"]).ok();
    let mut command = home.command(&["bench", QUANTIZED, "-p", "4", "-n", "0", "-r", "1"]);
    finish(command.env("BATON_PACKED_LIMIT", "0"), b"").ok();
    assert!(!home.path("store/packed").exists());
    measure(&home, QUANTIZED, &["--packed-limit", "much"]).failed(2, "512MiB");
}

#[test]
fn removing_a_model_removes_what_was_packed_of_models_that_are_gone() {
    let home = Home::new();
    let (mine, model) = (home.path("mine.gguf"), home.model());
    fs::copy(QUANTIZED, &mine).unwrap();
    measure(&home, mine.to_str().unwrap(), &[]).ok();
    fs::remove_file(&mine).unwrap();
    assert_eq!(listed(&home).len(), 3);
    home.catalog("tiny", &crate::server::serve(model.into()));
    home.run(&["pull", "tiny"]).ok();
    home.run(&["rm", "tiny"]).ok();
    assert_eq!(listed(&home).len(), 2);
}
