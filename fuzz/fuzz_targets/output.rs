//! Any output of a model in any format: the same pieces however it is cut, calls that are JSON
//! objects, and nothing lost where nothing is split off.

#![no_main]

use baton_text::{OutputFormat, OutputParser, ParserOptions, Piece};
use libfuzzer_sys::fuzz_target;

/// What gives each format away.
const TEMPLATES: &[&str] = &[
    "<|channel|> <|message|>",
    "<|tool_call> <|channel>",
    "<start_function_call>",
    "[TOOL_CALLS] [THINK]",
    "<｜tool▁call▁begin｜> </think>",
    "<|tool_call_begin|> ◁/think▷",
    "<|tool_call_start|>",
    "<tool_call> <arg_key>",
    "<tool_call> </think>",
    "<|python_tag|>",
    "<start_of_turn>",
    "</think>",
];

fn read<'a>(mut parser: OutputParser, parts: impl IntoIterator<Item = &'a str>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| parser.push(part)).collect();
    pieces.extend(parser.finish());
    for piece in pieces {
        match (all.last_mut(), piece) {
            (Some(Piece::Text(last)), Piece::Text(text)) => last.push_str(&text),
            (Some(Piece::Reasoning(last)), Piece::Reasoning(text)) => last.push_str(&text),
            (_, piece) => all.push(piece),
        }
    }
    all
}

fuzz_target!(|input: (u8, u8, bool, &str)| {
    let (template, flags, known, output) = input;
    let format = OutputFormat::detect(Some(TEMPLATES[usize::from(template) % TEMPLATES.len()]));
    let options = ParserOptions {
        tools: flags & 1 > 0,
        reasoning: flags & 2 > 0,
        reasoning_open: flags & 4 > 0,
        tool_names: if known { vec!["f".into(), "ping".into()] } else { Vec::new() },
    };
    let whole = read(format.parser(options.clone()), [output]);
    let characters = output.char_indices().map(|(at, c)| &output[at..at + c.len_utf8()]);
    assert_eq!(read(format.parser(options.clone()), characters), whole);
    for piece in &whole {
        if let Piece::ToolCallArguments { json, .. } = piece {
            assert!(serde_json::from_str::<serde_json::Value>(json).unwrap().is_object());
        }
    }
    let calls = options.tools && known;
    if !calls && !options.reasoning && format.name() != "gpt-oss" {
        let expected = if output.is_empty() { vec![] } else { vec![Piece::Text(output.into())] };
        assert_eq!(whole, expected);
    }
});
