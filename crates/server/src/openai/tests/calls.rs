//! Calls that must be made.

use baton_engine::LoadOptions;
use baton_models::testing::{CHATML, Successors};
use serde_json::{Value, json};

use super::content::{CALL, hermes, thoughtless, weather};
use super::{chat, hello, refused, tooled, with};
use crate::testing::{ANSWER, Home, ask, options};
use crate::{ModelOptions, Models};

/// The control tokens of the harmony format.
const HARMONY: &[&str] = &[
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// Models with more room than others: prompts are long where a token is a byte.
async fn roomy(home: &Home) -> Models {
    let load = LoadOptions { context: Some(2048), ..options().load };
    home.models_with(ModelOptions { load, ..options() }).await
}

#[tokio::test]
async fn a_call_can_be_forced() {
    let home = Home::new();
    let models = home.models().await;
    home.give(&models, "sayer", &Successors::answering(ANSWER).with_template(&thoughtless())).await;
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for choice in [json!("required"), named] {
        let more = json!({ "tools": [weather()], "tool_choice": choice, "temperature": 0 });
        let body = with(hello("sayer"), more);
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather");
        let arguments = call["arguments"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "city": "Paris" }));
    }
    // Nothing is known of how this one would call: its template has a way of its own.
    let secret = Successors::answering(ANSWER).with_template(&tooled(""));
    home.give(&models, "secret", &secret).await;
    let more = json!({ "tools": [weather()], "tool_choice": "required" });
    let reply = ask(&models, "POST", "/v1/chat/completions", with(hello("secret"), more)).await;
    refused(&reply, 400, "tool_choice");
    refused(&chat(&models, json!({ "tool_choice": "required" })).await, 400, "tool_choice");
    let unknown = json!({ "type": "function", "function": { "name": "other" } });
    let more = json!({ "tools": [weather()], "tool_choice": unknown });
    refused(&chat(&models, more).await, 400, "tool_choice");
}

#[tokio::test]
async fn a_call_is_forced_in_the_way_of_each_model() {
    let home = Home::new();
    let models = roomy(&home).await;
    let says = |pieces: &[&str]| Successors::speaking(pieces).with_controls(HARMONY);
    let thought =
        ["<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>", "assistant"];
    let any = || Successors::answering(ANSWER);
    let cases = [
        ("mistral", "[TOOL_CALLS]", any()),
        ("mistral-args", "[TOOL_CALLS] [ARGS]", any()),
        ("gemma4", "<|tool_call>", any()),
        ("functiongemma", "<start_function_call>", any()),
        ("gpt-oss", "<|channel|> <|message|>", says(&["<|channel|>", "commentary"])),
        ("gpt-oss-thinking", "<|channel|> <|message|>", says(&thought)),
        ("nemotron", "<TOOLCALL>", any()),
        ("apriel", "<tool_calls>", any()),
        ("phi4", "<|tool_call|>", any()),
        ("lfm2", "<|tool_call_start|>", any()),
        ("kimi", "<|tool_call_begin|>", any()),
        ("llama3", "<|python_tag|>", any()),
        // Told by instructions, since their templates show no tools.
        ("gemma", "<start_of_turn>", any()),
        ("plain", "", any()),
    ];
    for (name, sign, model) in cases {
        let template = match name {
            "gemma" | "plain" => format!("{CHATML}{{# {sign} #}}"),
            _ => tooled(sign),
        };
        home.give(&models, name, &model.with_template(&template)).await;
        let more = json!({ "tools": [weather()], "tool_choice": "required", "temperature": 0,
            "max_tokens": 200 });
        let body = with(hello(name), more);
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {choice}");
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather", "{name}: {choice}");
        let arguments = call["arguments"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "city": "Paris" }));
        let thought = &choice["message"]["reasoning"];
        assert_eq!(*thought == "Hm.", name == "gpt-oss-thinking", "{name}: {choice}");
    }
}

#[tokio::test]
async fn a_model_in_the_harmony_format_calls_or_answers_in_form() {
    let home = Home::new();
    let models = home.models().await;
    let template = tooled("<|channel|> <|message|>");
    let format = json!({ "type": "json_schema", "json_schema": { "name": "sky", "schema": {
        "type": "object", "properties": { "sky": { "enum": ["blue"] } }, "required": ["sky"],
        "additionalProperties": false } } });
    let cases = [
        ("plain", vec!["<|channel|>", "final", "<|message|>"]),
        ("constrained", vec!["<|channel|>", "final ", "<|constrain|>", "json", "<|message|>"]),
    ];
    for (name, pieces) in cases {
        let model = Successors::speaking(&pieces).with_controls(HARMONY);
        home.give(&models, name, &model.with_template(&template)).await;
        for tools in [json!([]), json!([weather()])] {
            let more = json!({ "response_format": format, "tools": tools, "temperature": 0,
                "max_tokens": 200 });
            let reply = ask(&models, "POST", "/v1/chat/completions", with(hello(name), more)).await;
            let reply = reply.json();
            let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
            let value = serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(value, json!({ "sky": "blue" }), "{name}: {reply}");
        }
    }
}

#[tokio::test]
async fn the_schema_of_a_tool_may_refer_to_itself() {
    let home = Home::new();
    let models = home.models().await;
    home.give(&models, "sayer", &Successors::answering(ANSWER).with_template(&thoughtless())).await;
    let parameters = json!({
        "$defs": { "City": { "enum": ["Paris"] } },
        "type": "object", "properties": { "city": { "$ref": "#/$defs/City" } },
        "required": ["city"], "additionalProperties": false });
    let tool = json!({ "type": "function",
        "function": { "name": "say-hi.2", "parameters": parameters } });
    let nothing = json!({ "type": "function", "function": { "name": "nothing" } });
    for (tool, name, expected) in
        [(tool, "say-hi.2", json!({ "city": "Paris" })), (nothing, "nothing", json!({}))]
    {
        let more = json!({ "tools": [tool], "tool_choice": "required", "temperature": 0 });
        let body = with(hello("sayer"), more);
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], name, "{reply}");
        let arguments = call["arguments"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), expected);
    }
}

#[tokio::test]
async fn the_schema_that_cannot_be_obeyed_is_named() {
    let home = Home::new();
    let models = home.models().await;
    home.give(&models, "sayer", &Successors::answering(ANSWER).with_template(&thoughtless())).await;
    let bad = json!({ "type": "function", "function": { "name": "bad",
        "parameters": { "type": "object", "properties": { "a": { "type": "potato" } } } } });
    let potato =
        json!({ "type": "json_schema", "json_schema": { "schema": { "type": "potato" } } });
    let object = json!({ "type": "json_object" });
    for (more, param) in [
        (
            json!({ "tools": [weather(), bad], "tool_choice": "required" }),
            "tools[1].function.parameters",
        ),
        (
            json!({ "tools": [weather(), bad], "response_format": object }),
            "tools[1].function.parameters",
        ),
        (json!({ "tools": [weather()], "response_format": potato }), "response_format"),
    ] {
        let reply = ask(&models, "POST", "/v1/chat/completions", with(hello("sayer"), more)).await;
        refused(&reply, 400, param);
    }
}

#[tokio::test]
async fn a_model_whose_template_shows_no_tools_is_told_of_them() {
    let home = Home::new();
    let models = home.models().await;
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Rain?" },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function",
            "function": { "name": "weather", "arguments": "{\"city\": \"Paris\"}" } }] },
        { "role": "tool", "tool_call_id": "c1", "content": "Dry." },
    ]);
    let body = json!({ "model": "sky", "messages": messages, "tools": [weather()] });
    let reply = ask(&models, "POST", "/apply-template", body).await.json();
    let prompt = reply["prompt"].as_str().unwrap();
    let parts =
        ["Be brief.", "You can call functions", "\"weather\"", "Rain?", "\"parameters\":", "Dry."];
    let places: Vec<_> = parts.iter().map(|part| prompt.find(part)).collect();
    assert!(places.iter().all(Option::is_some), "{places:?} in {prompt}");
}

#[tokio::test]
async fn there_may_be_many_tools() {
    let home = Home::new();
    let models = roomy(&home).await;
    home.give(&models, "sayer", &Successors::answering(ANSWER).with_template(&thoughtless())).await;
    let tool = |n: usize| {
        let text = json!({ "type": "string", "maxLength": 4000 });
        let parameters = json!({ "type": "object", "required": ["a"],
            "properties": { "a": { "const": n }, "b": text } });
        let name = format!("tool_{n}");
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    };
    let tools: Vec<Value> = (0..80).map(tool).collect();
    // The model has nothing to say, so it fills the text of one with spaces until its limit.
    let more = json!({ "tools": tools, "tool_choice": "required", "temperature": 0,
        "max_tokens": 80 });
    let body = with(hello("sayer"), more);
    let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
    let choice = &reply["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("<tool_call>\n{\"name\": \"tool_"), "{choice}");
    assert_eq!(choice["finish_reason"], "length");
}

#[tokio::test]
async fn only_one_call_is_made_where_more_are_not_wanted() {
    let home = Home::new();
    let models = home.models().await;
    // Each piece is a token of its own, so the second call has other pieces than the first.
    let second = [
        "<tool_call>\n{\"name\": ",
        "\"weather\", \"arguments\": {\"city\":\"Paris\"}}",
        "\n</tool_call>",
    ];
    let pieces = [CALL, &["\n\n"], &second].concat();
    home.give(&models, "caller", &Successors::speaking(&pieces).with_template(&hermes())).await;
    for (parallel, calls) in [(true, 2), (false, 1)] {
        let more = json!({ "tools": [weather()], "parallel_tool_calls": parallel });
        let body = with(hello("caller"), more);
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        let choice = &reply["choices"][0];
        assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), calls);
        assert_eq!(choice["finish_reason"], "tool_calls");
    }
}
