use std::collections::HashSet;
use std::time::{Duration, Instant};

use baton_text::Tokenizer;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::Error;

/// The token that ends an answer.
const END: u32 = 256;
/// Another one.
const STOP: u32 = 257;
/// A control token that does not.
const PAD: u32 = 258;

/// The bytes, the control tokens above, and `words` from 259 on.
fn tokenizer(words: &[&str]) -> Tokenizer {
    let mut alphabet: Vec<char> = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').collect();
    alphabet.extend((0x100..).filter_map(char::from_u32).take(256 - alphabet.len()));
    let names = ["<|end|>", "<|eot_id|>", "<|pad|>"].iter().chain(words);
    let added: Vec<(usize, &str)> = (256..).zip(names.copied()).collect();
    let mut vocab: serde_json::Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    vocab.extend(added.iter().map(|&(id, word)| (word.to_owned(), id.into())));
    let added = added.iter().map(|&(id, content)| {
        json!({
            "id": id, "content": content, "special": id <= PAD as usize, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    });
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    let file = json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": byte_level,
        "decoder": byte_level, "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    Tokenizer::from_json_bytes(file.to_string().as_bytes()).unwrap()
}

fn compiler_of(tokenizer: &Tokenizer) -> GrammarCompiler {
    let ends: HashSet<u32> = tokenizer.eog().iter().copied().collect();
    assert_eq!(ends, HashSet::from([END, STOP]));
    GrammarCompiler::new(tokenizer, &ends).unwrap()
}

fn compiler() -> GrammarCompiler {
    compiler_of(&tokenizer(&[]))
}

fn schema(schema: Value) -> Grammar {
    Grammar::JsonSchema(schema)
}

fn regex(regex: &str) -> Grammar {
    Grammar::Regex(regex.into())
}

fn lark(lark: &str) -> Grammar {
    Grammar::Lark(lark.into())
}

/// The id of the token that is one byte.
fn byte(byte: u8) -> u32 {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let before = (0..byte).filter(|&b| printable(b) == printable(byte)).count() as u32;
    if printable(byte) { before } else { 188 + before }
}

/// How much of `text`, byte by byte, a constraint takes, and whether it may end there.
fn follow(constraint: &mut Constraint, text: &str) -> (usize, bool) {
    for (at, token) in text.bytes().map(byte).enumerate() {
        if !constraint.mask().unwrap().allows(token) {
            return (at, false);
        }
        constraint.accept(token).unwrap();
    }
    let mask = constraint.mask().unwrap();
    assert_eq!(mask.allows(END), mask.allows(STOP));
    assert!(!mask.allows(PAD));
    (text.len(), mask.allows(END))
}

fn matches(grammar: &Grammar, text: &str) -> bool {
    follow(&mut compiler().compile(grammar, None).unwrap(), text) == (text.len(), true)
}

#[test]
fn the_ids_of_bytes_are_right() {
    let tokenizer = tokenizer(&[]);
    assert!((0..=255).all(|b| tokenizer.token_bytes(byte(b)) == [b]));
}

#[test]
fn a_json_object_is_one_and_nothing_else() {
    for text in [
        "{}",
        "{ }",
        r#"{"a":1}"#,
        r#"{"a": [1, -2.5e3, "x\n\u001f", null, true, {}], "b": {"c": []}}"#,
        "{\n  \"a\": [\n    1,\n    2\n  ]\n}",
        r#"{"ключ": "日本 😀"}"#,
    ] {
        assert!(matches(&Grammar::JsonObject, text), "{text}");
        serde_json::from_str::<Value>(text).unwrap();
    }
    for text in
        ["", "[]", "1", r#""a""#, "{", r#"{"a"}"#, "{a:1}", r#"{"a":01}"#, r#"{"a":"\x"}"#, "{}}"]
    {
        assert!(!matches(&Grammar::JsonObject, text), "{text}");
    }
}

#[test]
fn white_space_in_json_is_bounded() {
    let takes =
        |text: &str| follow(&mut compiler().compile(&Grammar::JsonObject, None).unwrap(), text).0;
    assert_eq!(takes(" {}"), 0, "none before");
    assert_eq!(takes("{} "), 2, "none after");
    assert_eq!(takes("{}\n"), 2);
    assert_eq!(takes("{  }"), 2, "one space at a time");
    assert_eq!(takes("{\n\n}"), 2, "one line break at a time");
    assert_eq!(takes("{\t}"), 1);
    let indented = format!("{{\n{}", " ".repeat(30));
    assert_eq!(takes(&indented), 22, "at most 20 spaces of indentation");
    let compact = schema(json!({ "x-guidance": { "whitespace_flexible": false } }));
    assert!(matches(&compact, r#"{"a":1}"#) && !matches(&compact, r#"{"a": 1}"#));
    let within = lark(&format!(
        "start: \"<\" obj \">\"\nobj: %json {}",
        Grammar::bounded(json!({ "type": "object" }))
    ));
    assert!(matches(&within, "<{ }>") && !matches(&within, "<{  }>"));
}

#[test]
fn a_schema_is_obeyed() {
    let person = schema(json!({
        "$defs": { "pet": { "type": "object", "properties": { "legs": { "type": "integer" } },
            "required": ["legs"], "additionalProperties": false } },
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 5 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "kind": { "enum": ["a", "b"] },
            "mail": { "type": "string", "pattern": "^[a-z]+@[a-z]+$" },
            "pets": { "type": "array", "items": { "$ref": "#/$defs/pet" }, "maxItems": 2 },
            "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    }));
    for text in [
        r#"{"name":"Ada","age":36}"#,
        r#"{"name":"日本の言葉","age":120,"kind":"b"}"#,
        r#"{"name":"","age":0,"mail":"a@b","pets":[{"legs":4},{"legs":2}],"note":null}"#,
    ] {
        assert!(matches(&person, text), "{text}");
    }
    for text in [
        r#"{"name":"Ada"}"#,
        r#"{"age":36,"name":"Ada"}"#,
        r#"{"name":"Ada Lovelace","age":36}"#,
        r#"{"name":"Ada","age":121}"#,
        r#"{"name":"Ada","age":3.5}"#,
        r#"{"name":"Ada","age":36,"kind":"c"}"#,
        r#"{"name":"Ada","age":36,"mail":"a"}"#,
        r#"{"name":"Ada","age":36,"pets":[{"legs":4},{"legs":4},{"legs":4}]}"#,
        r#"{"name":"Ada","age":36,"other":1}"#,
    ] {
        assert!(!matches(&person, text), "{text}");
    }
    assert!(matches(&schema(json!(true)), "[1, {}]"));
    assert!(matches(&schema(json!({ "const": 5 })), "5"));
}

#[test]
fn a_regular_expression_matches_all_of_the_answer() {
    assert!(matches(&regex("(yes|no)!?"), "yes!"));
    assert!(!matches(&regex("(yes|no)!?"), "yes!!") && !matches(&regex("(yes|no)!?"), "y"));
    assert!(matches(&regex(r"^[0-9]{2}/\d\n$"), "12/3\n"));
    assert!(matches(&regex(r"a\$"), "a$") && matches(&regex(r"a\\$"), r"a\"));
    assert!(matches(&regex("[äöü]+"), "üä"));
    assert!(matches(&regex("<.*>"), "<|end|>"), "text that looks like a control token");
    assert!(matches(&regex(""), ""));
}

#[test]
fn a_lark_grammar_is_parsed() {
    let sum = lark(
        "start: expr\nexpr: NUMBER | expr \"+\" expr | \"(\" expr \")\"\nNUMBER: /[0-9]+/\n%ignore / /",
    );
    assert!(matches(&sum, "1 + (22+3)") && matches(&sum, "((7))"));
    assert!(!matches(&sum, "1 +") && !matches(&sum, "(1"));
}

#[test]
fn tokens_may_reach_over_symbols_and_end_within_them() {
    let tokenizer = tokenizer(&["{\"na", "me\": ", "\"}", "th", "{\"x", " a", "\"} "]);
    let compiler = compiler_of(&tokenizer);
    let name = schema(json!({
        "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
        "additionalProperties": false,
    }));
    let mut constraint = compiler.compile(&name, None).unwrap();
    let mask = constraint.mask().unwrap().clone();
    let allowed: Vec<u32> = (0..mask.len() as u32).filter(|&id| mask.allows(id)).collect();
    assert_eq!(allowed, [byte(b'{'), 259], "not the token with another name");
    for token in [259, 260, byte(b'"'), 264, 262] {
        assert!(constraint.mask().unwrap().allows(token), "{token}");
        assert!(!constraint.finished());
        constraint.accept(token).unwrap();
    }
    let mask = constraint.mask().unwrap();
    assert!(mask.allows(261) && !mask.allows(265), "white space after the last brace");
    constraint.accept(261).unwrap();
    assert!(constraint.finished());

    let mut constraint = compiler.compile(&lark("start: \"t\" \"h\" \"e\""), None).unwrap();
    assert!(constraint.mask().unwrap().allows(262) && constraint.mask().unwrap().count() == 2);
    constraint.accept(262).unwrap();
    assert_eq!(follow(&mut constraint, "e"), (1, true));
}

#[test]
fn a_complete_answer_can_only_end() {
    let mut constraint = compiler().compile(&regex("ab?"), None).unwrap();
    assert!(!constraint.mask().unwrap().allows(END));
    assert!(constraint.accept(END).is_err(), "not yet");
    let mut constraint = compiler().compile(&regex("ab?"), None).unwrap();
    assert_eq!(follow(&mut constraint, "a"), (1, true));
    assert!(!constraint.finished(), "it could go on");
    let mut other = compiler().compile(&regex("ab?"), None).unwrap();
    follow(&mut other, "a");
    other.accept(STOP).unwrap();
    assert_eq!(follow(&mut constraint, "b"), (1, true));
    assert!(constraint.finished());
    assert_eq!(constraint.mask().unwrap().count(), 2, "both ends");
    constraint.accept(END).unwrap();
    let mut constraint = compiler().compile(&regex("a"), None).unwrap();
    assert!(constraint.accept(byte(b'x')).is_err(), "it was not allowed");
    assert!(constraint.mask().is_err(), "and nothing follows");
}

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
        (schema(json!("a string")), "string"),
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

#[test]
fn tokens_of_absurd_length_are_never_allowed() {
    let long = "a".repeat(5000);
    let tokenizer = tokenizer(&[&long, "aa"]);
    let mut constraint = compiler_of(&tokenizer).compile(&regex("a*"), None).unwrap();
    let mask = constraint.mask().unwrap();
    assert!(!mask.allows(259) && mask.allows(260));
}

/// Grammars that are cheap to write and dear to obey. Each ends in an error or is followed for a
/// while, in bounded time.
#[test]
fn hostile_grammars_end() {
    let nested = |depth: usize, open: &str, close: &str| {
        format!("{}{}{}", open.repeat(depth), "a", close.repeat(depth))
    };
    let deep = (0..300).fold(json!({ "type": "null" }), |inner, _| json!({ "items": inner }));
    let chain: serde_json::Map<String, Value> = (0..5000)
        .map(|i| (format!("d{i}"), json!({ "$ref": format!("#/$defs/d{}", i + 1) })))
        .chain([("d5000".to_owned(), json!({ "type": "null" }))])
        .collect();
    let all_of: serde_json::Map<String, Value> = (0..1000)
        .map(|i| {
            let next = format!("#/$defs/d{}", (i + 1) % 1000);
            (format!("d{i}"), json!({ "allOf": [{ "$ref": next }, { "$ref": next }] }))
        })
        .collect();
    let properties: serde_json::Map<String, Value> =
        (0..2000).map(|i| (format!("p{i}"), json!({ "type": "string" }))).collect();
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
        regex(&"\\w".repeat(8000)),
        regex("(\\w{1,1000}){1,1000}"),
        regex("(.*a.{100}|.*b.{100}|.*c.{100})&&x"),
        regex("(a|a)*(a|a)*(a|a)*(a|a)*(a|a)*(a|a)*b"),
        regex(&"a".repeat(1 << 20)),
        lark(&format!("start: {}", nested(50_000, "( \"", "\" )"))),
        lark(&format!("start: {}", nested(150, "( ", " )"))),
        lark(&format!("start: r0\n{}r5000: \"a\"", rules(5000))),
        lark(&format!("start: T0\n{}T5000: \"a\"", terminals(5000))),
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
        if took > Duration::from_secs(3) {
            slow.push(format!("{took:?} for {short}"));
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}

/// What may follow after `tokens` of an answer to `a+`, with a constraint that begins after
/// `</think>`.
fn after(compiler: &GrammarCompiler, tokens: &[u32]) -> Constraint {
    let mut constraint = compiler.compile(&regex("a+!"), Some("</think>")).unwrap();
    for &token in tokens {
        assert!(constraint.mask().unwrap().allows(token), "{token} in {tokens:?}");
        constraint.accept(token).unwrap();
    }
    constraint
}

#[test]
fn a_constraint_may_begin_after_the_reasoning() {
    let words =
        ["</think>", "</", "think", ">\n", ">a", "\n\n", "x</think>b", "</think>\n", "     "];
    let [whole, open, think, close, beyond, lines, far, line, spaces] =
        [259, 260, 261, 262, 263, 264, 265, 266, 267];
    let compiler = compiler_of(&tokenizer(&words));
    let free = after(&compiler, &[]).mask().unwrap().clone();
    assert!(!free.allows(END) && !free.allows(STOP), "the answer comes first");
    assert!(!free.allows(far), "it would begin the answer without asking");
    assert_eq!(free.count(), free.len() - 3);
    // The text comes as one token, in tokens, and with white space.
    for tokens in [
        &[byte(b'x'), whole][..],
        &[open, think, byte(b'>')],
        &[open, open, think, close],
        &[whole, lines],
        &[line, byte(b' ')],
        &[byte(b'<'), line],
    ] {
        let mut constraint = after(&compiler, tokens);
        assert!(!constraint.finished());
        let mask = constraint.mask().unwrap();
        assert!(mask.allows(byte(b'a')) && !mask.allows(byte(b'x')), "{tokens:?}");
        assert!(!mask.allows(END) && !mask.allows(spaces), "{tokens:?}");
        assert_eq!(follow(&mut constraint, "aa!"), (3, true));
        assert!(constraint.finished());
    }
    // A token that completes it must not go on with something else.
    assert!(after(&compiler, &[]).mask().unwrap().allows(beyond));
    assert!(!after(&compiler, &[open, think]).mask().unwrap().allows(beyond));
    assert!(after(&compiler, &[think]).mask().unwrap().allows(beyond));
    // White space has an end, and there is none within the answer.
    let mut constraint = after(&compiler, &[line, lines]);
    assert!(constraint.mask().unwrap().allows(byte(b' ')));
    constraint.accept(byte(b' ')).unwrap();
    assert!(!constraint.mask().unwrap().allows(byte(b' ')));
    assert!(!after(&compiler, &[whole, byte(b'a')]).mask().unwrap().allows(byte(b' ')));
}

#[test]
fn white_space_that_the_grammar_begins_with_belongs_to_it() {
    let tokenizer = tokenizer(&["\n\n"]);
    let compiler = compiler_of(&tokenizer);
    let mut constraint = compiler.compile(&regex("\n\n\n\nb"), Some("x")).unwrap();
    for token in [byte(b'x'), 259, 259, byte(b'b')] {
        assert!(constraint.mask().unwrap().allows(token), "{token}");
        constraint.accept(token).unwrap();
    }
    assert!(constraint.finished());
}
