//! Responses.

use serde_json::json;

use super::{refused, with};
use crate::testing::{ANSWER, Home, ask};

#[tokio::test]
async fn a_response_consists_of_items() {
    let home = Home::new();
    let models = home.models().await;
    let body = json!({ "model": "sky", "input": "Hello", "instructions": "Be brief.",
        "metadata": { "a": "b" } });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(reply["metadata"], json!({ "a": "b" }));
    let item = &reply["output"][0];
    assert_eq!((&item["type"], &item["status"]), (&json!("message"), &json!("completed")));
    let part = json!({ "type": "output_text", "text": ANSWER, "annotations": [], "logprobs": [] });
    assert_eq!(item["content"], json!([part]));
    assert_eq!(reply["usage"]["output_tokens"], ANSWER.len());
    let body = json!({ "model": "sky", "input": [{ "role": "user", "content": "Hello" }],
        "max_output_tokens": 3 });
    let cut = ask(&models, "POST", "/v1/responses", body).await.json();
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"], json!({ "reason": "max_output_tokens" }));
}

#[tokio::test]
async fn a_response_tells_how_its_items_come_to_be() {
    let home = Home::new();
    let models = home.models().await;
    let body = json!({ "model": "sky", "input": "Hello", "stream": true,
        "include": ["message.output_text.logprobs"] });
    let events = ask(&models, "POST", "/v1/responses", body).await.events();
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names, expected);
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.clone().map(|(_, event)| event["delta"].as_str().unwrap()).collect();
    let tokens = deltas.flat_map(|(_, event)| event["logprobs"].as_array().unwrap()).count();
    assert_eq!((text.as_str(), tokens), (ANSWER, ANSWER.len()));
    let (_, last) = events.last().unwrap();
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], ANSWER);
}

#[tokio::test]
async fn a_response_does_not_go_on_from_what_is_not_kept() {
    let home = Home::new();
    let models = home.models().await;
    for (more, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "background": true }), "background"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "input": [] }), "input"),
    ] {
        let body = with(json!({ "model": "sky", "input": "Hello" }), more);
        refused(&ask(&models, "POST", "/v1/responses", body).await, 400, param);
    }
}
