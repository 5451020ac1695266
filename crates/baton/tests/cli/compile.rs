//! `compile`: models as Core ML packages.

use std::path::Path;

use baton_coreml::Package;
use baton_models::testing::goldens;
use baton_text::Tokenizer;
use baton_weights::GgufFile;
use serde_json::{Value, json};

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
    assert_eq!((&manifest["format"], &manifest["context"]), (&2.into(), &200.into()));
    let quality = &manifest["quality"];
    assert!(quality["divergence"].as_f64().unwrap() < 1e-2, "{manifest}");
    assert!(quality["tokens"].as_u64() > Some(0) && quality["overflows"] == json!([]), "{quality}");
    assert!(quality["largest"]["value"].as_f64() < Some(65_504.0), "{quality}");
    let package = Package::open(&folder.join("model.mlpackage")).unwrap();
    let names: Vec<&String> = package.model.program.functions.keys().collect();
    // What was measured is in the package, too.
    let note: Value = serde_json::from_str(&package.model.metadata.user["baton.quality"]).unwrap();
    assert_eq!(&note, quality);
    let [entry] = &manifest["packages"].as_array().unwrap()[..] else { panic!("{manifest}") };
    assert_eq!(entry["file"], "model.mlpackage");
    let described = entry["functions"].as_array().unwrap();
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
    home.run(&["compile", &model, "-o", "x", "--bits", "9"]).failed(2, "average");
    home.run(&["compile", &model, "-o", "x", "--block", "32"]).failed(2, "--quantize");
}

#[test]
fn a_model_in_chunks_has_a_package_for_each_and_its_tokenizer_beside_them() {
    let home = Home::new();
    let model = home.model();
    let folder = home.path("chunks");
    let options = ["--context", "64", "--chunks", "1", "--quantize", "int8", "--no-decode"];
    let args = [&["compile", &model, "-o", folder.to_str().unwrap()], &options[..]].concat();
    let said = home.run(&args).ok();
    assert!(said.contains("same likeliest token"), "{said}");
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(folder.join("baton.json")).unwrap()).unwrap();
    assert_eq!(manifest["weights"], "int8");
    let entries = manifest["packages"].as_array().unwrap();
    assert_eq!(entries.len(), 2, "{manifest}");
    for (entry, name) in entries.iter().zip(["model_chunk.mlpackage", "model_head.mlpackage"]) {
        assert_eq!(entry["file"], name);
        let package = Package::open(&folder.join(name)).unwrap();
        assert_eq!(entry["weight_bytes"], package.weight_bytes());
    }
    assert_eq!((&entries[0]["layers"], &entries[1]["layers"]), (&json!([0, 1]), &Value::Null));
    // The tokenizer gives the same tokens as the model's own.
    let text = "Grüße, world";
    let tokenizer = folder.join("tokenizer.gguf");
    let metadata = GgufFile::open(&tokenizer).unwrap();
    assert!(metadata.tensors().is_empty() && !metadata.metadata().is_empty());
    let encode = |file: &GgufFile| {
        Tokenizer::from_gguf(file.metadata()).unwrap().encode(text, true).unwrap()
    };
    assert_eq!(encode(&metadata), encode(&GgufFile::open(&model).unwrap()));
    let template = std::fs::read_to_string(folder.join("chat_template.jinja")).unwrap();
    assert_eq!(template, crate::tiny::TEMPLATE);
    let many = ["--context", "64", "--chunks", "99"];
    let args = [&["compile", &model, "-o", "x"], &many[..]].concat();
    home.run(&args).failed(1, "99 chunks of");
    let args = [&["compile", &model, "-o", "x"], &["--chunk-size", "10"][..]].concat();
    home.run(&args).failed(1, "larger chunks");
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
