//! Answers drawn at random among all that are allowed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;

/// Tokens by their bytes, drawn among those that are allowed, until the answer ends or is `limit`
/// tokens long.
fn walk(compiler: &GrammarCompiler, tokenizer: &Tokenizer, grammar: &Grammar, seed: u64) -> String {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut constraint = compiler.compile(grammar, None).unwrap();
    let mut tokens = Vec::new();
    while !constraint.finished() {
        let mask = constraint.mask().unwrap();
        let all: Vec<u32> = (0..mask.len() as u32).filter(|&id| mask.allows(id)).collect();
        // Printable ones are mostly preferred, and those that close something.
        let closes = |id: &&u32| matches!(tokenizer.token_bytes(**id), [b'"' | b'}' | b']']);
        let mut closing = all.iter().filter(closes).copied();
        let token = match random.next_u32() % 4 {
            0 if mask.allows(END) => END,
            0 | 1 => closing.next().unwrap_or(all[random.next_u32() as usize % all.len()]),
            _ => all[random.next_u32() as usize % all.len()],
        };
        constraint.accept(token).unwrap();
        if token == END || token == STOP {
            break;
        }
        tokens.push(token);
        assert!(tokens.len() < 5000, "{}", tokenizer.decode(&tokens, false));
    }
    let bytes: Vec<u8> = tokens.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
    String::from_utf8(bytes).expect("a grammar of text allows only text")
}

#[test]
fn whatever_is_drawn_fits() {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Item {
        kind: Kind,
        size: Option<f64>,
        tags: Vec<String>,
        inner: Box<Option<Item>>,
    }
    #[derive(serde::Deserialize)]
    enum Kind {
        #[serde(rename = "a\"b")]
        Quoted,
        #[serde(rename = "ü")]
        Umlaut,
    }
    let words =
        ["{\"", "\": ", "\": \"", ", \"", "\"}", "}}", "[]", "ind", "\"size\"", "\\\"", "\\u"];
    let tokenizer = tokenizer(&words);
    let compiler = compiler_of(&tokenizer);
    let item = schema(json!({
        "type": "object",
        "properties": {
            "kind": { "enum": ["a\"b", "ü"] },
            "size": { "type": ["integer", "null"], "minimum": -128, "maximum": 127 },
            "tags": { "type": "array", "items": { "type": "string" }, "maxItems": 3 },
            "inner": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] },
        },
        "required": ["kind", "tags", "inner"],
        "additionalProperties": false,
    }));
    for seed in 0..60 {
        let text = walk(&compiler, &tokenizer, &item, seed);
        let parsed: Result<Item, _> = serde_json::from_str(&text);
        let item = parsed.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(item.tags.len() <= 3, "{text}");
        // Minus zero is an integer, too.
        let fits = |size: f64| size.fract() == 0.0 && (-128.0..=127.0).contains(&size);
        assert!(item.size.is_none_or(fits), "{text}");
        let any = walk(&compiler, &tokenizer, &Grammar::JsonObject, seed);
        assert!(serde_json::from_str::<Value>(&any).is_ok_and(|v| v.is_object()), "{any}");
        let plate = walk(&compiler, &tokenizer, &regex("[A-Z]{1,3}-[0-9]+(\\.[0-9]{2})?"), seed);
        assert!(is_plate(&plate), "{plate}");
    }
}

/// `[A-Z]{1,3}-[0-9]+(\.[0-9]{2})?`, written plainly.
fn is_plate(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let Some((letters, number)) = text.split_once('-') else { return false };
    let (whole, rest) = number.split_once('.').unwrap_or((number, "00"));
    (1..=3).contains(&letters.len())
        && letters.bytes().all(|b| b.is_ascii_uppercase())
        && digits(whole)
        && digits(rest)
        && rest.len() == 2
}
