use baton_models::testing::{CHATML, Successors, embedding_goldens};
use serde_json::{Value, json};

use super::{hello, with};
use crate::testing::{Home, ask};

#[tokio::test]
async fn texts_become_the_vectors_that_their_models_give() {
    let home = Home::new();
    let models = home.models().await;
    let golden = embedding_goldens().into_iter().find(|golden| golden.name == "minilm").unwrap();
    let model = models.give(golden.path.clone()).await.unwrap();
    let texts: Vec<&str> = golden.texts.iter().map(|text| text.text.as_str()).collect();
    let body = json!({ "model": model, "input": texts });
    let made = ask(&models, "POST", "/api/embed", body.clone()).await.json();
    let floats = |vector: &Value| -> Vec<f32> { serde_json::from_value(vector.clone()).unwrap() };
    let vectors = made["embeddings"].as_array().unwrap();
    assert_eq!(vectors.len(), texts.len());
    for (text, vector) in golden.texts.iter().zip(vectors) {
        let (worst, _) = text.compare(&floats(vector));
        assert!(worst < 1e-3, "{}: {worst}", text.text);
    }
    let tokens: usize = golden.texts.iter().map(|text| text.ids.len()).sum();
    assert_eq!(made["prompt_eval_count"], tokens);
    assert!(made["load_duration"].as_u64().is_some() && made["total_duration"].as_u64().is_some());

    // The older form, one text, and no text.
    let old = json!({ "model": model, "prompt": texts[0] });
    let old = ask(&models, "POST", "/api/embeddings", old).await.json();
    assert_eq!(old["embedding"], vectors[0]);
    let one = with(body.clone(), json!({ "input": texts[0], "dimensions": 4 }));
    let one = ask(&models, "POST", "/api/embed", one).await.json();
    let short = floats(&one["embeddings"][0]);
    let length = short.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!(short.len() == 4 && (length - 1.0).abs() < 1e-3, "{short:?}");
    for nothing in [json!({ "input": "" }), json!({ "input": [] }), json!({ "input": null })] {
        let none = ask(&models, "POST", "/api/embed", with(body.clone(), nothing)).await.json();
        assert_eq!(none["embeddings"], json!([]));
    }

    // A text that is too long is cut, unless the request forbids it.
    let long = json!({ "input": "word ".repeat(5000) });
    ask(&models, "POST", "/api/embed", with(body.clone(), long.clone())).await.json();
    let whole = with(with(body.clone(), long), json!({ "truncate": false }));
    let error = ask(&models, "POST", "/api/embed", whole).await.failed(400);
    assert!(error["error"].as_str().unwrap().contains("token"), "{error}");
    let wide = with(body.clone(), json!({ "dimensions": 100_000 }));
    ask(&models, "POST", "/api/embed", wide).await.failed(400);

    // Each does what it can, and says so of what it cannot.
    let shown = ask(&models, "POST", "/api/show", json!({ "model": model })).await.json();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    let error = ask(&models, "POST", "/api/chat", hello(&model)).await.failed(400);
    assert!(error["error"].as_str().unwrap().contains("vectors"), "{error}");
    let error = ask(&models, "POST", "/api/embed", with(body, json!({ "model": "sky" }))).await;
    assert!(error.failed(400)["error"].as_str().unwrap().contains("not an embedding model"));
    let tokens = ask(&models, "POST", "/tokenize", json!({ "model": model, "content": "x" })).await;
    assert!(tokens.json()["tokens"].as_array().is_some());
}

#[tokio::test]
async fn thoughts_and_calls_are_told_apart_from_the_text() {
    let home = Home::new();
    let models = home.models().await;
    let template = format!(
        "{{% if tools %}}<tools>{{{{ tools }}}}</tools>{{% endif %}}{CHATML}{}",
        "{# <think> </think> enable_thinking <tool_call> {\"name\": , \"arguments\": } #}"
    );
    let call =
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>";
    let pieces =
        ["<think>\n", "Hm", ", add", "</think>\n\n", "Let us see. ", &call[..30], &call[30..]];
    home.give(&models, "thinker", &Successors::speaking(&pieces).with_template(&template)).await;
    let tool = json!({ "type": "function", "function": { "name": "add", "parameters": {
        "type": "object", "properties": { "a": { "type": "integer" } } } } });
    let body = with(hello("thinker"), json!({ "tools": [tool], "think": true }));

    let lines = ask(&models, "POST", "/api/chat", body.clone()).await.lines();
    let of = |field: &str| -> String {
        lines.iter().filter_map(|line| line["message"][field].as_str()).collect()
    };
    assert_eq!(of("thinking").trim(), "Hm, add");
    assert_eq!(of("content").trim(), "Let us see.");
    let calls: Vec<&Value> =
        lines.iter().filter_map(|line| line["message"]["tool_calls"].get(0)).collect();
    let function = json!({ "index": 0, "name": "add", "arguments": { "a": 1, "b": [2] } });
    assert_eq!((calls.len(), &calls[0]["function"]), (1, &function));
    assert_eq!(lines.last().unwrap()["done_reason"], "stop");

    let whole = with(body, json!({ "stream": false }));
    let whole = ask(&models, "POST", "/api/chat", whole).await.json();
    assert_eq!(whole["message"]["tool_calls"][0]["function"], function);
    assert_eq!(whole["message"]["thinking"].as_str().unwrap().trim(), "Hm, add");

    // The same over Anthropic's interface.
    let tool = json!({ "name": "add", "input_schema": { "type": "object" } });
    let body = json!({
        "model": "thinker", "max_tokens": 100, "tools": [tool], "thinking": { "type": "enabled" },
        "messages": [{ "role": "user", "content": "Hello" }],
    });
    let reply = ask(&models, "POST", "/v1/messages", body.clone()).await.json();
    let kinds: Vec<&Value> =
        reply["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"]);
    assert_eq!(reply["content"][2]["input"], json!({ "a": 1, "b": [2] }));
    assert_eq!(reply["stop_reason"], "tool_use");
    let events = ask(&models, "POST", "/v1/messages", with(body, json!({ "stream": true }))).await;
    let events = events.events();
    let thought: Vec<&Value> =
        events.iter().map(|(_, data)| data).filter(|data| data["index"] == 0).collect();
    let last_two: Vec<&Value> =
        thought.iter().rev().take(2).map(|data| &data["delta"]["type"]).collect();
    // Some clients drop thoughts without a signature.
    assert_eq!(last_two, [&Value::Null, &json!("signature_delta")]);
    let json: String =
        events.iter().filter_map(|(_, data)| data["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!({ "a": 1, "b": [2] }));
    let starts: Vec<&Value> = events
        .iter()
        .filter(|(name, _)| name == "content_block_start")
        .map(|(_, data)| &data["index"])
        .collect();
    assert_eq!(starts, [0, 1, 2]);
}
