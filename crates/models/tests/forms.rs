//! The many ways in which one and the same model can lie on disk.

use std::path::{Path, PathBuf};

use baton_graph::reference;
use baton_models::testing::{Golden, gguf_with, goldens};
use baton_models::{BuildOptions, Model, ModelConfig, RopeScaling, Source};
use baton_weights::{Checkpoint, Value};
use serde_json::{Value as Json, json};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden(name: &str) -> Golden {
    let path = folder(name);
    goldens().into_iter().find(|golden| golden.path == path).expect("the golden exists")
}

fn config(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(folder(name).join("config.json")).unwrap()).unwrap()
}

/// A tensor of a safetensors file: name, type, shape, bytes.
type Entry = (String, Json, Vec<u64>, Vec<u8>);

fn tensors(name: &str) -> Vec<Entry> {
    let bytes = std::fs::read(folder(name).join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: serde_json::Map<String, Json> = serde_json::from_slice(header).unwrap();
    let entry = |(name, entry): (String, Json)| {
        let number = |value: &Json| value.as_u64().unwrap();
        let shape = entry["shape"].as_array().unwrap().iter().map(number).collect();
        let [start, end] = [0, 1].map(|i| number(&entry["data_offsets"][i]) as usize);
        (name, entry["dtype"].clone(), shape, data[start..end].to_vec())
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(entry).collect()
}

fn file_of(tensors: &[Entry]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend_from_slice(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// The golden's weights with other tensor names.
fn renamed(name: &str, rename: impl Fn(&str) -> String) -> Vec<u8> {
    let mut tensors = tensors(name);
    tensors.iter_mut().for_each(|tensor| tensor.0 = rename(&tensor.0));
    file_of(&tensors)
}

fn open(name: &str, config: Json, weights: Vec<u8>) -> Model {
    let files = Checkpoint::from_bytes(weights, config).unwrap();
    Model::from_source(Source::from_checkpoint(folder(name), files).unwrap()).unwrap()
}

fn assert_same_logits(model: &Model, golden: &Golden) {
    let (graph, weights) = model.build(&BuildOptions { context: golden.context }).unwrap();
    let logits = reference::logits(&graph, &weights, &golden.ids).unwrap();
    assert!(golden.max_difference(&logits) < 1e-3);
}

#[test]
fn a_language_model_inside_a_multimodal_one() {
    let mut inner = config("gemma3");
    // As published: the inner config leaves defaults out, the outer one names the architecture.
    inner.as_object_mut().unwrap().remove("rms_norm_eps");
    let outer = json!({"model_type": "gemma3", "text_config": inner});
    for (model, head) in
        [("language_model.model.", "language_model."), ("model.language_model.", "")]
    {
        let rename = |name: &str| match name.strip_prefix("model.") {
            Some(rest) => format!("{model}{rest}"),
            None => format!("{head}{name}"),
        };
        let opened = open("gemma3", outer.clone(), renamed("gemma3", rename));
        // The golden has another epsilon than the default that now applies.
        assert_eq!(opened.config().norm_eps, 1e-6);
        assert_eq!(opened.config().layers, Model::open(folder("gemma3")).unwrap().config().layers);
        opened.build(&BuildOptions { context: 64 }).unwrap();
    }
}

#[test]
fn the_rope_parameters_of_transformers_5() {
    let mut new = config("gemma3");
    let object = new.as_object_mut().unwrap();
    for old in ["rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern"] {
        object.remove(old);
    }
    object.insert(
        "rope_parameters".into(),
        json!({
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }),
    );
    let mut types = vec!["sliding_attention"; 7];
    types[5] = "full_attention";
    object.insert("layer_types".into(), json!(types));
    let model = open("gemma3", new, renamed("gemma3", str::to_owned));
    assert_same_logits(&model, &golden("gemma3"));
}

#[test]
fn stacked_experts_as_mlx_writes_them() {
    let mut stacked: Vec<Entry> = Vec::new();
    for (name, dtype, shape, bytes) in tensors("qwen3-moe") {
        let Some((layer, of_expert)) = name.split_once("experts.") else {
            stacked.push((name, dtype, shape, bytes));
            continue;
        };
        let (_, matrix) = of_expert.split_once('.').unwrap();
        let name = format!("{layer}switch_mlp.{matrix}");
        match stacked.iter_mut().find(|(found, ..)| *found == name) {
            Some((_, _, shape, all)) => {
                shape[0] += 1;
                all.extend(bytes);
            }
            None => stacked.push((name, dtype, [&[1], &shape[..]].concat(), bytes)),
        }
    }
    let model = open("qwen3-moe", config("qwen3-moe"), file_of(&stacked));
    assert_same_logits(&model, &golden("qwen3-moe"));
}

#[test]
fn gemma_3_as_ollama_writes_it() {
    let path = folder("gemma3/model.gguf");
    let f32 = |value: f32| Some(Value::F32(value));
    let changes = [
        ("gemma3.rope.freq_base", None),
        ("gemma3.rope.scaling.type", None),
        ("gemma3.rope.scaling.factor", None),
        ("gemma3.rope.global.freq_base", f32(1e6)),
        ("gemma3.rope.local.freq_base", f32(1e4)),
        ("gemma3.attn_logit_softcapping", f32(50.0)),
        ("gemma3.final_logit_softcapping", f32(30.0)),
        ("gemma3.context_length", Some(Value::U32(131_072))),
    ];
    let model = Model::from_source(Source::Gguf(gguf_with(&path, &changes))).unwrap();
    let usual = Model::open(&path).unwrap();
    let with_context = |mut config: ModelConfig| {
        config.context_length = 131_072;
        config
    };
    assert_eq!(*model.config(), with_context(usual.config().clone()));
    assert_same_logits(&model, &golden("gemma3"));

    // Its newer files leave out even more.
    let changes =
        [("gemma3.rope.freq_base", None), ("gemma3.attention.layer_norm_rms_epsilon", None)];
    let model = Model::from_source(Source::Gguf(gguf_with(&path, &changes))).unwrap();
    assert_eq!(model.config().norm_eps, 1e-6);
    assert_eq!(model.config().rope, usual.config().rope);

    // Without windows it is another model, whose cap is its own.
    let changes = [
        ("gemma3.attention.sliding_window", Some(Value::U32(0))),
        ("gemma3.final_logit_softcapping", f32(30.0)),
    ];
    let model = Model::from_source(Source::Gguf(gguf_with(&path, &changes))).unwrap();
    assert_eq!(model.config().logit_softcap, Some(30.0));
    assert!(model.config().layers.iter().all(|layer| layer.window.is_none()));
}

#[test]
fn what_old_gguf_files_leave_out() {
    let path = folder("gemma2/model.gguf");
    let keys = ["attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"];
    let keys = keys.map(|key| format!("gemma2.{key}"));
    let changes: Vec<_> = keys.iter().map(|key| (key.as_str(), None)).collect();
    let model = Model::from_source(Source::Gguf(gguf_with(&path, &changes))).unwrap();
    let config = model.config();
    assert_eq!((config.attention_softcap, config.logit_softcap), (Some(50.0), Some(30.0)));
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(4096), None, Some(4096), None]);

    let path = folder("llama/model.gguf");
    let scaling = |factor| {
        let changes = [("llama.rope.scaling.factor", Some(Value::F32(factor)))];
        let model = Model::from_source(Source::Gguf(gguf_with(&path, &changes))).unwrap();
        model.config().rope.scaling.clone()
    };
    assert_eq!(scaling(4.0), RopeScaling::Linear { factor: 4.0 });
    assert_eq!(scaling(0.0), RopeScaling::None);
}

#[test]
fn a_config_that_does_not_say_whether_the_output_is_tied() {
    for (name, tied) in [("llama3", true), ("llama", false)] {
        let mut silent = config(name);
        silent.as_object_mut().unwrap().remove("tie_word_embeddings");
        let model = open(name, silent, renamed(name, str::to_owned));
        assert_eq!(model.config().tied, tied);
        assert_same_logits(&model, &golden(name));
    }
}

#[test]
fn layers_of_smollm3_that_do_not_rotate_have_the_window() {
    let mut windowed = config("smollm3");
    windowed["use_sliding_window"] = true.into();
    windowed["sliding_window"] = 8.into();
    let model = open("smollm3", windowed, renamed("smollm3", str::to_owned));
    let windows: Vec<_> = model.config().layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [None, None, None, Some(8), None]);
}

#[test]
fn whatever_path_leads_to_it() {
    let golden = golden("llama");
    let by_folder = Model::open(&golden.path).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let by_file = Model::open(golden.path.join(file)).unwrap();
        assert_eq!(by_file.fingerprint(), by_folder.fingerprint());
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("some-name.gguf");
    std::fs::copy(golden.path.join("model.gguf"), &copy).unwrap();
    let by_folder = Model::open(elsewhere.path()).unwrap();
    let by_file = Model::open(&copy).unwrap();
    assert_eq!(by_file.fingerprint(), by_folder.fingerprint());
    assert_same_logits(&by_folder, &golden);
    // As repositories of GGUF files have them beside.
    for file in ["config.json", "mmproj-some-name.gguf"] {
        std::fs::copy(golden.path.join("config.json"), elsewhere.path().join(file)).unwrap();
    }
    let by_folder = Model::open(elsewhere.path()).unwrap();
    assert_eq!(by_file.fingerprint(), by_folder.fingerprint());
}

#[test]
fn what_people_want_to_know() {
    let model = Model::open(folder("gpt-oss/model.gguf")).unwrap();
    assert_eq!((model.architecture(), model.name()), ("gpt-oss", "tiny gpt_oss"));
    assert_eq!(model.licence(), Some("mit"));
    let kinds = model.quantization();
    let experts = kinds.iter().find(|q| q.kind == "ffn_down_exps").unwrap();
    assert_eq!((experts.dtype.as_str(), experts.tensors), ("MXFP4", 2));
    assert_eq!((experts.elements, experts.bytes), (2 * 4 * 32 * 32, 2 * 4 * 32 * 17));
    // The same numbers however the parameters are packed.
    let apart = Model::open(folder("gpt-oss")).unwrap();
    assert_eq!(model.parameters(), apart.parameters());
    assert_eq!(apart.name(), "gpt-oss");

    let elsewhere = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(folder("qwen3").join(file), elsewhere.path().join(file)).unwrap();
    }
    let card = "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\nlicense: none\n";
    std::fs::write(elsewhere.path().join("README.md"), card).unwrap();
    assert_eq!(Model::open(elsewhere.path()).unwrap().licence(), Some("apache-2.0"));
}

#[test]
fn fingerprints_tell_models_and_rotations_apart() {
    let all: Vec<_> = goldens()
        .iter()
        .map(|golden| golden.path.clone())
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .map(|path| Model::open(path).unwrap().fingerprint())
        .collect();
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());

    let print = |name: &str, context: usize| {
        let model = Model::open(folder(name)).unwrap();
        *model.build(&BuildOptions { context }).unwrap().0.fingerprint()
    };
    assert_eq!(print("llama", 64), print("llama", 512));
    assert_eq!(print("phi3", 64), print("phi3", 256));
    assert_ne!(print("phi3", 256), print("phi3", 257));
}
