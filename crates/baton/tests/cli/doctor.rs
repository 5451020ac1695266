//! `baton doctor`.

use std::process::Stdio;

use serde_json::Value;

use crate::program::{Home, finish};

#[test]
fn it_looks_at_everything_and_creates_nothing() {
    let home = Home::new();
    let output = home.run(&["doctor"]);
    assert!(!output.stderr.contains("XDG_RUNTIME_DIR"), "{output:?}");
    let text = output.ok();
    for part in
        ["CPU", "kernels", "threads", "Memory", "cpu: yes", "gpu: ", "coreml: yes", "ane: no"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains(home.path("store").to_str().unwrap()), "{text}");
    assert!(!text.contains("Sources"), "{text}");
    assert!(!home.path("store").exists());
    let json: Value = serde_json::from_str(&home.run(&["doctor", "--json"]).ok()).unwrap();
    assert!(json["memory"]["total_bytes"].as_u64() >= json["memory"]["available_bytes"].as_u64());
    assert!(json["cpu"]["threads"].as_u64() >= Some(1));
    assert_eq!(json["store"]["writable"], true);
    assert_eq!(json["sources"], Value::Null);
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let home = Home::new();
    let doctor = |key: &str, value: &str| {
        let mut command = home.command(&["doctor", "--json"]);
        let output = finish(command.env(key, value).stdin(Stdio::null()), b"");
        assert_eq!(output.code, Some(1), "{output:?}");
        let json: Value = serde_json::from_str(&output.stdout).unwrap();
        let problems = json["problems"].as_array().unwrap().clone();
        assert!(problems.iter().all(|p| p["advice"].as_str().is_some_and(|a| !a.is_empty())));
        problems.iter().map(|problem| problem["what"].to_string()).collect::<String>()
    };
    assert!(doctor("BATON_CPU", "sse9").contains("sse9"));
    std::fs::write(home.path("file"), "").unwrap();
    assert!(doctor("BATON_HOME", home.path("file").to_str().unwrap()).contains("cannot be kept"));
    std::fs::create_dir_all(home.path("bad")).unwrap();
    std::fs::write(home.path("bad/catalog.toml"), "models = 3").unwrap();
    assert!(doctor("BATON_CONFIG", home.path("bad").to_str().unwrap()).contains("catalog"));
}
