//! Configs that are damaged, absurd or of something else: an error that names the culprit, in no
//! time, and never a panic.

use std::path::{Path, PathBuf};

use baton_models::testing::gguf_with;
use baton_models::{BuildOptions, Model, Source};
use baton_weights::gguf::{Array, Strings};
use baton_weights::{Checkpoint, GgufFile, Value};
use serde_json::{Value as Json, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The error of opening and building a golden checkpoint with some keys of its config replaced;
/// null takes a key out.
fn with_config(name: &str, changes: Json) -> Result<(), String> {
    let weights = std::fs::read(golden(name).join("model.safetensors")).unwrap();
    let config = std::fs::read(golden(name).join("config.json")).unwrap();
    let mut config: Json = serde_json::from_slice(&config).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        let config = config.as_object_mut().unwrap();
        match value {
            Json::Null => drop(config.remove(key)),
            value => drop(config.insert(key.clone(), value.clone())),
        }
    }
    let files = Checkpoint::from_bytes(weights, config).unwrap();
    let source = Source::from_checkpoint(golden(name), files).unwrap();
    open_and_build(source)
}

/// The same for a GGUF file.
fn with_metadata(name: &str, changes: &[(&str, Option<Value>)]) -> Result<(), String> {
    open_and_build(Source::Gguf(gguf_with(&golden(name).join("model.gguf"), changes)))
}

/// The golden Llama with another header in its safetensors file.
fn with_header(change: impl Fn(&str) -> String) -> Source {
    let file = std::fs::read(golden("llama").join("model.safetensors")).unwrap();
    let (length, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header = change(std::str::from_utf8(header).unwrap().trim_end());
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
    let config = std::fs::read(golden("llama").join("config.json")).unwrap();
    let config = serde_json::from_slice(&config).unwrap();
    let files = Checkpoint::from_bytes(bytes, config).unwrap();
    Source::from_checkpoint(golden("llama"), files).unwrap()
}

fn open_and_build(source: Source) -> Result<(), String> {
    let model = Model::from_source(source).map_err(|error| error.to_string())?;
    model.build(&BuildOptions { context: 64 }).map_err(|error| error.to_string())?;
    Ok(())
}

#[track_caller]
fn expect(found: Result<(), String>, words: &[&str], case: &dyn std::fmt::Debug) {
    let error = found.expect_err(&format!("{case:?} must fail"));
    for word in words {
        assert!(error.contains(word), "{case:?}: {error:?} does not name {word:?}");
    }
}

#[test]
fn unchanged_files_open() {
    with_config("llama", json!({})).unwrap();
    with_metadata("llama", &[]).unwrap();
}

#[test]
fn config_json() {
    let cases = [
        (json!({"model_type": "mamba"}), &["\"mamba\"", "llama", "gemma3"][..]),
        (json!({"model_type": null}), &["model_type"]),
        (json!({"model_type": 7}), &["model_type"]),
        (json!({"num_hidden_layers": 0}), &["num_hidden_layers"]),
        (json!({"num_hidden_layers": 1u64 << 40}), &["num_hidden_layers"]),
        (json!({"num_hidden_layers": u64::MAX}), &["num_hidden_layers"]),
        (json!({"num_hidden_layers": -1}), &["num_hidden_layers", "-1"]),
        (json!({"num_hidden_layers": "2"}), &["num_hidden_layers"]),
        (json!({"num_hidden_layers": 2.5}), &["num_hidden_layers"]),
        (json!({"num_hidden_layers": null}), &["num_hidden_layers", "llama"]),
        (json!({"num_hidden_layers": 3}), &["model.layers.2.input_layernorm.weight", "missing"]),
        (json!({"num_hidden_layers": 1}), &["model.layers.1.", "no part of Llama"]),
        (json!({"hidden_size": 0}), &["hidden size"]),
        (json!({"hidden_size": 1u64 << 62}), &["hidden size"]),
        (json!({"hidden_size": 32}), &["model.embed_tokens.weight", "[96, 64]", "[96, 32]"]),
        (json!({"intermediate_size": 1u64 << 50}), &["feed-forward"]),
        (json!({"num_attention_heads": 0}), &["num_attention_heads"]),
        (json!({"num_attention_heads": null}), &["num_attention_heads"]),
        (json!({"num_attention_heads": 1u64 << 63}), &["head"]),
        (json!({"num_key_value_heads": 3}), &["4 heads", "3 key-value heads"]),
        (json!({"num_key_value_heads": 0}), &["key-value heads"]),
        (json!({"num_key_value_heads": 4}), &["k_proj.weight"]),
        (json!({"head_dim": 0}), &["head_dim"]),
        (json!({"head_dim": 1}), &["rotates 1 features"]),
        (json!({"head_dim": 1u64 << 61}), &["head_dim"]),
        (json!({"rms_norm_eps": null}), &["rms_norm_eps"]),
        (json!({"rms_norm_eps": 0}), &["norm epsilon"]),
        (json!({"rms_norm_eps": "small"}), &["rms_norm_eps"]),
        (json!({"vocab_size": 97}), &["vocab_size", "97", "96 rows"]),
        (json!({"max_position_embeddings": 0}), &["context length"]),
        (json!({"hidden_act": "tanhexp"}), &["hidden_act", "tanhexp"]),
        (json!({"tie_word_embeddings": "no"}), &["tie_word_embeddings"]),
        (json!({"rope_theta": 0}), &["base 0"]),
        (json!({"rope_theta": -10000}), &["base -10000"]),
        (json!({"rope_theta": []}), &["rope_theta"]),
        (json!({"rope_scaling": {"type": "warp"}}), &["warp", "yarn"]),
        (json!({"rope_scaling": {"type": "linear"}}), &["factor"]),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0}}),
            &["a model whose rotary embedding cannot scale", "a factor of 0"],
        ),
        (json!({"rope_scaling": {"type": "llama3", "factor": 8}}), &["low_freq_factor"]),
        (json!({"rope_scaling": {"type": "dynamic", "factor": -1}}), &["a dynamic factor of -1"]),
        (json!({"rope_scaling": {"type": "longrope"}}), &["LongRoPE with"]),
        (
            json!({"rope_scaling": {"type": "longrope", "long_factor": [1], "short_factor": [1]}}),
            &["LongRoPE with"],
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 0}}),
            &["YaRN with", "from 1 to 0"],
        ),
        (json!({"partial_rotary_factor": 0.01}), &["rotates 0 features"]),
        (json!({"partial_rotary_factor": 1e300}), &["rotates"]),
    ];
    for (changes, words) in cases {
        expect(with_config("llama", changes.clone()), words, &changes);
    }
}

#[test]
fn config_json_of_other_architectures() {
    let cases = [
        ("llama3", json!({"tie_word_embeddings": false}), &["lm_head.weight", "missing"][..]),
        ("gpt-oss", json!({"layer_types": ["full_attention"]}), &["layer_types"]),
        ("gpt-oss", json!({"layer_types": ["x", "full_attention"]}), &["layer_types", "\"x\""]),
        ("gpt-oss", json!({"layer_types": vec!["x"; 5000]}), &["layer_types", "long"]),
        ("gpt-oss", json!({"num_local_experts": 1u64 << 40}), &["experts"]),
        ("gpt-oss", json!({"num_local_experts": 5}), &["gate_up_proj", "[5, 64, 32]"]),
        ("gpt-oss-bf16", json!({"num_local_experts": 3}), &["gate_up_proj", "[3, 32, 64]"]),
        ("gpt-oss", json!({"num_experts_per_tok": 9}), &["experts per token is 9"]),
        ("qwen3-moe", json!({"num_experts": 5}), &["mlp.gate.weight", "[4, 32]", "[5, 32]"]),
        ("qwen3-moe", json!({"num_experts": 3}), &["mlp.gate.weight", "[3, 32]"]),
        ("qwen3-moe", json!({"decoder_sparse_step": 0}), &["decoder_sparse_step"]),
        ("gemma3", json!({"sliding_window": 0}), &["sliding_window"]),
        ("gemma3", json!({"sliding_window_pattern": 0}), &["sliding_window_pattern"]),
        ("gemma3", json!({"query_pre_attn_scalar": 0}), &["attention scale"]),
        ("gemma3", json!({"use_bidirectional_attention": true}), &["modules.json"]),
        ("gemma2", json!({"final_logit_softcapping": -1.0}), &["logit soft cap"]),
        ("smollm3", json!({"no_rope_layers": [1, 1]}), &["no_rope_layers"]),
        ("smollm3", json!({"no_rope_layers": [1, 1, 1, 2, 1]}), &["no_rope_layers"]),
        ("phi3", json!({"intermediate_size": 48}), &["gate_up_proj", "[128, 32]", "[96, 32]"]),
    ];
    for (name, changes, words) in cases {
        expect(with_config(name, changes.clone()), words, &(name, &changes));
    }
}

#[test]
fn gguf_metadata() {
    let strings: Strings = ["a"].into_iter().collect();
    let cases: Vec<(&str, Option<Value>, &[&str])> = vec![
        ("general.architecture", Some(Value::Str("rwkv".into())), &["\"rwkv\"", "qwen3moe"]),
        ("general.architecture", None, &["general.architecture"]),
        ("llama.block_count", None, &["llama.block_count"]),
        ("llama.block_count", Some(Value::U64(1 << 40)), &["llama.block_count"]),
        ("llama.block_count", Some(Value::F32(2.0)), &["llama.block_count"]),
        ("llama.block_count", Some(Value::U32(3)), &["blk.2.attn_norm.weight", "missing"]),
        ("llama.embedding_length", Some(Value::I32(-64)), &["llama.embedding_length", "-64"]),
        ("llama.embedding_length", Some(Value::Array(Array::U32(vec![64, 32]))), &["differs"]),
        ("llama.embedding_length", Some(Value::Array(Array::U32(vec![]))), &["whole number"]),
        ("llama.embedding_length", Some(Value::Array(Array::Str(strings))), &["whole number"]),
        ("llama.attention.head_count", Some(Value::U32(0)), &["llama.attention.head_count"]),
        ("llama.attention.head_count_kv", Some(Value::U32(3)), &["key-value heads"]),
        ("llama.attention.value_length", Some(Value::U32(8)), &["value_length"]),
        ("llama.attention.layer_norm_rms_epsilon", Some(Value::F32(f32::NAN)), &["NaN"]),
        ("llama.rope.freq_base", Some(Value::F32(f32::NAN)), &["rope.freq_base", "NaN"]),
        ("llama.rope.freq_base", Some(Value::F32(f32::INFINITY)), &["rope.freq_base", "inf"]),
        ("llama.rope.dimension_count", Some(Value::U32(15)), &["rotates 15 features"]),
        ("llama.rope.dimension_count", Some(Value::U64(u64::MAX)), &["rotates"]),
        ("llama.rope.scaling.type", Some(Value::Str("warp".into())), &["warp"]),
        ("llama.rope.scaling.type", Some(Value::Str("longrope".into())), &["LongRoPE with"]),
        ("llama.rope.scaling.type", Some(Value::Str("yarn".into())), &["rope.scaling.factor"]),
        ("llama.expert_count", Some(Value::U32(8)), &["Mixtral"]),
        ("llama.vocab_size", Some(Value::U32(95)), &["vocab_size", "95", "96 rows"]),
    ];
    for (key, value, words) in cases {
        expect(with_metadata("llama", &[(key, value.clone())]), words, &(key, &value));
    }
    let windowless = [("gpt-oss.attention.sliding_window", None)];
    expect(with_metadata("gpt-oss", &windowless), &["attention.sliding_window"], &windowless);
    let shorter = [("phi3.rope.dimension_count", Some(Value::U32(10)))];
    expect(with_metadata("phi4-mini", &shorter), &["LongRoPE with"], &shorter);
}

#[test]
fn packed_weights_of_other_programs_are_named() {
    for (packed, method) in [("qweight", "GPTQ"), ("weight_packed", "compressed-tensors")] {
        let renamed = format!("q_proj.{packed}");
        let source = with_header(|header| header.replace("q_proj.weight", &renamed));
        let found = open_and_build(source);
        expect(found, &["model.layers.0.self_attn.q_proj.weight", method], &packed);
    }
}

/// Sizes of unknown types are not checked against the file, so they may claim anything.
#[test]
fn absurd_shapes_are_counted_without_overflow() {
    let tensor = json!({"dtype": "?", "shape": [u64::MAX], "data_offsets": [0, 0]});
    let source = with_header(|header| {
        let rest = header.strip_suffix('}').unwrap();
        format!("{rest},\"x\":{tensor},\"y\":{tensor}}}")
    });
    assert_eq!(Model::from_source(source).unwrap().parameters(), u64::MAX);
}

#[test]
fn a_context_of_nothing() {
    let model = Model::open(golden("llama")).unwrap();
    let error = model.build(&BuildOptions { context: 0 }).unwrap_err().to_string();
    assert!(error.contains("context"), "{error}");
}

#[test]
fn paths_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| Model::open(path).unwrap_err().to_string();
    assert!(message(&folder.path().join("absent")).contains("nothing at this path"));
    assert!(message(folder.path()).contains("neither config.json nor a GGUF file"));
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "GG").unwrap();
    assert!(message(&text).contains("neither GGUF nor safetensors"));
    for name in ["a.gguf", "b.gguf"] {
        std::fs::copy(golden("llama/model.gguf"), folder.path().join(name)).unwrap();
    }
    assert!(message(folder.path()).contains("b.gguf"));
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    std::fs::copy(golden("llama/model.safetensors"), &weights).unwrap();
    assert!(message(&weights).contains("config.json"));
}

/// xorshift64*: the same damage in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

#[test]
fn damaged_headers_never_panic() {
    let mut random = Random(7);
    let mut refused = 0;
    for name in ["llama3", "gemma3", "phi4-mini", "gpt-oss", "qwen3-moe"] {
        let whole = std::fs::read(golden(name).join("model.gguf")).unwrap();
        for _ in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(3) {
                // Metadata and tensor descriptions are within the first pages.
                let at = random.below(3000);
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
            }
            let Ok(file) = GgufFile::from_bytes(bytes) else { continue };
            refused += usize::from(open_and_build(Source::Gguf(file)).is_err());
        }
    }
    assert!(refused > 100, "only {refused} damaged files were refused here");
}

#[test]
fn nonsense_values_never_panic() {
    let nonsense = [
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(u64::MAX),
        json!(1u64 << 40),
        json!(0.5),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!(""),
        json!("x"),
        json!(true),
        json!([]),
        json!([1]),
        json!({}),
        json!({"type": "yarn"}),
        json!({"full_attention": 1}),
        Json::Null,
    ];
    for name in ["llama3", "llama-yarn", "gemma2", "gemma3", "phi4-mini", "gpt-oss", "qwen3-moe"] {
        let config = std::fs::read(golden(name).join("config.json")).unwrap();
        let config: serde_json::Map<String, Json> = serde_json::from_slice(&config).unwrap();
        for (key, old) in &config {
            for value in &nonsense {
                let mut changes = serde_json::Map::new();
                changes.insert(key.clone(), value.clone());
                drop(with_config(name, changes.into()));
                for inner in old.as_object().into_iter().flatten() {
                    let mut changed = old.clone();
                    changed[inner.0] = value.clone();
                    let mut changes = serde_json::Map::new();
                    changes.insert(key.clone(), changed);
                    drop(with_config(name, changes.into()));
                }
            }
        }
    }
}
