use super::*;
use crate::Silent;

/// A cache as huggingface_hub lays it out.
fn cache(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("models--o--r");
    let snapshot = repo.join("snapshots/abc123");
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::create_dir_all(repo.join("blobs")).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(repo.join("refs/main"), "abc123").unwrap();
    for (name, bytes) in files {
        let blob = repo.join("blobs").join(Sha256::of(bytes).to_string());
        std::fs::write(&blob, bytes).unwrap();
        let link = snapshot.join(name);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&blob, link).unwrap();
    }
    dir
}

fn names(cache: &Path, reference: &str) -> Option<Vec<String>> {
    let found = lookup(cache, &reference.parse().unwrap())?;
    Some(found.into_iter().map(|cached| cached.file.path).collect())
}

#[test]
fn whole_models_are_found() {
    let dir = cache(&[("M-Q4_K_M.gguf", b"GGUF1"), ("q/M-Q8_0-00001-of-00002.gguf", b"GGUF2")]);
    assert_eq!(names(dir.path(), "o/r:Q4_K_M").unwrap(), ["M-Q4_K_M.gguf"]);
    assert_eq!(names(dir.path(), "o/r@abc123:Q4_K_M").unwrap(), ["M-Q4_K_M.gguf"]);
    // The second shard is not there.
    assert_eq!(names(dir.path(), "o/r:Q8_0"), None);
    assert_eq!(names(dir.path(), "o/r@other:Q4_K_M"), None);
    assert_eq!(names(dir.path(), "o/x"), None);
}

#[test]
fn a_checkpoint_without_its_tokenizer_is_not_whole() {
    let part: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", b"x")];
    assert_eq!(names(cache(&part).path(), "o/r"), None);
    let whole = [part[0], part[1], ("tokenizer.json", b"{ }")];
    assert_eq!(names(cache(&whole).path(), "o/r").unwrap().len(), 3);
}

#[test]
fn known_content_is_found_in_any_revision() {
    let dir = cache(&[("M.gguf", b"GGUF1")]);
    let hf = "o/r@another:M.gguf".parse().unwrap();
    assert_eq!(lookup(dir.path(), &hf), None);
    let found = by_digest(dir.path(), &hf, Sha256::of(b"GGUF1")).unwrap();
    assert_eq!((found.file.path.as_str(), found.file.size), ("M.gguf", Some(5)));
    assert_eq!(by_digest(dir.path(), &hf, Sha256::of(b"GGUF2")), None);
}

#[test]
fn content_is_checked() {
    let dir = cache(&[("M.gguf", b"GGUF1")]);
    let mut found = lookup(dir.path(), &"o/r".parse().unwrap()).unwrap().remove(0);
    let want = |size, bytes: &[u8]| Want {
        file: "M.gguf",
        origin: "test",
        size: Some(size),
        sha256: Some(Sha256::of(bytes)),
    };
    assert!(matches(&found, &want(5, b"GGUF1"), &mut Silent).unwrap());
    assert!(!matches(&found, &want(6, b"GGUF1"), &mut Silent).unwrap());
    assert!(!matches(&found, &want(5, b"GGUF2"), &mut Silent).unwrap());
    // A cache made of plain files does not name them by digest.
    found.file.sha256 = None;
    assert!(matches(&found, &want(5, b"GGUF1"), &mut Silent).unwrap());
    assert!(!matches(&found, &want(5, b"GGUF2"), &mut Silent).unwrap());
}
