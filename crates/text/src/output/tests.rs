use std::time::{Duration, Instant};

use super::*;

fn parser(template: &str) -> OutputParser {
    let options = ParserOptions {
        tools: true,
        reasoning: true,
        reasoning_open: false,
        tool_names: vec!["ping".to_owned()],
    };
    OutputFormat::detect(Some(template)).parser(options)
}

fn text(text: &str) -> Vec<Piece> {
    vec![Piece::Text(text.to_owned())]
}

#[test]
fn formats_are_found_by_their_templates() {
    let cases = [
        ("<|channel|>analysis<|message|>", "gpt-oss", true, true),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", false, true),
        ("<tool_call> </think>", "hermes", true, true),
        ("<|start_header_id|>ipython", "llama3", false, true),
        ("<|start_header_id|>", "plain", false, false),
        ("<start_of_turn>", "gemma", false, true),
        ("content.split('</think>')", "plain", true, false),
    ];
    for (template, name, reasons, calls) in cases {
        let format = OutputFormat::detect(Some(template));
        assert_eq!((format.name(), format.reasons(), format.calls_tools()), (name, reasons, calls));
    }
    assert_eq!(OutputFormat::detect(None).name(), "plain");
}

#[test]
fn the_end_of_the_prompt_tells_whether_reasoning_is_open() {
    let format = OutputFormat::detect(Some("</think>"));
    assert!(format.reasoning_open("<|im_start|>assistant\n<think>\n"));
    assert!(!format.reasoning_open("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!format.reasoning_open("What is <think>?<|im_end|>\n<|im_start|>assistant\n"));
    let plain = OutputFormat::detect(None);
    assert!(!plain.reasoning_open("<think>\n"));
    let open = format.parser_after(ParserOptions::default(), "<think>\n");
    let closed = format.parser_after(ParserOptions::default(), "</think>\n\n");
    assert_eq!((open.reasoning(), closed.reasoning()), (true, false));
}

#[test]
fn text_streams_although_tools_are_given() {
    for template in ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<start_of_turn>"] {
        let mut parser = parser(template);
        assert_eq!(parser.push("Hello"), text("Hello"));
        assert_eq!(parser.push(", you"), text(", you"));
        assert_eq!(parser.push("\n"), text("\n"));
    }
    let mut parser = parser("<tool_call>");
    assert_eq!(parser.push("a <tool"), text("a "));
    assert_eq!(parser.push("s>"), text("<tools>"));
    assert_eq!(parser.push("<tool_call>\n"), []);
    assert_eq!(parser.push("no"), text("<tool_call>\nno"));
}

#[test]
fn an_answer_in_json_is_not_held_back_for_long() {
    for template in ["<|python_tag|>", "<start_of_turn>"] {
        let mut parser = parser(template);
        assert_eq!(parser.push("{\"pla"), []);
        assert_eq!(parser.push("ce\": "), text("{\"place\": "));
        assert_eq!(parser.push("[1"), text("[1"));
    }
}

#[test]
fn a_grammar_waits_for_the_end_of_reasoning() {
    let mut think = parser("</think>");
    let seen = ["", "\n<thi", "nk>", "a", "</think", ">", "x"].map(|part| {
        think.push(part);
        think.reasoning()
    });
    assert_eq!(seen, [true, true, true, true, true, false, false]);
    let mut none = parser("</think>");
    none.push("<b");
    assert!(!none.reasoning());
    assert!(!parser("").reasoning());

    let mut harmony = parser("<|channel|> <|message|>");
    let parts = [
        "",
        "<|channel|>analysis<|message|>",
        "a<|end|>",
        "<|start|>assistant",
        "<|channel|>final",
        "<|message|>",
        "x",
    ];
    let seen = parts.map(|part| {
        harmony.push(part);
        harmony.reasoning()
    });
    assert_eq!(seen, [true, true, true, true, true, false, false]);
}

#[test]
fn a_call_comes_whole_with_its_arguments_as_written() {
    let mut parser = parser("<tool_call>");
    assert_eq!(parser.push("<tool_call>{\"name\": \"ping\", \"arguments\": {\"n\": 1"), []);
    let json = "{\"n\": 12345678901234567890123}".to_owned();
    assert_eq!(
        parser.push("2345678901234567890123}}"),
        [
            Piece::ToolCallStart { index: 0, name: "ping".into() },
            Piece::ToolCallArguments { index: 0, json },
            Piece::ToolCallEnd { index: 0 },
        ]
    );
    assert_eq!(parser.push("\n</tool_call>\n"), []);
    assert_eq!(parser.finish(), []);
}

#[test]
fn endless_and_deep_outputs_take_linear_time() {
    let many = |part: &str| part.repeat(100_000 / part.len());
    let start = Instant::now();
    for template in [
        "<tool_call> <function= </think>",
        "<|python_tag|>",
        "[TOOL_CALLS] [THINK]",
        "<start_of_turn>",
        "<|tool_call> <|channel>",
        "<｜tool▁call▁begin｜>",
        "<|channel|> <|message|>",
    ] {
        let parts = [
            "<tool_call>",
            "{\"name\":",
            "[",
            "<think>",
            " ",
            "<|channel|>",
            "\\",
            "{\"a\":[",
            "<|tool_call>",
            "[TOOL_CALLS]",
            "```json\n",
            "<function=ping>",
            "<｜tool▁call▁begin｜>",
        ];
        for part in parts {
            let text = many(part);
            let mut parser = parser(template);
            parser.push(&text[..text.len() / 2]);
            parser.push(&text[text.len() / 2..]);
            parser.finish();
        }
    }
    let depth = 100_000;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let arguments = format!("{}1{}", open.repeat(depth), close.repeat(depth));
        let call = format!("{{\"name\": \"ping\", \"arguments\": {{\"x\": {arguments}}}}}");
        let mut parser = parser("<tool_call>");
        let shown =
            [parser.push(&format!("<tool_call>{call}</tool_call>")), parser.finish()].concat();
        assert!(shown.iter().all(|piece| matches!(piece, Piece::Text(_))));
    }
    // With a square in the length this would be minutes.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
