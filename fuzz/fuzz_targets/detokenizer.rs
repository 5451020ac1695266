//! Any ids, one at a time: the text is that of all of them at once, and a stop string over it cuts
//! where searching the whole text would.

#![no_main]

use std::sync::LazyLock;

use baton_text::{StopStrings, Tokenizer};
use baton_weights::gguf::Array;
use baton_weights::{Metadata, Value};
use libfuzzer_sys::fuzz_target;

/// The 256 bytes and some words.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["▁Hi", "▁", "▁▁", "日", "😀", "<end>", "e", "n", "d", ">"];
    let tokens: Vec<String> = bytes.chain(words.map(str::to_owned)).collect();
    let kind = |id| {
        if id < 256 {
            6
        } else if id == 261 {
            3
        } else {
            1
        }
    };
    let mut metadata = Metadata::new();
    let kinds = (0..tokens.len()).map(kind).collect();
    metadata.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(tokens.iter().collect())));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    Tokenizer::from_gguf(&metadata).unwrap()
});

fuzz_target!(|bytes: &[u8]| {
    let ids: Vec<u32> = bytes.iter().map(|&byte| u32::from(byte) + u32::from(byte % 13)).collect();
    let all = TOKENIZER.decode(&ids, true);
    let mut detokenizer = TOKENIZER.detokenizer(true);
    let mut stops = StopStrings::new(["end", "日日", "é", "nd>"]).unwrap();
    let (mut streamed, mut shown, mut stopped) = (String::new(), String::new(), false);
    let mut take = |text: String| {
        streamed += &text;
        if !stopped {
            let emit = stops.push(&text);
            shown += &emit.text;
            stopped = emit.stopped.is_some();
        }
    };
    ids.iter().for_each(|&id| take(detokenizer.push(id)));
    take(detokenizer.finish());
    if !stopped {
        shown += &stops.finish();
    }
    assert_eq!(streamed, all);
    let first_end = ["end", "日日", "é", "nd>"]
        .iter()
        .filter_map(|stop| all.find(stop).map(|start| (start + stop.len(), start)))
        .min();
    assert_eq!(shown, first_end.map_or(all.as_str(), |(_, start)| &all[..start]));
});
