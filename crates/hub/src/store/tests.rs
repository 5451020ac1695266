use super::*;
use crate::Silent;

/// A store with a Hugging Face cache that holds `o/r`, so that models come without network.
fn store(dir: &Path) -> Store {
    let snapshot = dir.join("hf/models--o--r/snapshots/abc");
    std::fs::create_dir_all(dir.join("hf/models--o--r/refs")).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(dir.join("hf/models--o--r/refs/main"), "abc").unwrap();
    std::fs::write(snapshot.join("M-Q4_0.gguf"), b"GGUF four").unwrap();
    let mut settings = Settings::at(dir.join("home"));
    settings.hf_cache = Some(dir.join("hf"));
    settings.offline = true;
    Store::with_settings(settings).unwrap()
}

/// Puts a model with one blob into the store, as a finished download would.
fn plant(store: &Store, name: &str, bytes: &[u8]) {
    let digest = Sha256::of(bytes);
    std::fs::create_dir_all(store.subfolder("blobs").unwrap()).unwrap();
    std::fs::write(store.blob(&digest), bytes).unwrap();
    let file = manifest::ManifestFile {
        name: "m.gguf".into(),
        size: bytes.len() as u64,
        sha256: Some(digest),
        external: None,
    };
    let folder = store.folder(name);
    std::fs::create_dir_all(&folder).unwrap();
    Manifest::new(name.into(), "test".into(), vec![file]).write(&folder).unwrap();
}

#[test]
fn a_cached_model_is_linked_and_its_removal_leaves_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let reference = store.resolve("hf:o/r:Q4_0").unwrap();
    let model = store.get(&reference, &mut Silent).unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), b"GGUF four");
    assert_eq!((model.name.as_str(), model.size), ("hf:o/r:Q4_0", 9));
    assert_eq!(store.list().unwrap(), std::slice::from_ref(&model));
    assert_eq!(store.find("hf.co/o/r:Q4_0").unwrap(), Some(model));
    assert_eq!(store.remove("o/r:Q4_0").unwrap(), 0);
    assert!(store.list().unwrap().is_empty());
    assert!(dir.path().join("hf/models--o--r/snapshots/abc/M-Q4_0.gguf").exists());
    assert!(matches!(store.remove("o/r:Q4_0"), Err(Error::NotInstalled { .. })));
}

#[test]
fn shared_bytes_go_with_the_last_model() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    plant(&store, "hf:a/b:Q4_0", b"GGUF shared");
    plant(&store, "hf:c/d:Q4_0", b"GGUF shared");
    assert_eq!(store.remove("hf:a/b:Q4_0").unwrap(), 0);
    let left = store.find("hf:c/d:Q4_0").unwrap().unwrap();
    assert_eq!(std::fs::read(&left.path).unwrap(), b"GGUF shared");
    assert_eq!(store.remove("hf:c/d:Q4_0").unwrap(), 11);
    assert_eq!(std::fs::read_dir(dir.path().join("home/blobs")).unwrap().count(), 0);
}

#[test]
fn nothing_outside_the_store_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let mine = dir.path().join("mine.gguf");
    std::fs::write(&mine, b"GGUF").unwrap();
    assert!(store.remove(mine.to_str().unwrap()).is_err());
    for name in ["..", ".", "/", "../home", "hf:../.."] {
        assert!(store.remove(name).is_err(), "{name}");
    }
    // A model whose folder holds a link elsewhere loses the link, not what it points to.
    plant(&store, "hf:a/b", b"GGUF x");
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), b"kept").unwrap();
    std::os::unix::fs::symlink(&outside, store.folder("hf:a/b").join("link")).unwrap();
    store.remove("hf:a/b").unwrap();
    assert!(mine.exists() && outside.join("kept").exists());
}

#[test]
fn damage_is_shown_and_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    plant(&store, "hf:a/b", b"GGUF x");
    std::fs::write(store.blob(&Sha256::of(b"GGUF x")), b"GGU").unwrap();
    plant(&store, "hf:c/d", b"GGUF y");
    for text in ["", "{", "{\"version\":9}", "[]"] {
        std::fs::write(store.folder("hf:c/d").join(manifest::FILE), text).unwrap();
        let listed = store.list().unwrap();
        let names: Vec<_> = listed.iter().map(|m| (m.name.as_str(), m.complete)).collect();
        assert_eq!(names, [("hf:a/b", false), ("hf:c/d", false)]);
    }
    assert_eq!(store.find("hf:a/b").unwrap(), None);
    assert_eq!(store.find("hf:c/d").unwrap(), None);
    store.remove("hf:c/d").unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn paths_are_opened_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let put = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"GGUF").unwrap();
        path.to_str().unwrap().to_owned()
    };
    let get = |path: &str| store.get(&store.resolve(path)?, &mut Silent);

    let single = put("single/x.gguf");
    assert_eq!(get(&single).unwrap().path, Path::new(&single));
    assert_eq!(get(Path::new(&single).parent().unwrap().to_str().unwrap()).unwrap().size, 4);

    let second = put("split/x-00002-of-00002.gguf");
    assert!(matches!(get(&second), Err(Error::MissingShard { missing: 1, .. })));
    let first = put("split/x-00001-of-00002.gguf");
    let model = get(&second).unwrap();
    assert_eq!((model.path.as_path(), model.files.len()), (Path::new(&first), 2));

    put("checkpoint/config.json");
    put("checkpoint/model.safetensors");
    let folder = dir.path().join("checkpoint");
    let model = get(folder.to_str().unwrap()).unwrap();
    assert_eq!((model.path.as_path(), model.files.len()), (folder.as_path(), 2));

    // All that a model was compiled into is one thing.
    put("packages/baton.json");
    put("packages/embeddings.gguf");
    put("packages/x.mlpackage/Data/y/model.mlmodel");
    let folder = dir.path().join("packages");
    let model = get(folder.to_str().unwrap()).unwrap();
    assert_eq!((model.path.as_path(), model.files.len(), model.size), (folder.as_path(), 3, 12));

    // So is what other projects' programs run, also named by its description.
    for (name, described) in [("anemll", "meta.yaml"), ("cli", "cache-processor.mlmodelc/x")] {
        let description = put(&format!("{name}/{described}"));
        std::fs::write(&description, "# of it\nmodel_info:\n  version: 1\n").unwrap();
        put(&format!("{name}/tokenizer.gguf"));
        put(&format!("{name}/a_chunk1.mlmodelc/weights/weight.bin"));
        let folder = dir.path().join(name);
        let model = get(folder.to_str().unwrap()).unwrap();
        assert_eq!((model.path.as_path(), model.files.len()), (folder.as_path(), 3));
        if described == "meta.yaml" {
            assert_eq!(get(&description).unwrap().path, folder);
        }
    }

    // Whoever loads packages without a description says what they lack, but a model beside them is one.
    put("lost/outline.json");
    put("lost/embeddings.gguf");
    put("lost/x.mlpackage/Data/y/model.mlmodel");
    let folder = dir.path().join("lost");
    assert_eq!(get(folder.to_str().unwrap()).unwrap().path, folder);
    let file = put("lost/whole.gguf");
    std::fs::remove_file(folder.join("embeddings.gguf")).unwrap();
    assert_eq!(get(folder.to_str().unwrap()).unwrap().path, Path::new(&file));

    // Others call their files so too.
    put("noted/meta.yaml");
    let file = put("noted/m.gguf");
    let folder = dir.path().join("noted");
    assert_eq!(get(folder.to_str().unwrap()).unwrap().path, Path::new(&file));

    // Ollama's files have no extension.
    let blob = put("blobs/sha256-0123");
    let model = get(&blob).unwrap();
    assert_eq!((model.path.as_path(), model.size), (Path::new(&blob), 4));

    let text = put("text/readme.txt");
    std::fs::write(&text, b"About GGUF").unwrap();
    assert!(matches!(get(&text), Err(Error::NoModelAtPath { .. })));
    assert!(matches!(
        get(dir.path().join("text").to_str().unwrap()),
        Err(Error::NoModelAtPath { .. })
    ));
    assert!(matches!(get("./no/such.gguf"), Err(Error::NoSuchPath { .. })));
}

#[test]
fn several_models_in_a_folder_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["small.gguf", "large.gguf"] {
        std::fs::write(dir.path().join(name), b"GGUF").unwrap();
    }
    let folder = Reference::Path(dir.path().to_owned());
    let error = store(dir.path()).get(&folder, &mut Silent).unwrap_err();
    assert!(matches!(error, Error::SeveralModels { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("name one of them: large.gguf, small.gguf"), "{message}");
}

#[test]
fn a_home_or_an_address_that_cannot_be_used_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for home in [file.clone(), file.join("below")] {
        let error = Store::with_settings(Settings::at(home)).unwrap_err();
        assert!(matches!(&error, Error::HomeIsNoFolder { path } if *path == file), "{error}");
    }
    let fresh = Settings::at(dir.path().join("a/b"));
    fresh.check_home().unwrap();
    assert!(!dir.path().join("a").exists());
    // Nobody can create files there.
    if cfg!(target_os = "linux") {
        let error = Settings::at("/proc/models").check_home().unwrap_err();
        assert!(matches!(error, Error::HomeNotWritable { .. }), "{error}");
    }

    fresh.check_endpoint().unwrap();
    for endpoint in ["garbage", "", "ftp://example.com", "http://"] {
        let settings = Settings { hf_endpoint: endpoint.into(), ..fresh.clone() };
        let store = Store::with_settings(settings).unwrap();
        let reference = store.resolve("hf:org/repo").unwrap();
        let error = store.get(&reference, &mut Silent).unwrap_err();
        assert!(matches!(error, Error::BadEndpoint { .. }), "{error}");
    }
}

#[test]
fn an_unknown_name_meets_suggestions() {
    let dir = tempfile::tempdir().unwrap();
    let message = store(dir.path()).resolve("smollm").unwrap_err().to_string();
    assert!(message.contains("did you mean") && message.contains("smollm2"), "{message}");
    let offline = store(dir.path());
    let error = offline.get(&offline.resolve("smollm2").unwrap(), &mut Silent).unwrap_err();
    let Error::AllSourcesFailed { failures, .. } = error else { panic!("{error}") };
    assert!(failures.iter().all(|failure| matches!(failure.error, Error::Offline { .. })));
}

#[test]
fn a_model_gets_further_names_and_settings_of_the_users() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    plant(&store, "hf:a/b:Q4_0", b"GGUF shared");
    let custom = Custom {
        system: Some("Be brief.".into()),
        parameters: [("temperature".to_owned(), 0.5.into())].into(),
        license: None,
    };
    let mine = store.copy("hf:a/b:Q4_0", "Mine:latest", Some(custom.clone())).unwrap();
    assert_eq!((mine.name.as_str(), mine.custom.as_ref()), ("mine", Some(&custom)));
    assert_eq!(store.find("mine").unwrap(), Some(mine.clone()));
    // A copy of it has its settings, and the bytes stay as long as one of them is there.
    let other = store.copy("mine", "other", None).unwrap();
    assert_eq!(other.custom, Some(custom));
    assert_eq!(store.remove("hf:a/b:Q4_0").unwrap(), 0);
    assert_eq!(store.remove("mine").unwrap(), 0);
    assert_eq!(std::fs::read(&other.path).unwrap(), b"GGUF shared");
    // One may be made from itself, and another be replaced.
    let again = store.copy("other", "other", Some(Custom::default())).unwrap();
    assert_eq!(again.custom, Some(Custom::default()));
    plant(&store, "hf:c/d", b"GGUF unlike");
    store.copy("hf:c/d", "other", None).unwrap();
    let replaced = store.find("other").unwrap().unwrap();
    assert_eq!(std::fs::read(&replaced.path).unwrap(), b"GGUF unlike");
    assert_eq!(std::fs::read_dir(dir.path().join("home/blobs")).unwrap().count(), 1);
}

#[test]
fn names_that_are_taken_or_none_are_not_given() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    plant(&store, "hf:a/b", b"GGUF");
    for name in ["smollm2", "smollm2:135m", "", "../x", "/x", "a/b", "x.gguf", "https://x/y.gguf"] {
        let error = store.copy("hf:a/b", name, None).unwrap_err();
        assert!(matches!(error, Error::BadReference { .. }), "{name}: {error}");
    }
    for absent in ["nothing", "smollm2", "./x"] {
        let error = store.copy(absent, "new", None).unwrap_err();
        assert!(matches!(error, Error::NotInstalled { .. }), "{absent}: {error}");
    }
    assert_eq!(store.list().unwrap().len(), 1);
}
