//! `compile`: models as Core ML packages.

use std::path::Path;

use baton_coreml::Package;
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
    assert_eq!((&manifest["format"], &manifest["context"]), (&3.into(), &200.into()));
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
    let options = [
        "--context",
        "64",
        "--chunks",
        "1",
        "--quantize",
        "int8",
        "--no-decode",
        "--no-embeddings",
    ];
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
    let (model, out) = (home.model(), home.path("out"));
    let args = ["compile", &model, "-o", out.to_str().unwrap(), "-c", "64", "--chunk-size", "10"];
    home.run(&args).failed(1, "larger chunks");
    assert!(!out.exists());
    let left = std::fs::read_dir(out.parent().unwrap()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("compile")), "{left:?}");
}

/// A package that coremltools made of PyTorch.
fn package(name: &str) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../coreml/tests/golden");
    golden.join(format!("{name}.mlpackage")).to_str().unwrap().to_owned()
}

#[test]
fn a_package_is_rewritten_by_passes_and_says_what_each_changed() {
    let home = Home::new();
    let compile = |package: &str, name: &str, more: &[&str]| {
        let path = home.path(name);
        let args = [&["compile", package, "-o", path.to_str().unwrap()], more].concat();
        (home.run(&args), path)
    };
    let (said, folder) = compile(&package("block"), "one", &["--passes", "pow_to_mul"]);
    let said = said.ok();
    assert!(said.contains("pow_to_mul: 2 changes") && said.contains("main/"), "{said}");
    let kinds = |path: &Path, kind: &str| {
        let package = Package::open(path).unwrap();
        let functions = package.model.program.functions.values();
        functions.flat_map(|f| &f.body.ops).filter(|op| op.kind == kind).count()
    };
    let path = folder.join("block.mlpackage");
    assert_eq!((kinds(&path, "pow"), kinds(&path, "linear")), (0, 5));
    // All of the default.
    let (said, folder) = compile(&package("decoder"), "all", &["--head-piece", "64"]);
    let said = said.ok();
    for text in ["merge_kv_states: 1 change", "4 states are 2", "split_head: 1 change", "left: "] {
        assert!(said.contains(text), "{said}");
    }
    let path = folder.join("decoder.mlpackage");
    assert_eq!((kinds(&path, "linear"), kinds(&path, "conv")), (0, 14 + 2));
    // What is there is left alone, and what cannot be rewritten is said.
    compile(&package("block"), "all", &[]).0.failed(1, "exists already");
    compile(&package("block"), "x", &["--passes", "magic"]).0.failed(2, "no such pass");
    compile(&package("block"), "x", &["--bits", "4"]).0.failed(2, "is a package already");
    compile(&home.model(), "x", &["--passes", "pow_to_mul"]).0.failed(2, "is a model");
    compile(&home.model(), "x", &["--min-queries", "5"]).0.failed(2, "is for packages");
    // The size of packages has one name, for models and for packages.
    let (said, _) = compile(&package("block"), "cut", &["--chunk-size", "12KB"]);
    assert!(said.ok().contains("block_chunk_2.mlpackage"));
    let (said, _) = compile(&package("block"), "whole", &["--chunk-mb", "5"]);
    assert!(!said.ok().contains("chunk_2"));
    compile(&home.model(), "x", &["--chunk-mb", "5", "--chunk-size", "5MB"])
        .0
        .failed(2, "cannot be");
    compile(&package("block"), "x", &["--chunks", "2"]).0.failed(2, "--chunks is for models");
    compile("none.mlpackage", "x", &[]).0.failed(1, "Manifest.json");
    home.run(&["compile", "--passes", "pow_to_mul"]).failed(2, "name the package");
    assert!(!home.path("x").exists());
    let list = home.run(&["compile", "--passes", "help"]).ok();
    assert_eq!(list.lines().count(), 12, "{list}");
    assert!(list.contains("reshape_mlp_8x8") && list.contains("only if named"), "{list}");
}

#[test]
fn what_cannot_be_written_is_said_before_anything_is_computed() {
    let home = Home::new();
    let (model, at) = (home.model(), |name: &str| home.path(name).to_str().unwrap().to_owned());
    home.run(&["compile", &model, "-o", &at("x"), "-c", "1"])
        .failed(2, "--context 1: this model has 2");
    home.run(&["compile", &model, "-o", &at("no/such/x")]).failed(1, "no/such is not there");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere", home.path("link")).unwrap();
        home.run(&["compile", &model, "-o", &at("link")]).failed(1, "exists already");
        // A file that may not get longer, as on a disk that is full.
        let program = env!("CARGO_BIN_EXE_baton");
        let script =
            format!("trap '' XFSZ; ulimit -f 8; exec '{program}' compile '{model}' -o full");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).current_dir(home.path("."));
        command.env("BATON_HOME", home.path("store"));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("full/"), "{said}");
        assert!(!home.path("full").exists());
    }
}

#[test]
fn a_report_says_what_would_run_where_and_fails_if_asked_to() {
    let home = Home::new();
    let block = package("block");
    let page = home.path("report.html");
    let said = home.run(&["report", &block, "--html", page.to_str().unwrap()]).ok();
    for text in ["nothing was measured", "Neural Engine", "pow_to_mul", "SqueezeBits"] {
        assert!(said.contains(text), "{text} in {said}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
    let json: Value = serde_json::from_str(&home.run(&["report", &block, "--json"]).ok()).unwrap();
    let share = json["least_flops_share"].as_f64().unwrap();
    assert!(share > 0.5 && share < 1.0, "{json}");
    home.run(&["report", &block, "--fail-below", "0.5"]).ok();
    let failed = home.run(&["report", &block, "--fail-below", "1"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.contains("less than 100.0 %"), "{failed:?}");
    home.run(&["report", &block, "--fail-below", "80"]).failed(2, "from 0 to 1");
    home.run(&["report", "none.mlpackage"]).failed(1, "is no Core ML package");
    // The folder that a model was compiled into.
    let out = home.path("out");
    let out = out.to_str().unwrap();
    home.run(&["compile", &home.model(), "-o", out, "-c", "64", "--no-quality"]).ok();
    let said = home.run(&["report", out]).ok();
    assert!(said.contains("decode: ") && said.contains("prefill_64_h0: "), "{said}");
}

#[test]
fn a_model_is_laid_out_for_the_programs_of_others() {
    let home = Home::new();
    let model = home.model();
    let compile = |name: &str, more: &[&str]| {
        let path = home.path(name);
        let args = [&["compile", &model, "-o", path.to_str().unwrap()], more].concat();
        (home.run(&args), path)
    };
    let packages = |folder: &Path| -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".mlpackage")).collect();
        names.sort();
        for name in &names {
            Package::open(&folder.join(name)).unwrap();
        }
        names
    };
    let options = ["--layout", "anemll", "--prefix", "tiny", "-c", "128", "--bits", "8"];
    let (said, folder) = compile("anemll", &options);
    let said = said.ok();
    for text in ["xcrun coremlcompiler compile", "anemllcli --meta", "not compared", "prefill  "] {
        assert!(said.contains(text), "{text} in {said}");
    }
    assert_eq!(
        packages(&folder),
        [
            "tiny_FFN_PF_lut8_chunk_01of01.mlpackage",
            "tiny_embeddings.mlpackage",
            "tiny_lm_head_lut8.mlpackage",
        ]
    );
    let meta = std::fs::read_to_string(folder.join("meta.yaml")).unwrap();
    assert!(meta.contains("    ffn: tiny_FFN_PF_lut8_chunk_01of01.mlmodelc\n"), "{meta}");
    let manifest = std::fs::read(folder.join("baton.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!((&manifest["layout"], &manifest["quality"]), (&"anemll".into(), &Value::Null));
    assert!(folder.join("chat_template.jinja").exists());
    let options = ["--layout", "coreml-llm-cli", "--prefix", "tiny", "-c", "192"];
    let (said, folder) = compile("cli", &options);
    assert!(said.ok().contains("--local-model-prefix tiny"));
    let chunks = [1, 2, 3].map(|i| format!("tiny_chunk{i}.mlpackage"));
    let processors = ["cache", "logit"].map(|name| format!("{name}-processor.mlpackage"));
    assert_eq!(packages(&folder), [&processors[..], &chunks].concat());
    // What does not fit is said, and nothing is written.
    for (options, text) in [
        (&["--layout", "anemll", "-c", "100"][..], "multiple of the batch"),
        (&["--layout", "coreml-llm-cli", "-c", "64"], "multiple of the window"),
        (&["--layout", "anemll", "--tokens", "64,8"], "one number of tokens"),
        (&["--layout", "anemll", "--no-decode"], "--layout baton"),
        (&["--layout", "anemll", "--prefix", "a/b"], "--prefix"),
        (&["--layout", "anemll", "--prefix", "a_lut4"], "_lut"),
        (&["--prefix", "a"], "--layout"),
        (&["--layout", "ollama"], "coreml-llm-cli"),
    ] {
        compile("x", options).0.failed(2, text);
    }
    let many = ["--layout", "anemll", "-c", "128", "--chunks", "99"];
    compile("x", &many).0.failed(1, "99 chunks of");
    assert!(!home.path("x").exists());
}

#[test]
fn what_cannot_be_installed_is_told_before_anything_is_done() {
    let home = Home::new();
    let model = home.model();
    let install = |args: &[&str]| home.run(&[&["compile"], args, &["--install"]].concat());
    install(&[&model]).failed(1, "nothing to install");
    install(&["none.mlpackage"]).failed(1, "Manifest.json");
    install(&[&model, "--context", "64"]).failed(2, "--context needs a folder to write");
    install(&[&model, "--passes", "pow_to_mul"]).failed(2, "--passes needs a folder to write");
    install(&[&model, "--no-install"]).failed(2, "cannot be used with");
    if cfg!(not(target_os = "macos")) {
        let out = home.path("out");
        install(&[&model, "-o", out.to_str().unwrap()]).failed(1, "on a Mac only");
        assert!(!out.exists());
        install(&[&package("block")]).failed(1, "on a Mac only");
    }
}
