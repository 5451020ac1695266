use baton_models::testing::Successors;
use serde_json::{Value, json};

use super::{hello, said, with};
use crate::testing::{ANSWER, CONTEXT, Home, ask};

#[tokio::test]
async fn a_conversation_is_answered_in_lines_and_whole() {
    let home = Home::new();
    let models = home.models().await;
    let lines = ask(&models, "POST", "/api/chat", hello("sky")).await.lines();
    assert_eq!(said(&lines), ANSWER);
    let (last, pieces) = lines.split_last().unwrap();
    assert!(pieces.len() > 1, "the answer comes as it is made");
    for piece in pieces {
        assert_eq!(
            (&piece["done"], &piece["message"]["role"]),
            (&json!(false), &json!("assistant"))
        );
        assert!(piece.get("eval_count").is_none());
    }
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!(last["eval_count"], ANSWER.len());
    assert!(last["prompt_eval_count"].as_u64().unwrap() > 5);
    for duration in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(last[duration].as_u64().unwrap() > 0, "{duration}");
    }

    let body = with(hello("sky:latest"), json!({ "stream": false }));
    let whole = ask(&models, "POST", "/api/chat", body).await.json();
    assert_eq!(whole["message"]["content"], ANSWER);
    assert_eq!((&whole["model"], &whole["done"]), (&json!("sky:latest"), &json!(true)));
    assert!(whole["created_at"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn options_have_the_effect_that_ollama_gives_them() {
    let home = Home::new();
    let models = home.models().await;
    let body = |options: Value| with(hello("sky"), json!({ "stream": false, "options": options }));
    let chat = async |options| ask(&models, "POST", "/api/chat", body(options)).await.json();
    let cut = chat(json!({ "num_predict": 3, "temperature": 0 })).await;
    assert_eq!(
        (&cut["message"]["content"], &cut["done_reason"]),
        (&json!("Sky"), &json!("length"))
    );
    let stopped = chat(json!({ "stop": ["bl"], "num_predict": -1 })).await;
    assert_eq!(stopped["message"]["content"], "Sky ");
    assert_eq!(stopped["done_reason"], "stop");
    // More context than the model has is loaded; as much as it has is there.
    chat(json!({ "num_ctx": 64 })).await;
    let ps = ask(&models, "GET", "/api/ps", Value::Null).await.json();
    assert_eq!(ps["models"][0]["context_length"], CONTEXT);
    chat(json!({ "num_ctx": CONTEXT + 1 })).await;
    let ps = ask(&models, "GET", "/api/ps", Value::Null).await.json();
    assert_eq!(ps["models"][0]["context_length"], CONTEXT + 1);
}

#[tokio::test]
async fn a_text_is_answered_and_continued() {
    let home = Home::new();
    let models = home.models().await;
    let body = json!({ "model": "sky", "prompt": "Hello", "system": "Be brief." });
    let lines = ask(&models, "POST", "/api/generate", body.clone()).await.lines();
    let text: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(text, ANSWER);
    assert_eq!(lines.last().unwrap()["done_reason"], "stop");

    // As it is: what follows a line break is the answer, what follows other text is the end.
    let raw =
        |prompt: &str| json!({ "model": "sky", "prompt": prompt, "raw": true, "stream": false });
    let continued = ask(&models, "POST", "/api/generate", raw("b")).await.json();
    assert_eq!(
        (&continued["response"], &continued["prompt_eval_count"]),
        (&json!("lue!"), &json!(1))
    );
    let refused = with(raw("x"), json!({ "system": "Be brief." }));
    let error = ask(&models, "POST", "/api/generate", refused).await.failed(400);
    assert!(error["error"].as_str().unwrap().contains("raw"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_and_named() {
    let home = Home::new();
    let models = home.models().await;
    for (more, name) in [
        (json!({ "options": { "mirostat": 1 } }), "mirostat"),
        (json!({ "options": { "nonsense": 1 } }), "nonsense"),
        (json!({ "options": { "temperature": "hot" } }), "temperature"),
        (json!({ "options": { "temperature": -1 } }), "temperature"),
        (json!({ "format": "xml" }), "format"),
        (json!({ "think": true }), "thinking"),
        (json!({ "think": "very" }), "think"),
        (json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] }), "tools"),
        (json!({ "shift": true }), "shift"),
        (json!({ "surprise": 1 }), "surprise"),
        (json!({ "keep_alive": "soon" }), "keep_alive"),
        (json!({ "top_logprobs": 21, "logprobs": true }), "top_logprobs"),
        (json!({ "messages": [{ "role": "user", "content": "x", "images": ["aGk="] }] }), "images"),
        (json!({ "messages": "Hello" }), "messages"),
    ] {
        let body = with(hello("sky"), more.clone());
        let error = ask(&models, "POST", "/api/chat", body).await.failed(400);
        assert!(error["error"].as_str().unwrap().contains(name), "{more}: {error}");
    }
    for (more, name) in [
        (json!({ "suffix": "x" }), "insert"),
        (json!({ "context": [1, 2] }), "context"),
        (json!({ "template": "{{ .Prompt }}" }), "template"),
        (json!({ "images": ["aGk="] }), "images"),
    ] {
        let body = with(json!({ "model": "sky", "prompt": "x" }), more.clone());
        let error = ask(&models, "POST", "/api/generate", body).await.failed(400);
        assert!(error["error"].as_str().unwrap().contains(name), "{more}: {error}");
    }
    let error = ask(&models, "POST", "/api/chat", hello("nothing")).await.failed(404);
    assert!(error["error"].as_str().unwrap().contains("not found"), "{error}");
    ask(&models, "POST", "/api/push", json!({ "model": "sky" })).await.failed(404);
    ask(&models, "GET", "/api/chat", Value::Null).await.failed(405);
    ask(&models, "GET", "/api/nothing", Value::Null).await.failed(404);
}

#[tokio::test]
async fn a_conversation_that_does_not_fit_is_cut_only_if_that_is_wanted() {
    let home = Home::new();
    let models = home.models().await;
    let long = "x".repeat(100);
    let messages: Vec<Value> = (0..6)
        .map(|at| json!({ "role": (["user", "assistant"][at % 2]), "content": long }))
        .chain([json!({ "role": "user", "content": "Hello" })])
        .collect();
    let body = |truncate| json!({ "model": "sky", "messages": messages, "truncate": truncate, "stream": false });
    for no in [Value::Null, json!(false)] {
        let error = ask(&models, "POST", "/api/chat", body(no)).await.failed(400);
        let message = error["error"].as_str().unwrap();
        assert!(message.contains("256") && message.contains("tokens"), "{message}");
    }
    let reply = ask(&models, "POST", "/api/chat", body(json!(true))).await.json();
    assert_eq!(reply["message"]["content"], ANSWER);
    assert!(reply["prompt_eval_count"].as_u64().unwrap() > 100);
    // The last message alone is too long.
    let last = json!([{ "role": "user", "content": "x".repeat(300) }]);
    let body = json!({ "model": "sky", "messages": last, "truncate": true });
    ask(&models, "POST", "/api/chat", body).await.failed(400);
}

#[tokio::test]
async fn a_model_without_a_template_goes_on_with_a_text_and_does_not_chat() {
    let home = Home::new();
    let models = home.models().await;
    let base = Successors::answering(ANSWER).without_template();
    home.give(&models, "base", &base).await;
    let body = json!({ "model": "base", "prompt": "b", "stream": false });
    let reply = ask(&models, "POST", "/api/generate", body.clone()).await.json();
    assert_eq!(reply["response"], "lue!");
    let body = with(body, json!({ "system": "Be brief." }));
    ask(&models, "POST", "/api/generate", body).await.failed(400);
    let error = ask(&models, "POST", "/api/chat", hello("base")).await.failed(400);
    assert!(error["error"].as_str().unwrap().contains("chat"), "{error}");
}
