//! Folders that a model was compiled into, run as models, and in the place of packages made in memory.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::Home;
use crate::tiny::ANSWER;

const PROMPT: &str = "Why is the sky blue? And why is it red in the evening?";

/// The folder that the model was compiled into.
fn compiled(home: &Home, name: &str, more: &[&str]) -> String {
    let folder = home.path(name).to_str().unwrap().to_owned();
    let model = home.model();
    let own = if more.contains(&"--layout") { &[][..] } else { &["--no-quality"] };
    let args = [&["compile", &model, "-o", &folder], own, more].concat();
    home.run(&args).ok();
    folder
}

fn json(output: crate::program::Output) -> Value {
    serde_json::from_str(&output.ok()).unwrap()
}

#[test]
fn a_folder_runs_without_the_model_that_it_was_made_of() {
    let home = Home::new();
    for (name, more) in [("one", &["-c", "256"][..]), ("two", &["-c", "256", "--chunks", "1"])] {
        let folder = compiled(&home, name, more);
        let answered = json(home.run(&["run", &folder, PROMPT, "--temp", "0", "--json"]));
        assert_eq!(answered["text"], ANSWER, "{answered}");
        let phases = &answered["phases"];
        assert_eq!(
            (&phases["prefill_unit"], &phases["decode_unit"]),
            (&"coreml".into(), &"coreml".into())
        );
        // Its context is what it was compiled for.
        let said = home.run(&["run", &folder, PROMPT, "--verbose"]);
        assert!(said.stderr.contains("the model is there as packages"), "{said:?}");
        let long = home.run(&["run", &folder, PROMPT, "-c", "512"]);
        assert!(!long.stderr.contains("trained for"), "{long:?}");
        long.failed(1, "a context of 512 tokens");
        let words = "word ".repeat(400);
        let remedy = "compile the model again with a larger --context";
        home.run(&["run", &folder, &words]).failed(1, remedy);
        home.run(&["run", &folder, PROMPT, "--decode", "cpu"]).failed(1, "--packages");
    }
    let folder = home.path("one").to_str().unwrap().to_owned();
    let facts = |model: &str| {
        let shown = home.run(&["show", model]).ok();
        let told = |line: &&str| ["parameters", "layers"].iter().any(|w| line.contains(w));
        shown.lines().filter(told).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(!facts(&folder).is_empty());
    assert_eq!(facts(&folder), facts(&home.model()));
    // What is its own is the packages'.
    let shown = json(home.run(&["show", &folder, "--json"]));
    assert_eq!((&shown["context"], &shown["packages"]["weights"]), (&256.into(), &"fp16".into()));
    assert_eq!(shown["tensors"], Value::Array(vec![]));
    let text = home.run(&["show", &folder]).ok();
    assert!(text.contains("1 Core ML package, fp16") && text.contains("decode"), "{text}");
    assert!(text.contains("256 tokens") && !text.contains("Tensors"), "{text}");
    // A report is of all packages.
    let two = home.path("two").to_str().unwrap().to_owned();
    let report = json(home.run(&["report", &two, "--json"]));
    assert_eq!(report["packages"].as_array().unwrap().len(), 2, "{report}");
    let least = report["least_flops_share"].as_f64().unwrap();
    let shares = report["packages"].as_array().unwrap().iter();
    let shares = shares.map(|package| package["least_flops_share"].as_f64().unwrap());
    assert_eq!(shares.fold(1.0, f64::min), least);
    let page = home.path("two.html").to_str().unwrap().to_owned();
    let text = home.run(&["report", &two, "--html", &page]).ok();
    assert_eq!(text.matches("\n== ").count(), 3, "{text}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("chunk_01_of_01") || page.matches("<h1>").count() == 3, "{page}");
    // Its name alone is that of no model.
    home.run(&["show", "one"]).failed(1, "did you mean ./one");
    home.run(&["run", "one", "Hi", "there"]).failed(1, "did you mean ./one");
    let ids = |model: &str| home.run(&["tokenize", model, PROMPT]).ok();
    assert_eq!(ids(&folder), ids(&home.model()));
    home.run(&["compile", &folder, "-o", "x"]).failed(1, "name the model itself");
    let rows = json(home.run(&["bench", &folder, "-p", "8", "-n", "2", "-r", "1", "-o", "json"]));
    assert!(
        rows.as_array().unwrap().iter().all(|row| row["avg_ts"].as_f64() > Some(0.0)),
        "{rows}"
    );
    assert_eq!(rows[0]["backends"], "coreml");
    // There is nothing to choose, and no profile of the model is touched.
    home.run(&["tune", &folder, "--seconds", "1"]).failed(1, "there is nothing to choose");
    assert!(!home.path("store/profiles").exists());
    let cpu = ["prefill-server", &folder, "--unit", "cpu", "--listen", "127.0.0.1:0"];
    home.run(&cpu).failed(1, "holds packages alone");
}

#[test]
fn what_folders_for_other_programs_cannot_have_is_refused() {
    let home = Home::new();
    let (model, folder) = (home.model(), home.path("out").to_str().unwrap().to_owned());
    let layout = ["compile", &model, "-o", &folder, "-c", "128", "--layout", "coreml-llm-cli"];
    for option in ["--no-embeddings", "--no-quality", "--no-decode"] {
        home.run(&[&layout[..], &[option]].concat()).failed(2, option);
    }
    assert!(!Path::new(&folder).exists());
}

#[test]
fn names_of_files_command_no_terminal() {
    let home = Home::new();
    let (folder, name) = (compiled(&home, "out", &["-c", "256"]), "x\u{1b}[2J\u{9b}1m\ny");
    let at = |name: &str| Path::new(&folder).join(name);
    let mut outline: Value =
        serde_json::from_slice(&fs::read(at("outline.json")).unwrap()).unwrap();
    outline["name"] = name.into();
    fs::write(at("outline.json"), outline.to_string()).unwrap();
    let is_harmless =
        |text: &str| !text.chars().any(|c| c.is_control() && c != '\n') && !text.contains("\ny");
    let shown = home.run(&["show", &folder]).ok();
    assert!(shown.contains("[2J") && is_harmless(&shown), "{shown:?}");
    let failed = home.run(&["run", &folder, PROMPT, "--verbose"]);
    assert!(is_harmless(&failed.stderr), "{failed:?}");
}

#[test]
fn prompts_are_read_by_the_packages_of_a_folder_and_answers_written_on_the_cpu() {
    let home = Home::new();
    let model = home.model();
    let folder = compiled(&home, "out", &["-c", "256", "--no-embeddings", "--no-decode"]);
    let relay = ["--prefill", "coreml", "--decode", "cpu", "--crossover", "4", "--json"];
    let args =
        [&["run", &model, PROMPT, "--temp", "0", "--packages", &folder], &relay[..]].concat();
    let answered = json(home.run(&args));
    assert_eq!(answered["text"], ANSWER);
    let tokens = |of: &str| answered["tokens"][of].as_u64().unwrap();
    assert_eq!(tokens("handed_over"), tokens("prefilled") - 1, "{answered}");
    let args = ["run", &model, PROMPT, "--packages", &folder];
    home.run(&args).failed(2, "name it with --prefill or --decode");
    // Without embeddings it needs the model.
    home.run(&["run", &folder, PROMPT]).failed(1, "compile the model again");
}

#[test]
fn folders_that_are_damaged_or_of_an_older_version_are_refused() {
    let home = Home::new();
    let folder = compiled(&home, "out", &["-c", "256"]);
    let at = |name: &str| Path::new(&folder).join(name);
    let run = || home.run(&["run", &folder, PROMPT]);
    run().ok();
    let changed = |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, expected: &str| {
        let bytes = fs::read(at(name)).unwrap();
        fs::write(at(name), change(bytes.clone())).unwrap();
        run().failed(1, expected);
        fs::write(at(name), bytes).unwrap();
    };
    let flipped = |mut bytes: Vec<u8>| {
        let middle = bytes.len() - 40;
        bytes[middle] ^= 1;
        bytes
    };
    let without = |key: &'static str| {
        move |bytes: Vec<u8>| {
            let mut value: Value = serde_json::from_slice(&bytes).unwrap();
            value.as_object_mut().unwrap().remove(key);
            value.to_string().into_bytes()
        }
    };
    changed("embeddings.gguf", &flipped, "embeddings.gguf");
    changed("model.mlpackage/Data/com.apple.CoreML/weights/weight.bin", &flipped, "weight.bin");
    changed("baton.json", &without("files"), "lists no files");
    changed("baton.json", &without("format"), "compile the model again");
    changed("baton.json", &|bytes| bytes[..bytes.len() / 2].to_vec(), "baton.json");
    changed("outline.json", &|bytes| bytes[..bytes.len() / 2].to_vec(), "outline.json");
    changed("outline.json", &without("fingerprint"), "no fingerprint");
    for name in ["embeddings.gguf", "chat_template.jinja", "outline.json"] {
        let bytes = fs::read(at(name)).unwrap();
        fs::remove_file(at(name)).unwrap();
        let output = run();
        assert_eq!(output.code, Some(1), "{name}: {output:?}");
        fs::write(at(name), bytes).unwrap();
    }
    run().ok();
}

#[test]
fn folders_laid_out_for_the_programs_of_others_run_as_well() {
    let home = Home::new();
    for (layout, told) in [("anemll", "embeddings"), ("coreml-llm-cli", "chunk1")] {
        let options = ["--layout", layout, "--prefix", "tiny", "-c", "256", "--tokens", "16"];
        let folder = compiled(&home, layout, &options);
        let at = |name: &str| Path::new(&folder).join(name);
        let answer = || json(home.run(&["run", &folder, PROMPT, "--temp", "0", "--json"]));
        let answered = answer();
        assert_eq!(answered["text"], ANSWER, "{layout}: {answered}");
        assert_eq!(answered["phases"]["decode_unit"], "coreml");
        // The model that they were made of goes on with what they have read.
        let model = home.model();
        let relay = ["--prefill", "coreml", "--decode", "cpu", "--crossover", "4", "--json"];
        let relay = [&["run", &model, PROMPT, "--temp", "0", "--packages", &folder], &relay[..]];
        let answered = json(home.run(&relay.concat()));
        assert_eq!(answered["text"], ANSWER, "{layout}: {answered}");
        let tokens = |of: &str| answered["tokens"][of].as_u64().unwrap();
        assert_eq!(tokens("handed_over"), tokens("prefilled") - 1, "{answered}");
        // Damaged, then without the description that shows it.
        let file = at(&format!("tiny_{told}.mlpackage/Manifest.json"));
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text} ")).unwrap();
        home.run(&["run", &folder, PROMPT]).failed(1, "not the file that was compiled");
        fs::write(&file, text).unwrap();
        fs::remove_file(at("baton.json")).unwrap();
        assert_eq!(answer()["text"], ANSWER, "{layout} without baton.json");
        home.run(&relay.concat()).failed(1, "run the folder by itself");
        let long = home.run(&["run", &folder, PROMPT, "-c", "512"]);
        assert!(!long.stderr.contains("trained for"), "{long:?}");
        long.failed(1, "room for 256");
        let words = "word ".repeat(400);
        let remedy = "compile the model again with a larger --context";
        home.run(&["run", &folder, &words]).failed(1, remedy);
        if cfg!(not(target_os = "macos")) {
            home.run(&["compile", &folder, "--install"]).failed(1, "on a Mac only");
        }
        home.run(&["run", &folder, PROMPT, "--decode", "cpu"]).failed(1, "--packages");
        home.run(&["compile", &folder, "-o", "x"]).failed(1, "name the model itself");
        let shown = home.run(&["show", &folder]).ok();
        let packages = format!("laid out for {layout}");
        for text in ["256 tokens", "tiny_", &packages, "Template"] {
            assert!(shown.contains(text), "{text} in {shown}");
        }
        let shown = json(home.run(&["show", &folder, "--json"]));
        assert_eq!(shown["packages"]["layout"], layout);
        let said = home.run(&["report", &folder]).ok();
        assert!(said.contains("tiny_") && said.contains("on the Neural Engine"), "{said}");
        let report = json(home.run(&["report", &folder, "--json"]));
        assert!(report["packages"].as_array().unwrap().len() >= 3, "{report}");
        let ids = |model: &str| home.run(&["tokenize", model, PROMPT]).ok();
        assert_eq!(ids(&folder), ids(&model));
        let bench = ["bench", &folder, "-p", "8", "-n", "2", "-r", "1", "-o", "json"];
        let rows = json(home.run(&bench));
        assert!(rows.as_array().unwrap().iter().all(|row| row["avg_ts"].as_f64() > Some(0.0)));
        // Without a tokenizer it says what to get, and compiled packages are for a Mac.
        fs::rename(at("tokenizer.gguf"), at("x")).unwrap();
        home.run(&["run", &folder, PROMPT]).failed(1, "put the tokenizer.json");
        fs::rename(at("x"), at("tokenizer.gguf")).unwrap();
        let package = at(&format!("tiny_{told}.mlpackage"));
        fs::rename(&package, package.with_extension("mlmodelc")).unwrap();
        home.run(&["run", &folder, PROMPT]).failed(1, "metadata.json");
    }
}

#[test]
fn folders_that_have_lost_their_description_are_told_from_models() {
    let home = Home::new();
    for (name, more, lost, text) in [
        ("own", &["-c", "256"][..], "baton.json", "its baton.json is missing"),
        ("anemll", &["-c", "256", "--layout", "anemll"], "meta.yaml", "no meta.yaml"),
        (
            "cli",
            &["-c", "256", "--layout", "coreml-llm-cli"],
            "cache-processor.mlpackage",
            "cache-processor",
        ),
    ] {
        let folder = compiled(&home, name, more);
        let at = |name: &str| Path::new(&folder).join(name);
        if lost != "baton.json" {
            fs::remove_file(at("baton.json")).unwrap();
        }
        fs::rename(at(lost), home.path("lost")).unwrap();
        for command in [&["run", &folder, PROMPT][..], &["show", &folder], &["pull", &folder]] {
            let failed = home.run(command);
            assert!(failed.stderr.contains("compile the model again"), "{failed:?}");
            failed.failed(1, text);
        }
        let model = home.model();
        let beside = ["run", &model, PROMPT, "--prefill", "coreml", "--packages", &folder];
        home.run(&beside).failed(1, text);
        fs::rename(home.path("lost"), at(lost)).unwrap();
        // A name that commands terminals is a name.
        let strange = home.path("a\u{1b}[2J").to_str().unwrap().to_owned();
        fs::rename(&folder, &strange).unwrap();
        let answered = json(home.run(&["run", &strange, PROMPT, "--temp", "0", "--json"]));
        assert_eq!(answered["text"], ANSWER, "{answered}");
        fs::remove_dir_all(&strange).unwrap();
    }
}
