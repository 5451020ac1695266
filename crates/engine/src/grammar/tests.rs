mod errors;
mod random;
mod reasoning;

use std::collections::HashSet;

use baton_text::Tokenizer;

use super::*;

/// The token that ends an answer.
const END: u32 = 256;
/// Another one.
const STOP: u32 = 257;
/// A control token that does not.
pub(crate) const PAD: u32 = 258;

/// The bytes, the control tokens above, and `words` from 259 on.
pub(crate) fn tokenizer(words: &[&str]) -> Tokenizer {
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
pub(crate) fn byte(byte: u8) -> u32 {
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

#[test]
fn tokens_of_absurd_length_are_never_allowed() {
    let long = "a".repeat(5000);
    let tokenizer = tokenizer(&[&long, "aa"]);
    let mut constraint = compiler_of(&tokenizer).compile(&regex("a*"), None).unwrap();
    let mask = constraint.mask().unwrap();
    assert!(!mask.allows(259) && mask.allows(260));
}
