//! Thoughts, calls and forms of answers.

use baton_models::testing::Successors;
use serde_json::{Value, json};

use super::{chat, chunks, complete, deltas, hello, refused, tooled, with};
use crate::testing::{ANSWER, Home, ask};

/// CHATML that shows how tools are called, and how the model thinks.
pub(super) fn hermes() -> String {
    tooled("<tool_call> <think> </think>")
}

/// The same of a model that does not think.
pub(super) fn thoughtless() -> String {
    tooled("<tool_call>")
}

pub(super) fn weather() -> Value {
    json!({ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "enum": ["Paris"] } }, "required": ["city"],
        "additionalProperties": false } } })
}

pub(super) const CALL: &[&str] = &[
    "<tool_call>",
    "\n{\"name\": \"weather\", ",
    "\"arguments\": {\"city\": ",
    "\"Paris\"}}\n",
    "</tool_call>",
];

#[tokio::test]
async fn a_call_is_told_as_one() {
    let home = Home::new();
    let models = home.models().await;
    let model = Successors::speaking(CALL).with_template(&hermes());
    home.give(&models, "caller", &model).await;
    let body = with(hello("caller"), json!({ "tools": [weather()] }));
    let reply = ask(&models, "POST", "/v1/chat/completions", body.clone()).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "weather");
    let arguments = call["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "city": "Paris" }));

    let streamed = with(body.clone(), json!({ "stream": true }));
    let chunks = chunks(&ask(&models, "POST", "/v1/chat/completions", streamed).await);
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|c| &c["choices"][0]["delta"]["tool_calls"][0])
        .filter(|c| !c.is_null())
        .collect();
    assert!(calls.iter().all(|call| call["index"] == 0));
    let first = &calls[0];
    assert!(first["id"].is_string() && first["type"] == "function");
    assert_eq!(first["function"], json!({ "name": "weather", "arguments": "" }));
    assert!(calls[1..].iter().all(|call| call["function"].get("name").is_none()));
    let whole: String =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&whole).unwrap(), json!({ "city": "Paris" }));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // Without tools, and with another one, it is what the model said.
    for tools in [json!([]), json!([{ "type": "function", "function": { "name": "other" } }])] {
        let body = with(hello("caller"), json!({ "tools": tools }));
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        assert_eq!(reply["choices"][0]["message"]["content"], CALL.concat());
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
    let body = json!({ "model": "caller", "input": "Hello",
        "tools": [with(json!({ "type": "function" }), weather()["function"].clone())] });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    let item = &reply["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("weather")));
}

#[tokio::test]
async fn thoughts_are_told_under_both_names() {
    let home = Home::new();
    let models = home.models().await;
    let model = Successors::speaking(&["<think>", "\nHm.\n", "</think>", "\n\n", "Yes."]);
    home.give(&models, "thinker", &model.with_template(&hermes())).await;
    let reply = ask(&models, "POST", "/v1/chat/completions", hello("thinker")).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning"]), (&json!("Yes."), &json!("Hm.")));
    assert_eq!(message["reasoning_content"], message["reasoning"]);
    assert_eq!(reply["usage"]["completion_tokens"], 5);
    let thought = &reply["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert!((1..=4).contains(&thought.as_u64().unwrap()), "{thought}");
    let body = with(hello("thinker"), json!({ "stream": true }));
    let chunks = chunks(&ask(&models, "POST", "/v1/chat/completions", body).await);
    assert_eq!(deltas(&chunks, "reasoning_content"), "Hm.");
    assert_eq!(deltas(&chunks, "reasoning"), "Hm.");
    assert_eq!(deltas(&chunks, "content"), "Yes.");
    let body = json!({ "model": "thinker", "input": "Hello" });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    let kinds: Vec<&Value> =
        reply["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    assert_eq!(reply["output"][0]["content"][0]["text"], "Hm.");
}

#[tokio::test]
async fn an_answer_takes_the_form_that_was_asked_for() {
    let home = Home::new();
    let models = home.models().await;
    let schema = json!({ "type": "object", "properties": { "sky": { "enum": ["blue"] } },
        "required": ["sky"], "additionalProperties": false });
    let named = json!({ "name": "answer", "schema": schema, "strict": true });
    for format in [
        json!({ "type": "json_schema", "json_schema": named }),
        json!({ "type": "json_object", "schema": schema }),
    ] {
        let reply =
            chat(&models, json!({ "response_format": format, "temperature": 0 })).await.json();
        let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({ "sky": "blue" }));
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
    let regex = json!({ "type": "grammar", "syntax": "regex", "definition": "[0-9]{4}" });
    let body = json!({ "model": "sky", "prompt": "b", "response_format": regex });
    let text =
        complete(&models, body).await.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.len() == 4 && text.chars().all(|c| c.is_ascii_digit()), "{text}");
    let format = json!({ "type": "json_schema", "name": "answer", "schema": schema });
    let body = json!({ "model": "sky", "input": "Hello", "text": { "format": format } });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    let text = reply["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({ "sky": "blue" }));
    let bad = json!({ "type": "json_schema", "json_schema": { "schema": { "type": "potato" } } });
    refused(&chat(&models, json!({ "response_format": bad })).await, 400, "response_format");
}

#[tokio::test]
async fn the_form_counts_from_the_end_of_the_thoughts() {
    let home = Home::new();
    let models = home.models().await;
    let model = Successors::speaking(&["<think>", "\nHm.\n", "</think>", "\n\n", "Yes."]);
    home.give(&models, "thinker", &model.with_template(&hermes())).await;
    let schema = json!({ "type": "object", "properties": { "sky": { "enum": ["blue"] } },
        "required": ["sky"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let body = with(hello("thinker"), json!({ "response_format": format, "temperature": 0 }));
    let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["reasoning"], "Hm.");
    let text = message["content"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({ "sky": "blue" }));
}

#[tokio::test]
async fn text_comes_in_pieces_also_where_tools_are() {
    let home = Home::new();
    let models = home.models().await;
    home.give(&models, "sayer", &Successors::answering(ANSWER).with_template(&thoughtless())).await;
    let body = with(hello("sayer"), json!({ "tools": [weather()], "stream": true }));
    let chunks = chunks(&ask(&models, "POST", "/v1/chat/completions", body).await);
    assert_eq!(deltas(&chunks, "content"), ANSWER);
    assert!(chunks.len() > 4, "{chunks:?}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn stop_strings_count_from_the_end_of_the_thoughts() {
    let home = Home::new();
    let models = home.models().await;
    let model = Successors::speaking(&["<think>", "\nHm.\n", "</think>", "\n\n", "Yes."]);
    home.give(&models, "thinker", &model.with_template(&hermes())).await;
    for (stop, answer) in [("Hm", "Yes."), ("\n", ""), ("es", "Y")] {
        let body = with(hello("thinker"), json!({ "stop": stop }));
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        let message = &reply["choices"][0]["message"];
        assert_eq!(message["reasoning"], "Hm.", "{stop:?}");
        assert_eq!(message["content"].as_str().unwrap_or_default(), answer, "{stop:?}");
    }
}
