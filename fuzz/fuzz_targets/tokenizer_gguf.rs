//! Any lists of tokens, types, scores and merges as the tokenizer of a GGUF file, and any text for it.

#![no_main]

use baton_text::Tokenizer;
use baton_weights::gguf::Array;
use baton_weights::{Metadata, Value};
use libfuzzer_sys::fuzz_target;

const MODELS: [&str; 6] = ["gpt2", "llama", "gemma4", "t5", "bert", "rwkv"];
const PRE: [&str; 6] = ["default", "llama-bpe", "qwen2", "smollm", "kimi-k2", "whitespace"];

fuzz_target!(|input: (u8, u8, u8, Vec<(String, i8, i16)>, Vec<String>, Vec<u8>, String)| {
    let (model, pre, special, tokens, merges, charsmap, text) = input;
    let mut metadata = Metadata::new();
    let mut set =
        |key: &str, value: Value| _ = metadata.insert(format!("tokenizer.ggml.{key}"), value);
    set("model", Value::Str(MODELS[model as usize % MODELS.len()].into()));
    set("pre", Value::Str(PRE[pre as usize % PRE.len()].into()));
    set("tokens", Value::Array(Array::Str(tokens.iter().map(|(token, ..)| token).collect())));
    let kinds = tokens.iter().map(|&(_, kind, _)| i32::from(kind)).collect();
    set("token_type", Value::Array(Array::I32(kinds)));
    // The bits of a short float: all kinds of numbers, and some that are none.
    let score = |&(_, _, score): &(String, i8, i16)| f32::from_bits((score as u32) << 16);
    set("scores", Value::Array(Array::F32(tokens.iter().map(score).collect())));
    set("merges", Value::Array(Array::Str(merges.iter().collect())));
    set("precompiled_charsmap", Value::Array(Array::U8(charsmap)));
    for (bit, key) in
        ["add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"]
            .into_iter()
            .enumerate()
    {
        set(key, Value::Bool(special >> bit & 1 == 1));
    }
    for key in ["bos_token_id", "eos_token_id", "unknown_token_id", "seperator_token_id"] {
        set(key, Value::U32(u32::from(special >> 4)));
    }
    let Ok(tokenizer) = Tokenizer::from_gguf(&metadata) else { return };
    for add_special in [true, false] {
        for ids in
            [tokenizer.encode(&text, add_special), tokenizer.encode_as_text(&text, add_special)]
        {
            if let Ok(ids) = ids {
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                tokenizer.decode(&ids, true);
            }
        }
    }
});
