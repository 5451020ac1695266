//! The default model itself, where the test data is there.

use std::path::PathBuf;

use serde_json::Value;

use crate::program::Home;

/// The model's file; none, and a word about it, if the data was not fetched.
fn smollm2() -> Option<String> {
    let Some(folder) = std::env::var_os("BATON_TEST_DATA").map(PathBuf::from) else {
        eprintln!("skipped: BATON_TEST_DATA is not set; scripts/test.sh fetches the data");
        return None;
    };
    let path = folder.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: run scripts/test-data.sh", path.display());
    Some(path.to_str().unwrap().to_owned())
}

#[test]
fn the_default_model_gives_a_sensible_answer() {
    let Some(model) = smollm2() else { return };
    let home = Home::new();
    let args = ["run", &model, "Why is the sky blue?", "--json", "--temp", "0", "-n", "40"];
    let json: Value = serde_json::from_str(&home.run(&args).ok()).unwrap();
    let text = json["text"].as_str().unwrap();
    assert!(text.contains("light") && text.contains("scatter"), "{text}");
    assert!(!text.contains("<|"), "{text}");
    assert_eq!(json["tokens"]["prompt"], 36);
    assert_eq!(json["tokens"]["generated"], 40);
}

#[test]
fn the_second_load_gives_the_same_answer_and_neither_takes_much_memory() {
    let Some(model) = smollm2() else { return };
    let home = Home::new();
    let args = [
        "run",
        &model,
        "Why is the sky blue?",
        "--json",
        "--temp",
        "0",
        "-n",
        "16",
        "--ctx",
        "1024",
    ];
    let answers: [Value; 2] =
        std::array::from_fn(|_| serde_json::from_str(&home.run(&args).ok()).unwrap());
    assert_eq!(answers[0]["text"], answers[1]["text"]);
    assert_eq!(std::fs::read_dir(home.path("store/packed")).unwrap().count(), 1);
    // Keys and values of 30 layers, 3 heads, 64 dimensions, in two bytes each.
    let cache = 1024 * 30 * 3 * 64 * 2 * 2;
    let most = std::fs::metadata(&model).unwrap().len() + cache + (64 << 20);
    for answer in &answers {
        let Some(peak) = answer["peak_memory_bytes"].as_u64() else { continue };
        assert!(peak <= most, "{peak} bytes, more than {most}");
    }
}

#[test]
fn it_is_described_as_it_is() {
    let Some(model) = smollm2() else { return };
    let json = Home::new().run(&["show", &model, "--json"]).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["architecture"], "Llama");
    assert_eq!(json["layers"], 30);
    assert_eq!(json["context"], 8192);
    assert_eq!(json["parameters"], 134_515_008);
    let kinds = json["tensors"].as_array().unwrap();
    assert!(kinds.iter().any(|kind| kind["dtype"] == "Q4_1"), "{kinds:?}");
}
