//! `baton embed`, with the small embedding models of the `models` crate.

use std::path::Path;

use serde_json::Value;

use crate::program::Home;

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/embeddings").join(name);
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

/// A copy of a golden model's folder without the GGUF file, which would be taken instead.
fn folder(home: &Home, name: &str) -> String {
    let copy = home.path(name);
    let mut todo = vec![(Path::new(&golden(name)).to_owned(), copy.clone())];
    while let Some((from, to)) = todo.pop() {
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                todo.push((entry.path(), target));
            } else if entry.file_name() != "model.gguf" {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    copy.to_str().unwrap().to_owned()
}

/// The vectors of the golden's texts.
fn expected(name: &str) -> Vec<(String, Vec<f64>)> {
    let json = std::fs::read(Path::new(&golden(name)).join("expected.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let numbers = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let texts = json["texts"].as_array().unwrap().iter();
    texts.map(|t| (t["text"].as_str().unwrap().to_owned(), numbers(&t["vector"]))).collect()
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
    }
}

fn vectors(lines: &str) -> Vec<Vec<f64>> {
    let vector = |line: &str| line.split(' ').map(|x| x.parse().unwrap()).collect();
    lines.lines().map(vector).collect()
}

#[test]
fn each_text_is_a_line_of_numbers() {
    let home = Home::new();
    let expected = expected("minilm");
    for model in [folder(&home, "minilm"), golden("minilm/model.gguf")] {
        for args in [
            &["embed", &model, &expected[0].0, &expected[1].0][..],
            &["embed", "-m", &model, &expected[0].0, &expected[1].0, "-t", "1"],
        ] {
            let output = home.run(args);
            assert_eq!(output.stderr, "");
            let found = vectors(&output.ok());
            assert_eq!(found.len(), 2);
            assert_close(&found[0], &expected[0].1);
            assert_close(&found[1], &expected[1].1);
        }
    }
}

#[test]
fn lines_of_standard_input_are_texts() {
    let home = Home::new();
    let (model, expected) = (folder(&home, "bge"), expected("bge"));
    let input = format!("{}\n\n{}\n", expected[1].0, expected[2].0);
    let found = vectors(&home.run_with_stdin(&["embed", &model], input.as_bytes()).ok());
    assert_eq!(found.len(), 2);
    assert_close(&found[0], &expected[1].1);
    assert_close(&found[1], &expected[2].1);
    home.run_with_stdin(&["embed", &model], b" \n").failed(2, "no text");
    home.run_with_stdin(&["embed", &model], b"\xff").failed(1, "UTF-8");
}

#[test]
fn json_is_one_object() {
    let home = Home::new();
    let model = folder(&home, "gemma");
    let long = "fox ".repeat(400);
    let args = ["embed", &model, "--json", "--dimensions", "8", "--truncate", "a fox", &long];
    let json: Value = serde_json::from_str(&home.run(&args).ok()).unwrap();
    assert_eq!(json["dimensions"], 8);
    assert_eq!(json["embeddings"].as_array().unwrap().len(), 2);
    assert_eq!(json["embeddings"][1].as_array().unwrap().len(), 8);
    assert_eq!(json["truncated"], serde_json::json!([false, true]));
    assert_eq!(json["tokens"][1], 256);
}

#[test]
fn what_cannot_be_embedded_is_said_in_a_line() {
    let home = Home::new();
    let model = folder(&home, "minilm");
    let long = "fox ".repeat(400);
    let failed = home.run(&["embed", &model, "a", &long]).failed(1, "text 1");
    assert!(failed.stderr.contains("reads up to 80"), "{failed:?}");
    home.run(&["embed", &model, "a", "--dimensions", "33"]).failed(1, "1 to 32");
    home.run(&["embed", &home.model(), "a"]).failed(1, "no embedding model");
    home.run(&["run", &model, "Hi"]).failed(1, "baton embed");
}
