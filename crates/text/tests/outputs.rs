//! What models write, split into reasoning, text and calls: a corpus over all formats, and for
//! anything else that the result does not depend on how the text was cut and that nothing is lost.

use std::path::Path;
use std::sync::LazyLock;

use baton_text::{OutputFormat, OutputParser, ParserOptions, Piece};
use proptest::prelude::*;
use serde_json::{Value, json};

static CASES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/outputs.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    file["cases"].as_array().unwrap().clone()
});

/// What of a template gives each format away, as the corpus has it.
static TEMPLATES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut all: Vec<_> = CASES.iter().map(|case| case["template"].as_str().unwrap()).collect();
    all.sort_unstable();
    all.dedup();
    all
});

fn tools() -> Value {
    let tool = |name: &str, properties: Value| {
        let parameters = json!({ "type": "object", "properties": properties });
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    };
    json!([
        tool("weather", json!({ "place": { "type": "string" }, "days": { "type": "integer" } })),
        tool("search", json!({ "query": { "type": "string" } })),
        tool("ping", json!({})),
    ])
}

fn options(tools: bool, reasoning: bool) -> ParserOptions {
    let tool_names = ["weather", "search", "ping"].map(str::to_owned).to_vec();
    ParserOptions { tools, reasoning, reasoning_open: false, tool_names }
}

/// The parser a case asks for.
fn parser(case: &Value) -> OutputParser {
    let format = OutputFormat::detect(case["template"].as_str());
    let flag = |name: &str, default| case[name].as_bool().unwrap_or(default);
    let mut options = options(flag("tools", true), flag("reasoning", true));
    options.reasoning_open = flag("open", false);
    match case["prompt"].as_str() {
        Some(prompt) => format.parser_after(options, prompt),
        None => format.parser(options),
    }
    .with_schemas(&tools())
}

/// Feeds the parts, and joins neighbours of the pieces that come out.
fn read<'a>(mut parser: OutputParser, parts: impl IntoIterator<Item = &'a str>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    let mut take = |pieces: Vec<Piece>| {
        for piece in pieces {
            match (all.last_mut(), piece) {
                (Some(Piece::Text(last)), Piece::Text(text)) => last.push_str(&text),
                (Some(Piece::Reasoning(last)), Piece::Reasoning(text)) => last.push_str(&text),
                (_, piece) => all.push(piece),
            }
        }
    };
    for part in parts {
        take(parser.push(part));
    }
    take(parser.finish());
    all
}

/// Pieces in the form of the corpus.
fn shown(pieces: &[Piece]) -> Value {
    let mut shown = Vec::new();
    let mut calls = 0;
    let mut pieces = pieces.iter();
    while let Some(piece) = pieces.next() {
        shown.push(match piece {
            Piece::Reasoning(text) => json!(["reasoning", text]),
            Piece::Text(text) => json!(["text", text]),
            Piece::ToolCallStart { index, name } => {
                assert_eq!(*index, calls);
                calls += 1;
                let mut arguments = String::new();
                loop {
                    match pieces.next() {
                        Some(Piece::ToolCallArguments { index: of, json }) if of == index => {
                            arguments += json;
                        }
                        Some(Piece::ToolCallEnd { index: of }) if of == index => break,
                        other => panic!("{other:?} inside of call {index}"),
                    }
                }
                let arguments: Value = serde_json::from_str(&arguments).unwrap();
                assert!(arguments.is_object(), "{arguments}");
                json!(["call", name, arguments])
            }
            piece => panic!("{piece:?} outside of a call"),
        });
    }
    Value::Array(shown)
}

fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(place, c)| &text[place..place + c.len_utf8()])
}

#[test]
fn the_corpus_is_read_however_it_is_cut() {
    assert!(CASES.len() >= 90, "{}", CASES.len());
    let mut wrong = Vec::new();
    for case in CASES.iter() {
        let output = case["output"].as_str().unwrap();
        let whole = read(parser(case), [output]);
        if shown(&whole) != case["pieces"] {
            wrong.push(format!("{}:\n  {}\n  {}", case["name"], case["pieces"], shown(&whole)));
        }
        assert_eq!(read(parser(case), characters(output)), whole, "{}", case["name"]);
        for (cut, _) in output.char_indices() {
            assert_eq!(
                read(parser(case), [&output[..cut], &output[cut..]]),
                whole,
                "{}",
                case["name"]
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Parts of which outputs are made, good and bad.
const PARTS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=ping>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "ping[ARGS]{}",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "```tool_code",
    "```json",
    "```",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
    "analysis",
    "commentary",
    "final",
    " to=functions.ping",
    "assistant",
    "<|channel>thought",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "call:ping{}",
    "<|\"|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁sep｜>",
    "<arg_key>",
    "<arg_value>",
    "{\"name\": \"ping\", \"arguments\": {}}",
    "{\"name\": \"ping\", \"arguments\": {",
    "}",
    "]",
    "[",
    "{",
    "{}",
    "[ping()]",
    "ping(",
    ")",
    "\"",
    "'",
    "\\",
    ",",
    ";",
    " ",
    "\n",
    "\n\n",
    "a",
    "é",
    "日",
    "<",
    "</",
    "<|",
    "weather",
    "x y",
    "1",
    "null",
    "print(ping())",
];

fn output() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        8 => proptest::sample::select(PARTS).prop_map(str::to_owned),
        1 => ".{0,3}",
        2 => (0..CASES.len()).prop_map(|case| CASES[case]["output"].as_str().unwrap().to_owned()),
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// `text` cut at characters that `cuts` chooses.
fn cut<'a>(text: &'a str, cuts: &[bool]) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for ((place, _), _) in text.char_indices().zip(cuts.iter().cycle()).filter(|(_, cut)| **cut) {
        parts.push(&text[start..place]);
        start = place;
    }
    parts.push(&text[start..]);
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_output_is_read_the_same_however_it_is_cut(
        output in output(),
        cuts in proptest::collection::vec(any::<bool>(), 1..40),
        template in 0..TEMPLATES.len(),
        tools in any::<bool>(), reasoning in any::<bool>(), open in any::<bool>(),
    ) {
        let format = OutputFormat::detect(Some(TEMPLATES[template]));
        let options = ParserOptions { reasoning_open: open, ..options(tools, reasoning) };
        let parser = || format.parser(options.clone());
        let whole = read(parser(), [output.as_str()]);
        prop_assert_eq!(&read(parser(), cut(&output, &cuts)), &whole);
        prop_assert_eq!(&read(parser(), characters(&output)), &whole);
        shown(&whole);
    }

    #[test]
    fn what_is_not_split_off_comes_back_as_it_was(
        output in output(), template in 0..TEMPLATES.len(), open in any::<bool>(),
    ) {
        let format = OutputFormat::detect(Some(TEMPLATES[template]));
        // In the harmony format the headers of answers are no part of them.
        prop_assume!(format.name() != "gpt-oss");
        let mut options = ParserOptions { reasoning_open: open, ..options(true, false) };
        options.tool_names.clear();
        let text = |pieces: Vec<Piece>| match pieces.as_slice() {
            [] => String::new(),
            [Piece::Text(text)] => text.clone(),
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(&text(read(format.parser(options.clone()), [output.as_str()])), &output);
        options.tools = false;
        prop_assert_eq!(&text(read(format.parser(options), [output.as_str()])), &output);
    }
}
