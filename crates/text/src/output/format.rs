//! The formats there are, and how a chat template gives away which one a model writes.

use super::body::Body;
use super::harmony;
use super::tagged::Inside;
use super::tags::{Kind, Opening, Think};

/// A format, but for the tags of its reasoning, which go with any.
#[derive(Debug)]
pub(super) struct Syntax {
    pub name: &'static str,
    /// A part of the template that shows that the model was trained on it.
    signs: &'static [&'static [&'static str]],
    pub openings: &'static [Opening],
    /// Whether a call may be the whole answer, without a marker.
    pub bare: bool,
    pub visible: &'static [&'static str],
}

const fn call(marker: &'static str, body: Body, close: Option<&'static str>) -> Opening {
    Opening { marker, kind: Kind::Call(body, close) }
}

const fn tagged(marker: &'static str, inside: Inside, close: &'static str) -> Opening {
    Opening { marker, kind: Kind::Call(Body::Tagged(inside, close), Some(close)) }
}

const fn around(marker: &'static str) -> Opening {
    Opening { marker, kind: Kind::Around }
}

const FUNCTION: Opening = call("<function=", Body::Function, Some("</tool_call>"));

/// The formats; the first one of which a template shows a sign counts. All parts of a sign must be
/// there.
pub(super) const SYNTAXES: &[Syntax] = &[
    Syntax {
        name: "gpt-oss",
        signs: &[&["<|channel|>", "<|message|>"]],
        openings: &[],
        bare: false,
        visible: harmony::VISIBLE,
    },
    Syntax {
        name: "gemma4",
        signs: &[&["<|tool_call>"], &["<|channel>"]],
        openings: &[tagged("<|tool_call>", Inside::Gemma, "<tool_call|>")],
        bare: false,
        visible: &["<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"],
    },
    Syntax {
        name: "functiongemma",
        signs: &[&["<start_function_call>"]],
        openings: &[tagged("<start_function_call>", Inside::Gemma, "<end_function_call>")],
        bare: false,
        visible: &["<start_function_call>", "<end_function_call>", "<escape>"],
    },
    Syntax {
        name: "mistral",
        signs: &[&["[TOOL_CALLS]"], &["[THINK]"]],
        openings: &[call("[TOOL_CALLS]", Body::Named, None)],
        bare: false,
        visible: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"],
    },
    Syntax {
        name: "deepseek",
        signs: &[&["<｜tool▁call▁begin｜>"]],
        openings: &[
            tagged("<｜tool▁call▁begin｜>", Inside::DeepSeek, "<｜tool▁call▁end｜>"),
            around("<｜tool▁calls▁begin｜>"),
            around("<｜tool▁calls▁end｜>"),
        ],
        bare: false,
        visible: &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
            "<think>",
            "</think>",
        ],
    },
    Syntax {
        name: "kimi",
        signs: &[&["<|tool_call_begin|>"]],
        openings: &[
            tagged("<|tool_call_begin|>", Inside::Kimi, "<|tool_call_end|>"),
            around("<|tool_calls_section_begin|>"),
            around("<|tool_calls_section_end|>"),
        ],
        bare: false,
        visible: &[
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            "<|tool_call_argument_begin|>",
            "<think>",
            "</think>",
            "◁think▷",
            "◁/think▷",
        ],
    },
    Syntax {
        name: "lfm2",
        signs: &[&["<|tool_call_start|>"]],
        openings: &[call("<|tool_call_start|>", Body::Any, Some("<|tool_call_end|>"))],
        bare: false,
        visible: &["<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"],
    },
    Syntax {
        name: "nemotron",
        signs: &[&["<TOOLCALL>"]],
        openings: &[call("<TOOLCALL>", Body::Any, Some("</TOOLCALL>"))],
        bare: false,
        visible: &["<TOOLCALL>", "</TOOLCALL>", "<think>", "</think>"],
    },
    Syntax {
        name: "glm",
        signs: &[&["<tool_call>", "<arg_key>"]],
        openings: &[tagged("<tool_call>", Inside::ArgKeys, "</tool_call>")],
        bare: false,
        visible: &[
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "<think>",
            "</think>",
        ],
    },
    Syntax {
        name: "hermes",
        signs: &[&["<tool_call>"], &["<function="]],
        openings: &[call("<tool_call>", Body::Any, Some("</tool_call>")), FUNCTION],
        bare: false,
        visible: &["<tool_call>", "</tool_call>", "<think>", "</think>"],
    },
    Syntax {
        name: "apriel",
        signs: &[&["<tool_calls>"]],
        openings: &[call("<tool_calls>", Body::Any, Some("</tool_calls>"))],
        bare: false,
        visible: &["<tool_calls>", "</tool_calls>"],
    },
    Syntax {
        name: "phi4",
        signs: &[&["<|tool_call|>"]],
        openings: &[call("<|tool_call|>", Body::Any, Some("<|/tool_call|>"))],
        bare: false,
        visible: &["<|tool_call|>", "<|/tool_call|>", "<think>", "</think>"],
    },
    Syntax {
        name: "llama3",
        signs: &[&["<|python_tag|>"], &["<|start_header_id|>", "ipython"], &["<|python_start|>"]],
        openings: &[
            call("<|python_tag|>", Body::Any, None),
            call("<|python_start|>", Body::Any, Some("<|python_end|>")),
            FUNCTION,
        ],
        bare: true,
        visible: &["<|python_tag|>", "<|python_start|>", "<|python_end|>", "<think>", "</think>"],
    },
    Syntax {
        name: "gemma",
        signs: &[&["<start_of_turn>"]],
        openings: &[
            call("```tool_code", Body::Fence, Some("```")),
            call("```tool_call", Body::Fence, Some("```")),
            call("```python", Body::Fence, Some("```")),
            call("```json", Body::Fence, Some("```")),
        ],
        bare: true,
        visible: &[],
    },
];

/// Text, perhaps with reasoning.
pub(super) const PLAIN: Syntax = Syntax {
    name: "plain",
    signs: &[],
    openings: &[],
    bare: false,
    visible: &["<think>", "</think>", "<seed:think>", "</seed:think>"],
};

/// The tags of reasoning, by the part of a template that shows them.
const THINKS: &[(&str, Think)] = &[
    ("[THINK]", Think { open: "[THINK]", close: "[/THINK]", anywhere: true }),
    ("<|channel>", Think { open: "<|channel>thought", close: "<channel|>", anywhere: true }),
    ("</seed:think>", Think { open: "<seed:think>", close: "</seed:think>", anywhere: false }),
    ("◁/think▷", Think { open: "◁think▷", close: "◁/think▷", anywhere: false }),
    ("</think>", Think { open: "<think>", close: "</think>", anywhere: false }),
    ("<think>", Think { open: "<think>", close: "</think>", anywhere: false }),
];

/// The format that a template was written for.
pub(super) fn syntax(template: &str) -> &'static Syntax {
    let shows = |sign: &[&str]| sign.iter().all(|part| template.contains(part));
    let found = SYNTAXES.iter().find(|syntax| syntax.signs.iter().any(|sign| shows(sign)));
    found.unwrap_or(&PLAIN)
}

/// The tags around reasoning that a template knows.
pub(super) fn think(template: &str) -> Option<Think> {
    THINKS.iter().find(|(sign, _)| template.contains(sign)).map(|(_, think)| *think)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`super::super::markers::Watch`] relies on.
    #[test]
    fn no_marker_lies_inside_another() {
        for syntax in SYNTAXES {
            for (_, think) in THINKS {
                let own = syntax.openings.iter().map(|opening| opening.marker);
                let all: Vec<&str> = own.chain([think.open]).collect();
                for (place, marker) in all.iter().enumerate() {
                    let inside =
                        |(other, text): (usize, &&str)| other != place && text.contains(marker);
                    assert!(!all.iter().enumerate().any(inside), "{}: {marker}", syntax.name);
                }
            }
        }
    }
}
