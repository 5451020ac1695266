//! Grammars that cannot be used, or should not be.

use std::time::{Duration, Instant};

use super::*;
use crate::Error;

#[test]
fn what_cannot_be_obeyed_is_an_error() {
    let compiler = compiler();
    let mut wrong = Vec::new();
    for (grammar, wanted) in [
        (schema(json!({ "type": "strnig" })), "strnig"),
        (schema(json!({ "type": "object", "not": { "required": ["a"] } })), "not"),
        (schema(json!({ "type": "string", "format": "colour" })), "colour"),
        (schema(json!({ "$ref": "#/$defs/nowhere" })), "nowhere"),
        (schema(json!({ "$ref": "https://example.org/schema" })), "example.org"),
        (schema(json!({ "type": "integer", "minimum": 3, "maximum": 1 })), "minimum"),
        (schema(json!({ "enum": [] })), "empty"),
        (schema(json!(false)), "false"),
        (schema(json!("a string")), "object or boolean"),
        (schema(json!({ "type": "string", "pattern": "(" })), "unclosed"),
        (schema(json!({ "type": "string", "pattern": "(?=a)b" })), "look"),
        (schema(json!({ "x-guidance": { "nonsense": 1 } })), "nonsense"),
        (regex("("), "unclosed"),
        (regex("a{3,1}"), "repetition"),
        (regex("a\\"), "escape"),
        (regex("(?=a)b"), "look"),
        (lark("start: nothing"), "nothing"),
        (lark("begin: \"a\""), "start"),
        (lark("start: <|nosuchtoken|>"), "nosuchtoken"),
        (lark("start: \"a"), ""),
        (lark(""), ""),
    ] {
        let error = match compiler.compile(&grammar, None) {
            Ok(_) => {
                wrong.push(format!("{grammar:?}: no error"));
                continue;
            }
            Err(error) => error,
        };
        let text = error.to_string();
        let told = matches!(error, Error::Grammar { .. })
            && text.to_lowercase().contains(wanted)
            && !text.contains("panic")
            && text.len() < 2000;
        if !told {
            wrong.push(format!("{grammar:?}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_vocabulary_that_cannot_end_is_an_error() {
    let error = GrammarCompiler::new(&tokenizer(&[]), &HashSet::new()).unwrap_err();
    assert!(matches!(error, Error::Vocabulary { .. }), "{error}");
    assert!(GrammarCompiler::new(&tokenizer(&[]), &HashSet::from([9999])).is_err());
}

/// Grammars that are cheap to write and dear to obey. Each ends in an error or is followed for a
/// while, in bounded time.
#[test]
fn hostile_grammars_end() {
    let nested = |depth: usize, open: &str, close: &str| {
        format!("{}{}{}", open.repeat(depth), "a", close.repeat(depth))
    };
    let deep = (0..300).fold(json!({ "type": "null" }), |inner, _| json!({ "items": inner }));
    let chain: serde_json::Map<String, Value> = (0..2000)
        .map(|i| (format!("d{i}"), json!({ "$ref": format!("#/$defs/d{}", i + 1) })))
        .chain([("d2000".to_owned(), json!({ "type": "null" }))])
        .collect();
    let all_of: serde_json::Map<String, Value> = (0..1000)
        .map(|i| {
            let next = format!("#/$defs/d{}", (i + 1) % 1000);
            (format!("d{i}"), json!({ "allOf": [{ "$ref": next }, { "$ref": next }] }))
        })
        .collect();
    let properties: serde_json::Map<String, Value> =
        (0..600).map(|i| (format!("p{i}"), json!({ "type": "string" }))).collect();
    let rules = |n: usize| -> String {
        (0..n).map(|i| format!("r{i}: r{} r{}\n", i + 1, i + 1)).collect::<String>()
    };
    let terminals = |n: usize| -> String {
        (0..n).map(|i| format!("T{i}: T{} T{}\n", i + 1, i + 1)).collect::<String>()
    };
    let words: Vec<String> = (0..1000).map(|i| format!("word number {i}")).collect();
    let grammars = [
        schema(deep),
        schema(json!({ "$defs": chain, "$ref": "#/$defs/d0" })),
        schema(json!({ "$defs": all_of, "$ref": "#/$defs/d0" })),
        schema(json!({ "$ref": "#" })),
        schema(json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] })),
        schema(json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] })),
        schema(json!({ "type": "string", "maxLength": 1_000_000_000u64 })),
        schema(json!({ "type": "string", "minLength": 1_000_000_000u64 })),
        schema(json!({ "type": "string", "maxLength": u64::MAX })),
        schema(json!({ "type": "array", "maxItems": 1_000_000_000u64 })),
        schema(json!({ "type": "array", "minItems": 1_000_000_000u64 })),
        schema(json!({ "type": "object", "minProperties": 1_000_000_000u64 })),
        schema(json!({ "type": "integer", "minimum": -1e300, "maximum": 1e300 })),
        schema(json!({ "type": "number", "multipleOf": 1e-300 })),
        schema(json!({ "type": "integer", "multipleOf": 999_999_937 })),
        schema(json!({ "enum": words })),
        schema(json!({ "type": "object", "properties": properties })),
        schema(json!({ "type": "string", "pattern": nested(8000, "(", ")") })),
        schema(json!({ "type": "string", "pattern": "(a*)*(b|c+)*d{1000}{1000}{1000}" })),
        schema(json!({ "type": "string", "pattern": ".*a.{200}" })),
        schema(json!({ "title": "x".repeat(2 << 20) })),
        regex(&nested(8000, "(", ")")),
        regex(&nested(240, "(", ")*")),
        regex(&"\\w".repeat(2000)),
        regex("(\\w{1,1000}){1,1000}"),
        regex("(.*a.{100}|.*b.{100}|.*c.{100})&&x"),
        regex("(a|a)*(a|a)*(a|a)*(a|a)*(a|a)*(a|a)*b"),
        regex(&"a".repeat(1 << 20)),
        lark(&format!("start: {}", nested(60_000, "( ", " )"))),
        lark(&format!("start: {}", nested(40_000, "(", ")"))),
        lark(&format!("start: r0\n{}r2000: \"a\"", rules(2000))),
        lark(&format!("start: T0\n{}T30: \"a\"", terminals(30))),
        lark("start: start start | \"a\" |"),
        lark("start: start"),
        lark("start: a\na: b\nb: a"),
        lark("start: T\nT: T"),
        lark(&format!("start: /{}/", "\\w".repeat(100_000))),
        lark("start: \"a\"{1000000000}"),
        lark("start: x{1000000000}\nx: \"a\""),
        lark("start: (x{1000}){1000}\nx: \"a\" | \"b\""),
    ];
    let compiler = compiler();
    let mut slow = Vec::new();
    for grammar in grammars {
        let short: String = format!("{grammar:?}").chars().take(90).collect();
        let started = Instant::now();
        let mut steps = 0;
        let outcome = compiler.compile(&grammar, None).and_then(|mut constraint| {
            for step in 0..50 {
                let mask = constraint.mask()?;
                let Some(token) =
                    (0..mask.len() as u32).filter(|&id| mask.allows(id)).nth(step % 2)
                else {
                    break;
                };
                constraint.accept(token)?;
                steps += 1;
                if constraint.finished() || token == END {
                    break;
                }
            }
            Ok(())
        });
        let took = started.elapsed();
        println!("{took:?}, {steps} tokens, {short}: {outcome:?}");
        if took > Duration::from_secs(20) {
            slow.push(format!("{took:?} for {short}"));
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}
