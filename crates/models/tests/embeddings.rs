//! Every golden embedding model, in both forms, against what sentence-transformers computed; and
//! what the files of such models may get wrong.

use std::path::{Path, PathBuf};

use baton_graph::{Batch, Executor, Graph, Limits, Rows, SeqId, Span, passes, reference};
use baton_models::testing::{EmbeddedText, embedding_goldens, gguf_with};
use baton_models::{BuildOptions, Model, Source};
use baton_weights::{Value, Weights};

const TOLERANCE: f32 = 1e-5;
const CONTEXT: usize = 96;

/// Largest difference and smallest cosine, all texts in one batch.
fn compare(graph: &Graph, weights: &Weights, texts: &[EmbeddedText]) -> (f32, f32) {
    let limits = Limits { context: CONTEXT, kv_tokens: 1000, batch_tokens: 1000 };
    let mut executor = reference::Interpreter::new(graph, weights, limits).unwrap();
    let span = |(text, seq): (&EmbeddedText, u32)| Span {
        seq: SeqId(seq),
        tokens: text.ids.clone(),
        rows: Rows::Last,
    };
    let batch = Batch { spans: texts.iter().zip(0..).map(span).collect() };
    let found = executor.forward(&batch).unwrap();
    assert_eq!(found.rows.len(), texts.len());
    let all = texts.iter().enumerate().map(|(i, text)| text.compare(found.row(i)));
    all.fold((0.0, 1.0), |(worst, least), (d, cosine)| (d.max(worst), cosine.min(least)))
}

#[test]
fn every_embedding_model_agrees_with_sentence_transformers() {
    let goldens = embedding_goldens();
    assert_eq!(goldens.len(), 10, "five models in two forms");
    for golden in goldens {
        let model = Model::open(&golden.path).unwrap();
        assert!(model.is_embedding(), "{}", golden.name);
        let (mut graph, weights) = model.build(&BuildOptions { context: CONTEXT }).unwrap();
        let plain = compare(&graph, &weights, &golden.texts);
        passes::run(&mut graph, &[]).unwrap();
        let optimized = compare(&graph, &weights, &golden.texts);
        println!("{:20} {plain:?} {optimized:?}", golden.name);
        for (worst, cosine) in [plain, optimized] {
            assert!(worst < TOLERANCE && cosine > 1.0 - TOLERANCE, "{}: {worst}", golden.name);
        }
    }
}

#[test]
fn both_forms_say_the_same_of_a_model() {
    for pair in embedding_goldens().chunks(2) {
        let [folder, gguf] = [0, 1].map(|i| Model::open(&pair[i].path).unwrap().config().clone());
        let name = &pair[0].name;
        let embedding = |config: &baton_models::ModelConfig| {
            let head = config.embedding.clone().unwrap();
            (head.pooling, head.dense.iter().map(|dense| dense.outputs).collect::<Vec<_>>())
        };
        assert_eq!(embedding(&folder), embedding(&gguf), "{name}");
        assert_eq!(folder.encoder, gguf.encoder, "{name}");
        assert_eq!(folder.layers, gguf.layers, "{name}");
        assert_eq!(folder.gate, gguf.gate, "{name}");
        assert_eq!(folder.context_length, gguf.context_length, "{name}");
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embeddings").join(name)
}

/// A copy of a golden folder with one file replaced, or taken out; the error of building it.
fn with_file(name: &str, file: &str, content: Option<&str>) -> Result<(), String> {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&golden(name), copy.path());
    match content {
        Some(text) => std::fs::write(copy.path().join(file), text).unwrap(),
        None => std::fs::remove_file(copy.path().join(file)).unwrap(),
    }
    let model = Model::open(copy.path()).map_err(|error| error.to_string())?;
    model.build(&BuildOptions { context: 8 }).map_err(|error| error.to_string())?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => {
                std::fs::create_dir(&target).unwrap();
                copy_folder(&entry.path(), &target);
            }
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[track_caller]
fn expect(found: Result<(), String>, words: &[&str]) {
    let error = found.expect_err("it must fail");
    for word in words {
        assert!(error.contains(word), "{error:?} does not name {word:?}");
    }
}

#[test]
fn modules_that_are_damaged_or_unknown() {
    let modules = "modules.json";
    let pooling = "1_Pooling/config.json";
    let dense = "2_Dense/config.json";
    let weights = "3_Dense/model.safetensors";
    let module = |kind: &str, path: &str| {
        let transformer = r#"{"type": "sentence_transformers.models.Transformer", "path": ""}"#;
        format!(r#"[{transformer}, {{"type": "a.{kind}", "path": "{path}"}}]"#)
    };
    with_file("gemma", "README.md", Some("")).unwrap();
    let cases: [(&str, Option<String>, &[&str]); 16] = [
        (modules, None, &["modules.json"]),
        (modules, Some("[".into()), &["modules.json", "JSON"]),
        (modules, Some("{}".into()), &["no list"]),
        (modules, Some("[]".into()), &["no Pooling"]),
        (modules, Some(module("LSTM", "1_LSTM")), &["LSTM", "Pooling, Dense"]),
        (modules, Some(module("Dense", "2_Dense")), &["\"Dense\""]),
        (modules, Some(module("Pooling", "../1_Pooling")), &["\"../1_Pooling\"", "no folder"]),
        (modules, Some(module("Pooling", "/etc")), &["\"/etc\""]),
        (modules, Some(module("Pooling", "")), &["\"\""]),
        (pooling, None, &["1_Pooling", "missing"]),
        (
            pooling,
            Some(r#"{"pooling_mode_max_tokens": true}"#.into()),
            &["max_tokens", "lasttoken"],
        ),
        (pooling, Some("{}".into()), &["no pooling mode"]),
        (dense, Some("{}".into()), &["out_features"]),
        (dense, Some(r#"{"out_features": 47, "activation_function": "Identity"}"#.into()), &["47"]),
        (dense, Some(r#"{"out_features": 48, "activation_function": "x.GELU"}"#.into()), &["GELU"]),
        (weights, None, &["3_Dense", "missing"]),
    ];
    for (file, content, words) in cases {
        expect(with_file("gemma", file, content.as_deref()), words);
    }
    // The spelling of newer versions.
    with_file("gemma", pooling, Some(r#"{"pooling_mode": "mean"}"#)).unwrap();
    // Too large to be one.
    let huge = format!("[{}]", " ".repeat(1 << 20));
    expect(with_file("gemma", modules, Some(&huge)), &["modules.json", "larger"]);
}

#[test]
fn metadata_that_is_wrong_or_missing() {
    let open = |name: &str, key: &str, value: Option<Value>| -> Result<(), String> {
        let file = gguf_with(&golden(name).join("model.gguf"), &[(key, value)]);
        let model = Model::from_source(Source::Gguf(file)).map_err(|error| error.to_string())?;
        model.build(&BuildOptions { context: 8 }).map_err(|error| error.to_string())?;
        Ok(())
    };
    open("minilm", "general.name", None).unwrap();
    expect(open("minilm", "bert.pooling_type", None), &["pooling_type"]);
    expect(open("minilm", "bert.pooling_type", Some(Value::U32(4))), &["ranks texts"]);
    expect(open("minilm", "bert.pooling_type", Some(Value::U32(9))), &["bert.pooling_type", "9"]);
    expect(
        open("minilm", "bert.context_length", Some(Value::U32(97))),
        &["position_embd", "[97, 32]"],
    );
    expect(open("minilm", "bert.block_count", Some(Value::U32(2))), &["blk.2", "no part of BERT"]);
    expect(open("nomic", "nomic-bert.attention.head_count", Some(Value::U32(3))), &["attn_qkv"]);
    // A decoder without pooling continues texts.
    let file = gguf_with(&golden("qwen3").join("model.gguf"), &[("qwen3.pooling_type", None)]);
    assert!(!Model::from_source(Source::Gguf(file)).unwrap().is_embedding());
}

#[test]
fn more_context_than_there_are_positions() {
    let model = Model::open(golden("minilm")).unwrap();
    assert_eq!(model.config().context_length, 96);
    let error = model.build(&BuildOptions { context: 97 }).unwrap_err().to_string();
    assert!(error.contains("97") && error.contains("96 positions"), "{error}");
}

/// Ollama's files of EmbeddingGemma are Gemma 3 with other names for the layers behind the pooling.
#[test]
fn embedding_gemma_as_ollama_writes_it() {
    let model = Model::open(golden("gemma/model.gguf")).unwrap();
    let Source::Gguf(file) = model.source() else { unreachable!() };
    let metadata = file
        .metadata()
        .iter()
        .filter(|(key, _)| !key.contains("dense_") && !key.contains("pooling"))
        .map(|(key, value)| match key {
            "general.architecture" => (key.to_owned(), Value::Str("gemma3".into())),
            key => (key.replace("gemma-embedding.", "gemma3."), value.clone()),
        })
        .collect();
    let renamed = |name: &str| name.replace("dense_2", "dense.0").replace("dense_3", "dense.1");
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|t| (renamed(t.name()), t.dtype().unwrap(), t.shape().to_vec()))
        .collect();
    let mut writer = baton_weights::GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
    for tensor in file.tensors() {
        writer.tensor(file.tensor(tensor.name()).unwrap().data()).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let file = baton_weights::GgufFile::from_bytes(bytes).unwrap();
    let model = Model::from_source(Source::Gguf(file)).unwrap();
    let (graph, weights) = model.build(&BuildOptions { context: CONTEXT }).unwrap();
    let goldens = embedding_goldens();
    let golden = goldens.iter().find(|golden| golden.name == "gemma").unwrap();
    let (worst, _) = compare(&graph, &weights, &golden.texts);
    assert!(worst < TOLERANCE, "{worst}");
}
