//! How a model that must call a tool is held to that: a grammar of one call, as models of each format
//! write it.

use baton_text::{OutputFormat, Tokenizer};
use serde_json::{Map, Value, json};

/// A part of a call.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// A marker, which may be a control token.
    Marker(&'static str),
    /// Ordinary text.
    Text(&'static str),
    /// A space, or none.
    MaybeSpace,
    /// The tool's name.
    Name,
    /// The same as a text of JSON.
    QuotedName,
    /// A JSON object.
    Arguments,
}

use Part::{Arguments, Marker, MaybeSpace, Name, QuotedName, Text};

/// A list of one call in JSON between two markers.
macro_rules! listed {
    ($open:literal, $close:literal) => {
        &[
            Marker($open),
            Text("[{\"name\": "),
            QuotedName,
            Text(", \"arguments\": "),
            Arguments,
            Text("}]"),
            Marker($close),
        ]
    };
}

/// JSON without any marker.
const BARE: &[Part] =
    &[Text("{\"name\": "), QuotedName, Text(", \"parameters\": "), Arguments, Text("}")];

/// The parts of a call by the name of the format.
const CALLS: &[(&str, &[Part])] = &[
    (
        "hermes",
        &[
            Marker("<tool_call>"),
            Text("\n{\"name\": "),
            QuotedName,
            Text(", \"arguments\": "),
            Arguments,
            Text("}\n"),
            Marker("</tool_call>"),
        ],
    ),
    ("nemotron", listed!("<TOOLCALL>", "</TOOLCALL>")),
    ("apriel", listed!("<tool_calls>", "</tool_calls>")),
    ("phi4", listed!("<|tool_call|>", "<|/tool_call|>")),
    ("lfm2", listed!("<|tool_call_start|>", "<|tool_call_end|>")),
    (
        "mistral",
        &[
            Marker("[TOOL_CALLS]"),
            MaybeSpace,
            Text("[{\"name\": "),
            QuotedName,
            Text(", \"arguments\": "),
            Arguments,
            Text("}]"),
        ],
    ),
    ("llama3", BARE),
    ("gemma4", &[Marker("<|tool_call>"), Text("call:"), Name, Arguments, Marker("<tool_call|>")]),
    (
        "functiongemma",
        &[
            Marker("<start_function_call>"),
            Text("call:"),
            Name,
            Arguments,
            Marker("<end_function_call>"),
        ],
    ),
    (
        "kimi",
        &[
            Marker("<|tool_calls_section_begin|>"),
            Marker("<|tool_call_begin|>"),
            Text("functions."),
            Name,
            Text(":0"),
            Marker("<|tool_call_argument_begin|>"),
            Arguments,
            Marker("<|tool_call_end|>"),
            Marker("<|tool_calls_section_end|>"),
        ],
    ),
    (
        "gpt-oss",
        &[
            Marker("<|channel|>"),
            Text("commentary to=functions."),
            Name,
            Text(" "),
            Marker("<|constrain|>"),
            Text("json"),
            Marker("<|message|>"),
            Arguments,
        ],
    ),
];

/// Mistral's models from 2025 on.
const MISTRAL_ARGS: &[Part] = &[Marker("[TOOL_CALLS]"), Name, Marker("[ARGS]"), Arguments];

/// Rules of Lark's notation of which `call` is one call of one of the tools; none if it is not known
/// how models of this format call.
pub(super) fn rules(
    output: &OutputFormat,
    template: &str,
    tools: &[Value],
    tokenizer: &Tokenizer,
) -> Option<String> {
    let known = CALLS.iter().find(|(name, _)| *name == output.name()).map(|(_, parts)| *parts);
    let parts = match known {
        Some(_) if output.name() == "mistral" && template.contains("[ARGS]") => MISTRAL_ARGS,
        Some(parts) => parts,
        // The model was told to.
        None if output.calls_bare() => BARE,
        None => return None,
    };
    let mut rules = String::new();
    let names: Vec<String> = (0..tools.len()).map(|at| format!("call_{at}")).collect();
    rules += &format!("call: {}\n", names.join(" | "));
    for (at, tool) in tools.iter().enumerate() {
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        let spelled = |part: &Part| match part {
            Marker(marker) => marked(marker, tokenizer),
            Text(text) => quoted(text),
            MaybeSpace => "\" \"?".to_owned(),
            Name => quoted(name),
            QuotedName => quoted(&quoted(name)),
            Arguments => format!("arguments_{at}"),
        };
        let parts: Vec<String> = parts.iter().map(spelled).collect();
        let arguments = arguments(&tool["function"]["parameters"]);
        rules += &format!("call_{at}: {}\narguments_{at}: %json {arguments}\n", parts.join(" "));
    }
    Some(rules)
}

/// A marker in Lark's notation, where control tokens are numbers.
pub(super) fn marked(marker: &str, tokenizer: &Tokenizer) -> String {
    match tokenizer.id(marker) {
        Some(id) if tokenizer.is_control(id) => format!("<[{id}]>"),
        _ => quoted(marker),
    }
}

/// Text in quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The schema of a call's arguments, which are an object with white space as models are trained to
/// write it, and no more.
pub(super) fn arguments(parameters: &Value) -> Value {
    let mut schema = match parameters {
        Value::Object(schema) => schema.clone(),
        _ => [("additionalProperties".to_owned(), false.into())].into_iter().collect(),
    };
    let spacing =
        json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    schema.insert("x-guidance".into(), spacing);
    // A tool that takes nothing, as it is usually written.
    if schema.get("properties").and_then(Value::as_object).is_some_and(Map::is_empty) {
        schema.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    if !schema.contains_key("$ref") {
        schema.entry("type").or_insert_with(|| "object".into());
    }
    schema.into()
}
