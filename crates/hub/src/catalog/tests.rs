use super::*;

fn user(text: &str) -> Result<Catalog> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.toml");
    std::fs::write(&path, text).unwrap();
    Catalog::load(Some(&path))
}

#[test]
fn the_built_in_catalog_is_valid() {
    let catalog = Catalog::load(None).unwrap();
    assert_eq!(catalog.default_model(), "smollm2");
    let smol = catalog.get("smollm2").unwrap();
    assert_eq!(smol.size, Some(98_362_432));
    assert!(smol.sha256.is_some());
    assert!(smol.sources.len() >= 2);
    let gemma = catalog.get("gemma3:270m").unwrap();
    assert!(gemma.sources.iter().any(|s| matches!(s, Source::Pypi(wheels) if wheels.len() == 4)));
    for name in ["llama3.2:1b", "qwen3:0.6b", "qwen3:30b-a3b", "mistral:7b", "gpt-oss:20b"] {
        assert!(catalog.get(name).is_some(), "{name}");
    }
    assert_eq!(catalog.get("smollm2:135m").map(|e| &*e.name), Some("smollm2"));
}

#[test]
fn the_user_adds_and_replaces() {
    let catalog = user(
        r#"
        default = "mine"
        [models.mine]
        title = "My own"
        sources = ["https://x.org/mine.gguf"]
        [models.smollm2]
        title = "Another"
        sources = ["hf:o/r:Q8_0"]
        "#,
    )
    .unwrap();
    assert_eq!(catalog.default_model(), "mine");
    assert_eq!(catalog.get("smollm2").unwrap().title, "Another");
    assert!(catalog.get("gemma3:270m").is_some());
}

#[test]
fn mistakes_are_named() {
    let entry = |rest: &str| format!("[models.m]\ntitle = \"t\"\n{rest}");
    let table = [
        (entry("sources = []"), "no sources"),
        (entry("sources = [\"ftp://x\"]"), "no source"),
        (entry("sources = [\"pypi:a#b\"]"), "pypi:PACKAGE==VERSION#PATH"),
        (entry("sources = [\"pypi:-r==1#b\"]"), "pypi:PACKAGE==VERSION#PATH"),
        (entry("sources = [\"pypi:a==1#../b\"]"), "could leave"),
        (entry("sources = [\"pypi:a==1#b\"]"), "needs file, size and sha256"),
        (entry("sources = [\"hf:o/r\"]\nfile = \"../x\""), "could leave"),
        (entry("sources = [\"hf:o/r\"]\nfile = \"a/x\""), "without folders"),
        (entry("sources = [\"hf:o/r\"]\nsha256 = \"12\""), "SHA-256"),
        (entry("sources = [\"hf:o/r\"]\ncolour = 1"), "colour"),
        ("[models.\"A b\"]\ntitle = \"t\"\nsources = [\"hf:o/r\"]".into(), "name"),
        ("default = \"nope\"".into(), "nope"),
        ("[[".into(), "TOML"),
    ];
    for (text, expected) in table {
        let message = user(&text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}\n{message}");
    }
}

#[test]
fn near_names_are_offered() {
    let catalog = Catalog::load(None).unwrap();
    assert_eq!(catalog.near("smolm2", &[])[0], "smollm2");
    assert!(catalog.near("qwen3", &[]).iter().all(|name| name.starts_with("qwen3")));
    assert!(catalog.near("xyzzy-plugh", &[]).is_empty());
}
