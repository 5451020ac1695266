//! A `tokenizer.json` as the metadata that llama.cpp's converter makes of it.

use std::collections::HashMap;

use baton_weights::Metadata;
use baton_weights::Value as Gguf;
use baton_weights::gguf::{Array, Strings};
use serde_json::Value;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// What the converter knows of a model beyond its `tokenizer.json`.
pub struct Form {
    /// `tokenizer.ggml.model`.
    pub model: &'static str,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<&'static str>,
    pub add_space_prefix: Option<bool>,
    pub unknown: Option<u32>,
}

/// The metadata of a BPE tokenizer.
pub fn metadata(json: &Value, form: &Form) -> Metadata {
    let mut tokens: Vec<(String, i32)> = Vec::new();
    let mut put = |id: &Value, token: &str, kind: i32| {
        let id = id.as_u64().unwrap() as usize;
        if tokens.len() <= id {
            tokens.resize(id + 1, (String::new(), UNUSED));
        }
        tokens[id] = (token.to_owned(), kind);
    };
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        let is_byte = token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
        put(id, token, if is_byte { BYTE } else { NORMAL });
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
        put(&token["id"], token["content"].as_str().unwrap(), kind);
    }
    for (id, (token, kind)) in tokens.iter_mut().enumerate() {
        if *kind == UNUSED {
            *token = format!("[PAD{id}]");
        }
    }

    let mut metadata = Metadata::new();
    let mut set =
        |key: &str, value: Gguf| _ = metadata.insert(format!("tokenizer.ggml.{key}"), value);
    set("model", Gguf::Str(form.model.to_owned()));
    if let Some(pre) = form.pre {
        set("pre", Gguf::Str(pre.to_owned()));
    }
    if form.model == "llama" {
        let scores = scores(&json["model"]["merges"], &tokens);
        set("scores", Gguf::Array(Array::F32(scores)));
    } else {
        let merges: Strings =
            json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
        set("merges", Gguf::Array(Array::Str(merges)));
    }
    if let Some(prefix) = form.add_space_prefix {
        set("add_space_prefix", Gguf::Bool(prefix));
    }
    if let Some(unknown) = form.unknown {
        set("unknown_token_id", Gguf::U32(unknown));
    }
    let (tokens, kinds): (Vec<String>, Vec<i32>) = tokens.into_iter().unzip();
    set("tokens", Gguf::Array(Array::Str(tokens.iter().collect())));
    set("token_type", Gguf::Array(Array::I32(kinds)));
    metadata
}

/// A merge as one string, whichever way the file writes it.
fn merge(merge: &Value) -> String {
    match merge {
        Value::String(text) => text.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    }
}

/// The scores of SentencePiece pieces: those that are merged earlier have better ones.
fn scores(merges: &Value, tokens: &[(String, i32)]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, entry) in merges.as_array().unwrap().iter().map(merge).enumerate() {
        ranks.entry(entry.replacen(' ', "", 1)).or_insert(rank);
    }
    let score = |(token, _): &(String, i32)| -(*ranks.get(token).unwrap_or(&1_000_000) as f32);
    tokens.iter().map(score).collect()
}
