use serde_json::{Value, json};

use crate::testing::{ANSWER, Home, Reply, ask};
use crate::{Kind, Models};

fn hello(more: Value) -> Value {
    let mut body = json!({
        "model": "sky", "max_tokens": 100,
        "messages": [{ "role": "user", "content": "Hello" }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn post(models: &Models, body: Value) -> Reply {
    ask(models, "POST", "/v1/messages", body).await
}

async fn count(models: &Models, mut body: Value) -> u64 {
    body.as_object_mut().unwrap().remove("max_tokens");
    let reply = ask(models, "POST", "/v1/messages/count_tokens", body).await.json();
    reply["input_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_conversation_is_answered_whole() {
    let home = Home::new();
    let models = home.models().await;
    let reply = post(&models, hello(json!({ "system": "Be brief." }))).await.json();
    assert_eq!(reply["content"], json!([{ "type": "text", "text": ANSWER }]));
    assert_eq!((&reply["type"], &reply["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(
        (&reply["stop_reason"], &reply["stop_sequence"]),
        (&json!("end_turn"), &Value::Null)
    );
    assert!(reply["id"].as_str().unwrap().starts_with("msg_"));
    let usage = &reply["usage"];
    assert_eq!(usage["output_tokens"], ANSWER.len());
    let read = usage["input_tokens"].as_u64().unwrap();
    assert_eq!(read, count(&models, hello(json!({ "system": "Be brief." }))).await);
    // The second time most of it is in the cache, and all of it is counted once.
    let again = post(&models, hello(json!({ "system": "Be brief." }))).await.json();
    let (new, cached) =
        (&again["usage"]["input_tokens"], &again["usage"]["cache_read_input_tokens"]);
    assert!(cached.as_u64().unwrap() > 10, "{again}");
    assert_eq!(new.as_u64().unwrap() + cached.as_u64().unwrap(), read);

    let cut = post(&models, hello(json!({ "max_tokens": 3 }))).await.json();
    assert_eq!(
        (&cut["content"][0]["text"], &cut["stop_reason"]),
        (&json!("Sky"), &json!("max_tokens"))
    );
    let stopped = post(&models, hello(json!({ "stop_sequences": ["x", "bl"] }))).await.json();
    assert_eq!(stopped["content"][0]["text"], "Sky ");
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("bl"))
    );
}

#[tokio::test]
async fn events_come_in_the_order_that_clients_rely_on() {
    let home = Home::new();
    let models = home.models().await;
    let events = post(&models, hello(json!({ "stream": true }))).await.events();
    for (name, data) in &events {
        assert_eq!(data["type"], name.as_str());
    }
    let mut names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.retain(|name| *name != "ping");
    names.dedup();
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    let find = |name: &str| &events.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!(find("message_start")["message"]["content"], json!([]));
    assert_eq!(find("content_block_start")["content_block"], json!({ "type": "text", "text": "" }));
    let text: String =
        events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(text, ANSWER);
    let end = find("message_delta");
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
        (&json!("end_turn"), &json!(ANSWER.len()))
    );
}

#[tokio::test]
async fn a_block_that_differs_each_time_is_left_out() {
    let home = Home::new();
    let models = home.models().await;
    let system = |first: &str| {
        json!({ "system": [
            { "type": "text", "text": first },
            { "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } },
        ] })
    };
    let plain = count(&models, hello(json!({ "system": "Be brief." }))).await;
    for first in ["x-anthropic-billing-header: cch=abc;", "x-anthropic-billing-header: cch=defgh;"]
    {
        assert_eq!(count(&models, hello(system(first))).await, plain);
    }
    assert!(count(&models, hello(system("Hello."))).await > plain);
}

#[tokio::test]
async fn blocks_become_what_templates_know() {
    let home = Home::new();
    let models = home.models().await;
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Add" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm", "signature": "abc" },
            { "type": "text", "text": "Yes" },
            { "type": "tool_use", "id": "t1", "name": "add", "input": { "a": 1 } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "2", "is_error": true },
            { "type": "text", "text": "And?" },
        ] },
    ]);
    let request: super::request::CountRequest =
        serde_json::from_value(json!({ "model": "sky", "messages": messages })).unwrap();
    let neutral = request.neutral().unwrap();
    let expected = json!([
        { "role": "user", "content": "Add" },
        { "role": "assistant", "content": "Yes", "reasoning_content": "Hm", "tool_calls": [
            { "id": "t1", "type": "function", "function": { "name": "add", "arguments": { "a": 1 } } },
        ] },
        { "role": "tool", "content": "Error: 2", "tool_call_id": "t1" },
        { "role": "user", "content": "And?" },
    ]);
    assert_eq!(serde_json::to_value(&neutral.messages).unwrap(), expected);
    assert!(!neutral.continue_last);

    // A beginning of the answer is gone on with.
    let begun = json!({ "messages": [
        { "role": "user", "content": "Hello" },
        { "role": "assistant", "content": "Sky b" },
    ] });
    let reply = post(&models, hello(begun)).await.json();
    assert_eq!(reply["content"][0]["text"], "lue!");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_and_named() {
    let home = Home::new();
    let models = home.models().await;
    let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
    for (more, name) in [
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": image }), "images"),
        (json!({ "messages": [{ "role": "robot", "content": "x" }] }), "role"),
        (json!({ "surprise": 1 }), "surprise"),
        (json!({ "mcp_servers": [{}] }), "mcp_servers"),
        (json!({ "temperature": -1 }), "temperature"),
        (
            json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }),
            "tools[0].type",
        ),
        (json!({ "tool_choice": { "type": "any" } }), "tool"),
        (json!({ "thinking": { "type": "sometimes" } }), "thinking"),
    ] {
        let error = post(&models, hello(more.clone())).await.failed(400);
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert!(error["error"]["message"].as_str().unwrap().contains(name), "{more}: {error}");
    }
    let long = json!({ "messages": [{ "role": "user", "content": "x".repeat(400) }] });
    let error = post(&models, hello(long)).await.failed(400);
    assert!(error["error"]["message"].as_str().unwrap().contains("256"), "{error}");
    let error = post(&models, hello(json!({ "model": "claude-opus" }))).await.failed(404);
    assert_eq!(error["error"]["type"], "not_found_error");
    assert_eq!(models.lease("claude-opus", None).await.unwrap_err().kind, Kind::NoModel);
    // What clients send and nothing depends on is taken.
    let harmless = json!({
        "metadata": { "user_id": "u" }, "service_tier": "auto",
        "context_management": { "edits": [] }, "keep_alive": "1m",
    });
    post(&models, hello(harmless)).await.json();
}
