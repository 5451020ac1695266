//! `pull`, `list`, `show`, `rm` and `tokenize`.

use std::process::Stdio;

use serde_json::Value;

use crate::program::{Home, finish};
use crate::server::serve;
use crate::tiny::TEMPLATE;

#[test]
fn a_model_comes_is_listed_and_goes() {
    let home = Home::new();
    let url = serve(home.model().into());
    home.catalog("tiny", &url);
    let empty = home.run(&["list"]);
    assert!(empty.stderr.contains("baton pull tiny"), "{empty:?}");
    assert_eq!(empty.ok().lines().count(), 1);

    let pulled = home.run(&["pull", "tiny"]);
    for part in [format!("trying {url}"), "checksum".into(), "tiny is ready".into()] {
        assert!(pulled.stderr.contains(&part), "{part}: {pulled:?}");
    }
    assert_eq!(pulled.ok(), "");
    home.run(&["pull", "tiny"]).ok();

    let list = home.run(&["ls"]).ok();
    let lines: Vec<_> = list.lines().collect();
    let heads: Vec<_> = lines[0].split_whitespace().collect();
    assert_eq!(heads, ["NAME", "SIZE", "MODIFIED", "SOURCE"]);
    assert!(lines[1].starts_with("tiny ") && lines[1].contains("just now"), "{list}");
    assert!(lines[1].ends_with(&url), "{list}");
    assert_eq!(lines.len(), 2);

    let all = home.run(&["list", "--all"]).ok();
    let smollm2 = all.lines().find(|line| line.starts_with("smollm2 (smollm2:135m) "));
    assert!(smollm2.is_some_and(|line| line.contains("not pulled")), "{all}");
    let json: Value = serde_json::from_str(&home.run(&["list", "--all", "--json"]).ok()).unwrap();
    let smollm2 = json.as_array().unwrap().iter().find(|row| row["name"] == "smollm2").unwrap();
    assert_eq!(smollm2["aliases"], serde_json::json!(["smollm2:135m"]));
    let json: Value = serde_json::from_str(&home.run(&["list", "--json"]).ok()).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["complete"]), (&"tiny".into(), &true.into()));

    let gone = home.run(&["rm", "tiny"]);
    assert!(gone.stderr.contains("removed tiny"), "{gone:?}");
    assert_eq!(home.run(&["list"]).ok().lines().count(), 1);
    let again = home.run(&["rm", "tiny"]).failed(1, "not on this machine");
    assert!(again.stderr.contains("hint:"), "{again:?}");
}

#[test]
fn removing_goes_on_after_a_name_that_is_not_there() {
    let home = Home::new();
    home.catalog("tiny", &serve(home.model().into()));
    home.run(&["pull", "tiny"]).ok();
    let output = home.run(&["rm", "nothing", "tiny"]);
    assert_eq!(output.code, Some(1));
    assert!(
        output.stderr.contains("nothing") && output.stderr.contains("removed tiny"),
        "{output:?}"
    );
    // A file of the user's own is not ours to delete.
    home.run(&["rm", &home.model()]).failed(1, "not on this machine");
    assert!(home.path("tiny.gguf").exists());
}

#[test]
fn what_cannot_be_pulled_says_why() {
    let home = Home::new();
    let unknown = home.run(&["pull", "smollm"]).failed(1, "\"smollm\"");
    assert!(unknown.stderr.contains("smollm2"), "{unknown:?}");
    home.run(&["pull", "https://example.com/page"]).failed(1, ".gguf");
    let url = serve(home.model().into());
    home.run(&["pull", &url.replace("tiny", "absent")]).failed(1, "404");
    let mut offline = home.command(&["pull", &url]);
    let output = finish(offline.env("HF_HUB_OFFLINE", "1").stdin(Stdio::null()), b"");
    output.failed(1, "HF_HUB_OFFLINE");
}

#[test]
fn a_failure_is_said_once() {
    let home = Home::new();
    let mut command = home.command(&["pull", "hf:org/repo"]);
    let output = finish(command.env("HF_ENDPOINT", "garbage").stdin(Stdio::null()), b"");
    let output = output.failed(1, "HF_ENDPOINT");
    assert_eq!(output.stderr.matches("garbage").count(), 1, "{output:?}");
}

#[test]
fn a_home_that_cannot_be_used_is_said_by_every_command() {
    let home = Home::new();
    let model = home.model();
    let run = |args: &[&str], store: &str| {
        finish(home.command(args).env("BATON_HOME", store).stdin(Stdio::null()), b"")
    };
    for args in [&["list"][..], &["run", &model, "Hi"], &["pull", "smollm2"], &["rm", "smollm2"]] {
        run(args, &model).failed(1, "no folder");
    }
    let doctor = run(&["doctor"], &model);
    assert_eq!(doctor.code, Some(1));
    assert_eq!(doctor.stdout.matches("no folder").count(), 1, "{doctor:?}");
    if cfg!(target_os = "linux") {
        for args in [&["list"][..], &["run", &model, "Hi"]] {
            let output = run(args, "/proc/models");
            assert!(output.stderr.contains("cannot be kept in /proc/models"), "{output:?}");
            output.ok();
        }
    }
}

#[test]
fn show_tells_what_a_model_is_made_of() {
    let home = Home::new();
    let model = home.model();
    let text = home.run(&["show", &model]).ok();
    for part in ["Llama", "1048576 tokens", "F32", "MIT", "260 tokens", "<|im_end|>", "attn_q"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(home.run(&["show", &model, "--template"]).ok().trim_end(), TEMPLATE);
    assert_eq!(home.run(&["show", &model, "--license"]).ok(), "MIT\n");
    assert_eq!(home.run(&["show", &model, "--parameters"]).ok(), "");
    let metadata = home.run(&["show", &model, "--metadata"]).ok();
    assert!(metadata.contains("tokenizer.ggml.tokens = array of 260 strings"), "{metadata}");
    let json: Value = serde_json::from_str(&home.run(&["show", &model, "--json"]).ok()).unwrap();
    assert_eq!(json["architecture"], "Llama");
    assert_eq!(json["context"], 1 << 20);
    assert_eq!(json["template"], TEMPLATE);
    assert_eq!(json["tokenizer"]["end_tokens"], serde_json::json!([256, 258]));
    home.run(&["show", "./none.gguf"]).failed(1, "none.gguf");
}

#[test]
fn tokenize_prints_ids_and_pieces() {
    let home = Home::new();
    let model = home.model();
    let json = home.run(&["tokenize", &model, "Hi\n", "--json"]).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"count": 3, "ids": [72, 105, 10], "pieces": ["H", "i", "\n"]})
    );
    let output = home.run(&["tokenize", &model, "Hi"]);
    assert!(output.stderr.contains("2 tokens"), "{output:?}");
    assert_eq!(output.ok().lines().count(), 2);
    assert_eq!(home.run(&["tokenize", &model, "--count", "<|im_end|>"]).ok(), "1\n");
    assert_eq!(home.run(&["tokenize", &model, "--count", "--plain", "<|im_end|>"]).ok(), "10\n");
    assert_eq!(
        home.run_with_stdin(&["tokenize", &model, "-", "--count"], "né\n".as_bytes()).ok(),
        "4\n"
    );
    home.run_with_stdin(&["tokenize", &model, "-"], b"\xff").failed(1, "UTF-8");
}
