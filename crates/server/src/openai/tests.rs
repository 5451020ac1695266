mod calls;
mod chat;
mod completions;
mod content;
mod models;
mod responses;

use baton_models::testing::CHATML;
use serde_json::{Value, json};

use crate::Models;
use crate::testing::{Reply, ask, hello, with};

async fn chat(models: &Models, more: Value) -> Reply {
    ask(models, "POST", "/v1/chat/completions", with(hello("sky"), more)).await
}

async fn complete(models: &Models, body: Value) -> Reply {
    ask(models, "POST", "/v1/completions", body).await
}

/// CHATML that shows the names of tools, and signs of how models write.
fn tooled(signs: &str) -> String {
    let tools = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}";
    format!("{tools}{CHATML}{{# {signs} #}}")
}

/// The chunks of a stream that ends as it should.
fn chunks(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.content_type.as_str()), (200, "text/event-stream"));
    let body = reply.text.strip_suffix("data: [DONE]\n\n").expect("the stream has an end");
    let events = body.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    events.map(|event| serde_json::from_str(event).unwrap()).collect()
}

fn deltas(chunks: &[Value], field: &str) -> String {
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str());
    deltas.collect()
}

fn refused(reply: &Reply, status: u16, param: &str) -> String {
    let body = reply.failed(status);
    let error = &body["error"];
    assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(param)));
    error["message"].as_str().unwrap().to_owned()
}
