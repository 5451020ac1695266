//! A small tokenizer for tests.

use baton_text::Tokenizer;

/// The bytes, a few merges and control tokens.
pub const VOCAB: usize = 264;
/// `<|end|>`, which ends an answer.
pub const END: u32 = 257;

/// Ids 0 to 255 are the bytes in GPT-2's order of characters, 256 and on control tokens and merges.
pub fn tokenizer() -> Tokenizer {
    tokenizer_with("in")
}

/// The same with another token, of two characters, in the place of `in`.
#[allow(dead_code)]
pub fn tokenizer_with(pair: &str) -> Tokenizer {
    let parts = [&pair[..1], &pair[1..]];
    let mut alphabet: Vec<char> = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').collect();
    alphabet.extend((0x100..).filter_map(char::from_u32).take(256 - alphabet.len()));
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let merges = [("Ġa", 258), ("th", 259), (pair, 260)];
    let controls =
        [("<|start|>", 256), ("<|end|>", END), ("<|a|>", 261), ("<|b|>", 262), ("<|c|>", 263)];
    // Control tokens too: the loader gives ids of its own to those that are only listed as added.
    for (token, id) in merges.into_iter().chain(controls) {
        vocab.insert(token.into(), id.into());
    }
    let special = |(content, id): (&str, u32)| {
        serde_json::json!({
            "id": id, "content": content, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": controls.map(special),
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false,
        },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false },
        "model": {
            "type": "BPE", "vocab": vocab, "merges": [["Ġ", "a"], ["t", "h"], parts],
        },
    });
    Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap()
}
