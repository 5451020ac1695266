mod answers;
mod content;
mod models;

use serde_json::{Value, json};

fn said(lines: &[Value]) -> String {
    lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect()
}

fn hello(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] })
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}
