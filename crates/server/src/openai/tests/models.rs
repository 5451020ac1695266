//! Which model answers, and for how long it stays.

use serde_json::{Value, json};

use super::{chat, hello, refused, with};
use crate::KeepAlive;
use crate::testing::{CONTEXT, Home, ask};

#[tokio::test]
async fn only_the_model_that_was_asked_for_answers() {
    let home = Home::new();
    let models = home.models().await;
    for (path, body) in [
        ("/v1/chat/completions", hello("gpt-4o")),
        ("/v1/chat/completions", with(hello("gpt-4o"), json!({ "stream": true }))),
        ("/v1/completions", json!({ "model": "gpt-4o", "prompt": "Hello" })),
        ("/v1/responses", json!({ "model": "gpt-4o", "input": "Hello" })),
    ] {
        let error = ask(&models, "POST", path, body).await.failed(404)["error"].clone();
        assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    }
    assert!(models.running().is_empty());
    let nameless = json!({ "messages": [] });
    refused(&ask(&models, "POST", "/v1/chat/completions", nameless).await, 400, "model");
}

#[tokio::test]
async fn every_request_says_how_long_its_model_stays() {
    let home = Home::new();
    let models = home.models().await;
    let expires = || models.running().first().map(|running| running.expires.is_some());
    for (path, body) in [
        ("/v1/chat/completions", hello("sky")),
        ("/v1/completions", json!({ "model": "sky", "prompt": "b" })),
        ("/v1/responses", json!({ "model": "sky", "input": "Hello" })),
    ] {
        ask(&models, "POST", path, with(body.clone(), json!({ "keep_alive": -1 }))).await.json();
        assert_eq!(expires(), Some(false), "{path}");
        ask(&models, "POST", path, with(body.clone(), json!({ "ttl": 60 }))).await.json();
        assert_eq!(expires(), Some(true), "{path}");
        let bad = with(body, json!({ "keep_alive": "soon" }));
        refused(&ask(&models, "POST", path, bad).await, 400, "keep_alive");
    }
    assert_eq!(KeepAlive::parse("5m"), KeepAlive::from_seconds(300.0));
}

#[tokio::test]
async fn models_are_listed_with_the_context_that_they_have() {
    let home = Home::new();
    let models = home.models().await;
    chat(&models, json!({})).await.json();
    let list = ask(&models, "GET", "/v1/models", Value::Null).await.json();
    assert_eq!(list["object"], "list");
    let rows = list["data"].as_array().unwrap();
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["endless", "sky"]);
    assert_eq!((&rows[0]["loaded"], &rows[1]["loaded"]), (&json!(false), &json!(true)));
    assert_eq!(rows[1]["context_length"], CONTEXT);
    assert_eq!(rows[1]["max_context_length"], 1 << 20);
    let one = ask(&models, "GET", "/v1/models/sky:latest", Value::Null).await.json();
    assert_eq!((&one["id"], &one["object"]), (&json!("sky:latest"), &json!("model")));
    for (method, name) in [("GET", "nothing"), ("GET", "org/repo"), ("DELETE", "nothing")] {
        let reply = ask(&models, method, &format!("/v1/models/{name}"), Value::Null).await;
        assert_eq!(reply.failed(404)["error"]["code"], "model_not_found");
    }
}
