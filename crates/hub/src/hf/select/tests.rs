use super::*;

fn files(paths: &[&str]) -> Vec<RemoteFile> {
    let file = |path: &&str| RemoteFile { path: path.to_string(), size: None, sha256: None };
    paths.iter().map(file).collect()
}

fn pick(reference: &str, paths: &[&str]) -> Result<Vec<String>> {
    let hf = reference.parse().unwrap();
    let files = files(paths);
    Ok(select(&hf, &files)?.into_iter().map(|file| file.path.clone()).collect())
}

const QUANTS: [&str; 8] = [
    "README.md",
    "M-Q4_K_S.gguf",
    "M-Q4_K_M.gguf",
    "M-UD-Q4_K_M.gguf",
    "M-Q8_0.gguf",
    "M-IQ4_XS.gguf",
    "mmproj-Q8_0.gguf",
    "M.imatrix.gguf",
];

#[test]
fn a_quantization_is_a_whole_word() {
    let table = [
        ("o/r:Q4_K_M", "M-Q4_K_M.gguf"),
        ("o/r:q8_0", "M-Q8_0.gguf"),
        ("o/r:UD-Q4_K_M", "M-UD-Q4_K_M.gguf"),
        ("o/r:M-Q4_K_S.gguf", "M-Q4_K_S.gguf"),
        ("o/r", "M-Q4_K_M.gguf"),
    ];
    for (reference, expected) in table {
        assert_eq!(pick(reference, &QUANTS).unwrap(), [expected], "{reference}");
    }
    for absent in ["o/r:Q4_K", "o/r:Q4", "o/r:Q5_0", "o/r:nope.gguf"] {
        let error = pick(absent, &QUANTS).unwrap_err();
        let Error::NoSuchQuant { available, .. } = &error else { panic!("{error}") };
        assert_eq!(available.len(), 5, "{error}");
    }
    assert_eq!(pick("o/r:q4_k_m", &["m.q4_k_m.gguf"]).unwrap(), ["m.q4_k_m.gguf"]);
    assert_eq!(pick("o/r", &["only.gguf", "mmproj.gguf"]).unwrap(), ["only.gguf"]);
}

#[test]
fn all_shards_come_in_order() {
    let paths = [
        "Q8_0/M-Q8_0-00002-of-00003.gguf",
        "Q8_0/M-Q8_0-00003-of-00003.gguf",
        "Q8_0/M-Q8_0-00001-of-00003.gguf",
        "M-Q2_K.gguf",
    ];
    let expected = [paths[2], paths[0], paths[1]];
    assert_eq!(pick("o/r:Q8_0", &paths).unwrap(), expected);
    assert_eq!(pick(&format!("o/r:{}", paths[1]), &paths).unwrap(), expected);
    let error = pick("o/r:Q8_0", &paths[..2]).unwrap_err();
    assert!(matches!(error, Error::MissingShard { missing: 1, count: 3, .. }), "{error}");
}

#[test]
fn shard_names() {
    assert_eq!(shard("a-b-00002-of-00010"), Some(("a-b", 2, 10)));
    for not in ["a", "a-2-of-3", "a-00000-of-00003", "a-00004-of-00003", "-of-", "a-0000x-of-00003"]
    {
        assert_eq!(shard(not), None, "{not}");
    }
}

#[test]
fn a_checkpoint_is_its_weights_and_companions() {
    let paths = [
        "README.md",
        "LICENSE",
        "config.json",
        "tokenizer.json",
        "consolidated.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "onnx/model.safetensors",
        "pytorch_model.bin",
    ];
    let chosen = pick("o/r", &paths).unwrap();
    assert_eq!(chosen, [paths[1], paths[2], paths[3], paths[7], paths[5], paths[6]]);

    let mut missing = paths.to_vec();
    missing.remove(6);
    assert!(matches!(pick("o/r", &missing), Err(Error::MissingShard { missing: 2, .. })));
    for (bad, why) in [
        (vec!["config.json", "pytorch_model.bin"], ".safetensors"),
        (vec!["adapter_config.json", "adapter_model.safetensors"], "LoRA"),
        (vec!["README.md"], "neither"),
    ] {
        let message = pick("o/r", &bad).unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn an_embedding_model_has_modules_in_folders() {
    let paths = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "2_Dense/pytorch_model.bin",
        "config.json",
        "modules.json",
        "model.safetensors",
        "onnx/config.json",
        "openvino/1_Pooling/config.json",
    ];
    let chosen = pick("o/r", &paths).unwrap();
    assert_eq!(chosen, [4, 5, 0, 1, 2, 6].map(|i: usize| paths[i]));
    let files = files(&paths);
    assert_eq!(store_name(&files[2], "o/r").unwrap(), "2_Dense/model.safetensors");
    assert_eq!(store_name(&files[7], "o/r").unwrap(), "config.json");
    // Without the list of modules such folders mean nothing.
    let chosen = pick("o/r", &[paths[0], paths[4], paths[6]]).unwrap();
    assert_eq!(chosen, [paths[4], paths[6]]);
}

#[test]
fn a_hostile_listing_is_refused() {
    for bad in ["../../x.gguf", "/etc/x.gguf", "a\0b.gguf", "a\\..\\b.gguf"] {
        let error = pick("o/r", &["M.gguf", bad]).unwrap_err();
        assert!(matches!(error, Error::UnsafeName { .. }), "{bad:?}: {error}");
    }
}
