//! Names and numbers of a model as GGUF spells them, whatever file it came from.

use baton_models::{Model, Source};
use baton_weights::gguf::Array;
use baton_weights::{GgufFile, Value};
use serde_json::{Map, Value as Json, json};

/// Longest text that is shown among a model's numbers unless all is wanted.
const LONG_TEXT: usize = 4096;

/// The architecture as the file spells it.
pub(super) fn architecture(model: &Model) -> String {
    let name = match model.source() {
        Source::Gguf(file) => file.metadata().get("general.architecture").and_then(Value::as_str),
        Source::Checkpoint { files, .. } => files.config()["model_type"].as_str(),
        _ => None,
    };
    name.map_or_else(|| model.architecture().to_lowercase(), str::to_owned)
}

/// How most of the weights are stored: what the file calls itself, else the type that holds most.
pub(super) fn quantization(model: &Model) -> String {
    // Of packages alone nobody says; the tokenizer beside them is in a file that names the type of weights which
    // are not there.
    if model.packaged().is_some() {
        return "unknown".to_owned();
    }
    if let Source::Gguf(file) = model.source()
        && let Some(name) = file_type(file)
    {
        return name.to_owned();
    }
    let mut sums: Vec<(String, usize)> = Vec::new();
    for kind in model.quantization() {
        match sums.iter_mut().find(|(dtype, _)| *dtype == kind.dtype) {
            Some((_, sum)) => *sum = sum.saturating_add(kind.elements),
            None => sums.push((kind.dtype, kind.elements)),
        }
    }
    sums.into_iter().max_by_key(|(_, sum)| *sum).map_or("unknown".into(), |(dtype, _)| dtype)
}

/// The name of a GGUF file's `general.file_type`.
fn file_type(file: &GgufFile) -> Option<&'static str> {
    Some(match file.metadata().opt_u32("general.file_type").ok()?? {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4",
        _ => return None,
    })
}

/// The keys and values of the model's header. Of a checkpoint, those that clients look for.
pub(super) fn info(model: &Model, verbose: bool) -> Map<String, Json> {
    let mut info: Map<String, Json> = match model.source() {
        Source::Gguf(file) => {
            let entries = file.metadata().iter();
            entries.map(|(key, value)| (key.to_owned(), json(value, verbose))).collect()
        }
        _ => checkpoint_info(model),
    };
    info.insert("general.parameter_count".into(), json!(model.parameters()));
    info
}

fn checkpoint_info(model: &Model) -> Map<String, Json> {
    let (name, config) = (architecture(model), model.config());
    let own = |key: &str, value: usize| (format!("{name}.{key}"), json!(value));
    [
        ("general.architecture".to_owned(), json!(name)),
        ("general.name".to_owned(), json!(model.name())),
        own("context_length", config.context_length),
        own("embedding_length", config.hidden),
        own("block_count", config.layers.len()),
        own("feed_forward_length", config.ffn),
        own("attention.head_count", config.heads),
        own("attention.head_count_kv", config.kv_heads),
        own("attention.key_length", config.head_dim),
        own("vocab_size", config.vocab),
    ]
    .into_iter()
    .collect()
}

/// Lists, and texts as long as a chat template, only if `verbose`.
fn json(value: &Value, verbose: bool) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::Str(text) if text.len() > LONG_TEXT && !verbose => Json::Null,
        Value::Str(text) => json!(text),
        Value::Array(_) if !verbose => Json::Null,
        Value::Array(array) => list(array),
    }
}

fn list(array: &Array) -> Json {
    match array {
        Array::U8(v) => json!(v),
        Array::I8(v) => json!(v),
        Array::U16(v) => json!(v),
        Array::I16(v) => json!(v),
        Array::U32(v) => json!(v),
        Array::I32(v) => json!(v),
        Array::U64(v) => json!(v),
        Array::I64(v) => json!(v),
        Array::F32(v) => json!(v),
        Array::F64(v) => json!(v),
        Array::Bool(v) => json!(v),
        Array::Str(v) => v.iter().map(Json::from).collect(),
        Array::Nested(v) => v.iter().map(list).collect(),
    }
}
