//! `compile`: models as Core ML packages.

use std::path::Path;

use baton_coreml::Package;
use baton_models::testing::goldens;
use serde_json::Value;

use crate::program::Home;

/// Every file of a folder with its content.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                    found.push((name, std::fs::read(&path).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_model_becomes_a_package_that_answers_as_it_does() {
    let home = Home::new();
    let model = home.model();
    let compile = |name: &str| {
        let path = home.path(name);
        let options = ["--context", "200", "--tokens", "16,1"];
        let args = [&["compile", &model, "-o", path.to_str().unwrap()], &options[..]].concat();
        (home.run(&args).ok(), path)
    };
    let (said, folder) = compile("out");
    assert!(said.contains("prefill_16_h0") && said.contains("decode"), "{said}");
    assert!(said.contains("same likeliest token 100.0 %"), "{said}");
    let manifest = std::fs::read(folder.join("baton.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!((&manifest["format"], &manifest["context"]), (&1.into(), &200.into()));
    assert!(manifest["quality"]["divergence"].as_f64().unwrap() < 1e-2, "{manifest}");
    let package = Package::open(&folder.join("model.mlpackage")).unwrap();
    let names: Vec<&String> = package.model.program.functions.keys().collect();
    let described = manifest["functions"].as_array().unwrap();
    assert!(described.iter().zip(&names).all(|(f, name)| f["name"] == name.as_str()));
    let prefill = ["prefill_16_h0", "prefill_16_h200", "prefill_1_h0", "prefill_1_h200"];
    assert_eq!(names, [&["decode", "head"], &prefill[..]].concat());
    // The same model gives the same bytes, and what is there is left alone.
    let (_, again) = compile("again");
    assert_eq!(files(&folder), files(&again));
    let path = folder.to_str().unwrap();
    home.run(&["compile", &model, "-o", path]).failed(1, "exists already");
    let small = home.path("small");
    home.run(&["compile", &model, "-o", small.to_str().unwrap(), "-c", "64", "--bits", "4"]).ok();
    let [whole, small] = [&folder, &small]
        .map(|folder| Package::open(&folder.join("model.mlpackage")).unwrap().weight_bytes());
    assert!(small * 2 < whole, "{small} of {whole} bytes");
    home.run(&["compile", &model, "-o", "x", "-c", "9999999"]).failed(2, "--context");
}

#[test]
fn a_model_that_cannot_be_compiled_leaves_nothing_behind() {
    let home = Home::new();
    let mixture = goldens().into_iter().find(|golden| golden.name.starts_with("qwen3-moe"));
    let model = mixture.unwrap().path;
    let (model, out) = (model.to_str().unwrap(), home.path("out"));
    let args = ["compile", model, "-o", out.to_str().unwrap(), "-c", "64"];
    let output = home.run(&args);
    assert!(output.code == Some(1), "{output:?}");
    assert!(!out.exists());
    let left = std::fs::read_dir(out.parent().unwrap()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("compile")), "{left:?}");
}
