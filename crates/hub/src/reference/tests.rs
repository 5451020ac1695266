use super::*;

fn hf(repo: &str, revision: Option<&str>, pick: Option<&str>) -> Reference {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Reference::Hf(HfRef { repo: repo.into(), revision: owned(revision), pick: owned(pick) })
}

#[test]
fn every_form_is_read() {
    let name = |text: &str| Reference::Name(text.into());
    let path = |text: &str| Reference::Path(text.into());
    let table = [
        ("smollm2", name("smollm2")),
        ("Gemma3:270M", name("gemma3:270m")),
        ("smollm2:latest", name("smollm2")),
        (" qwen3:30b-a3b ", name("qwen3:30b-a3b")),
        ("hf:o/r", hf("o/r", None, None)),
        ("hf://o/r", hf("o/r", None, None)),
        ("hf:o/r:Q4_K_M", hf("o/r", None, Some("Q4_K_M"))),
        ("hf:o/r@v1.0:sub/x.gguf", hf("o/r", Some("v1.0"), Some("sub/x.gguf"))),
        ("hf.co/o/r:Q4_K_M", hf("o/r", None, Some("Q4_K_M"))),
        ("huggingface.co/o/r", hf("o/r", None, None)),
        ("https://huggingface.co/o/r", hf("o/r", None, None)),
        ("https://hf.co/o/r/blob/main/a%20b.gguf?x=1", hf("o/r", None, Some("a b.gguf"))),
        ("https://huggingface.co/o/r/resolve/v2/x.gguf", hf("o/r", Some("v2"), Some("x.gguf"))),
        ("https://huggingface.co/o/r/tree/main", hf("o/r", None, None)),
        ("mlx-community/Qwen3-4B-4bit", hf("mlx-community/Qwen3-4B-4bit", None, None)),
        ("https://x.org/a/b.gguf?d=1", Reference::Url("https://x.org/a/b.gguf?d=1".into())),
        ("http://localhost:1/b.GGUF", Reference::Url("http://localhost:1/b.GGUF".into())),
        ("./x", path("./x")),
        ("/abs/dir", path("/abs/dir")),
        ("sub/x.gguf", path("sub/x.gguf")),
        ("..", path("..")),
    ];
    for (text, expected) in table {
        assert_eq!(Reference::parse(text).unwrap(), expected, "{text}");
    }
}

#[test]
fn canonical_spelling_reads_back() {
    for text in ["smollm2", "hf:o/r", "hf:o/r@rev:Q8_0", "https://x.org/a.gguf", "/a/b.gguf"] {
        assert_eq!(Reference::parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn what_names_no_model_is_an_error() {
    let bad = [
        "",
        "  ",
        "Why is the sky blue?",
        "a\0b",
        "hf:",
        "hf:o",
        "hf:o/r/x",
        "hf:../r",
        "hf:o/..",
        "hf:o/r:../../etc/passwd",
        "hf:o/r:/etc/passwd",
        "hf:o/r:",
        "hf:o/r@",
        "hf:o/r@..",
        "a/b/c/d",
        "https://",
        "https://x.org",
        "https://x.org/page.html",
        "https://user:pw@x.org/a.gguf",
        "https://x.org/..%2f..%2fa.gguf",
        "https://x.org/a b.gguf",
        "https://huggingface.co/o/r/blob/main/..%2f..%2fx",
        "https://huggingface.co/o/r/discussions/1",
        "name:",
        "-flag",
    ];
    for text in bad {
        let error = Reference::parse(text).unwrap_err();
        assert!(matches!(error, Error::BadReference { .. }), "{text:?}: {error}");
    }
}
