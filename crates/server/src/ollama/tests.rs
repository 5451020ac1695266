use baton_models::testing::{CHATML, Successors};
use serde_json::{Value, json};

use crate::testing::{ANSWER, CONTEXT, Home, ask};

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
async fn a_model_is_loaded_and_unloaded_by_requests_without_a_question() {
    let home = Home::new();
    let models = home.models().await;
    for (path, keep_alive, reason, running) in [
        ("/api/generate", json!("10m"), "load", 1),
        ("/api/chat", json!(-1), "load", 1),
        ("/api/chat", json!(0), "unload", 0),
        ("/api/generate", json!("0s"), "unload", 0),
    ] {
        let body = json!({ "model": "sky", "keep_alive": keep_alive });
        let reply = ask(&models, "POST", path, body).await.json();
        assert_eq!((&reply["done"], &reply["done_reason"]), (&json!(true), &json!(reason)));
        assert_eq!(models.running().len(), running);
    }
    let unknown = json!({ "model": "nothing", "keep_alive": 0 });
    ask(&models, "POST", "/api/generate", unknown).await.failed(404);
}

#[tokio::test]
async fn keep_alive_of_zero_unloads_behind_the_answer() {
    let home = Home::new();
    let models = home.models().await;
    let body = with(hello("sky"), json!({ "keep_alive": 0 }));
    assert_eq!(said(&ask(&models, "POST", "/api/chat", body).await.lines()), ANSWER);
    for _ in 0..500 {
        if models.running().is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the model is still there");
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
    ask(&models, "POST", "/api/push", json!({ "model": "sky" })).await.failed(501);
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
async fn models_are_listed_and_shown() {
    let home = Home::new();
    let models = home.models().await;
    let tags = ask(&models, "GET", "/api/tags", Value::Null).await.json();
    let names: Vec<_> = tags["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert!(names.contains(&&json!("sky:latest")) && names.len() == 2, "{names:?}");
    let first = &tags["models"][0];
    assert_eq!(first["details"]["family"], "llama");
    assert_eq!(first["details"]["quantization_level"], "F32");
    assert_eq!(first["digest"].as_str().unwrap().len(), 64);
    assert_eq!(ask(&models, "GET", "/api/ps", Value::Null).await.json(), json!({ "models": [] }));

    for key in ["model", "name"] {
        let shown = ask(&models, "POST", "/api/show", json!({ key: "sky" })).await.json();
        assert_eq!((&shown["template"], &shown["license"]), (&json!(CHATML), &json!("MIT")));
        assert_eq!(shown["model_info"]["llama.context_length"], 1 << 20);
        assert_eq!(shown["model_info"]["tokenizer.ggml.tokens"], Value::Null);
        assert_eq!(shown["capabilities"], json!(["completion"]));
        assert!(shown.get("tensors").is_none());
    }
    let body = json!({ "model": "sky", "verbose": true });
    let shown = ask(&models, "POST", "/api/show", body).await.json();
    assert_eq!(shown["model_info"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 260);
    assert_eq!(shown["tensors"][0]["name"], "token_embd.weight");
    ask(&models, "POST", "/api/show", json!({ "model": "nothing" })).await.failed(404);
    ask(&models, "POST", "/api/show", json!({})).await.failed(400);

    let version = ask(&models, "GET", "/api/version", Value::Null).await.json();
    assert!(version["version"].as_str().unwrap().split('.').count() == 3);
}

#[tokio::test]
async fn models_are_pulled_copied_and_deleted() {
    let home = Home::new();
    let models = home.with_catalog().await;
    let lines = ask(&models, "POST", "/api/pull", json!({ "model": "tiny" })).await.lines();
    assert_eq!(lines[0], json!({ "status": "pulling manifest" }));
    assert_eq!(lines.last().unwrap(), &json!({ "status": "success" }));
    let whole = lines.iter().any(|line| {
        line["total"].as_u64().is_some_and(|total| total > 0) && line["completed"] == line["total"]
    });
    assert!(whole, "{lines:?}");
    // It is here already.
    let body = json!({ "name": "tiny:latest", "stream": false });
    let reply = ask(&models, "POST", "/api/pull", body).await.json();
    assert_eq!(reply, json!({ "status": "success" }));
    assert_eq!(said(&ask(&models, "POST", "/api/chat", hello("tiny")).await.lines()), ANSWER);

    let copy = |to: &str| json!({ "source": "tiny", "destination": to });
    assert_eq!(ask(&models, "POST", "/api/copy", copy("Mine")).await.status, 200);
    assert_eq!(said(&ask(&models, "POST", "/api/chat", hello("mine")).await.lines()), ANSWER);
    ask(&models, "POST", "/api/copy", copy("../x")).await.failed(400);
    let unknown = json!({ "source": "nothing", "destination": "x" });
    ask(&models, "POST", "/api/copy", unknown).await.failed(404);

    let delete = json!({ "model": "tiny" });
    assert_eq!(ask(&models, "DELETE", "/api/delete", delete.clone()).await.status, 200);
    ask(&models, "DELETE", "/api/delete", delete).await.failed(404);
    ask(&models, "POST", "/api/chat", hello("tiny")).await.failed(404);
    assert_eq!(said(&ask(&models, "POST", "/api/chat", hello("mine")).await.lines()), ANSWER);
}

#[tokio::test]
async fn a_download_that_fails_says_so() {
    let home = Home::new();
    let models = home.with_catalog().await;
    ask(&models, "POST", "/api/pull", json!({ "model": "nothing" })).await.failed(404);
    ask(&models, "POST", "/api/pull", json!({ "model": "/etc/passwd" })).await.failed(400);
    ask(&models, "POST", "/api/pull", json!({ "model": "absent", "stream": false }))
        .await
        .failed(404);
    // The answer has begun before it is known.
    let lines = ask(&models, "POST", "/api/pull", json!({ "model": "absent" })).await.lines();
    let error = lines.last().unwrap()["error"].as_str().unwrap();
    assert!(error.contains("404"), "{error}");
}

#[tokio::test]
async fn a_model_without_a_template_goes_on_with_a_text_and_does_not_chat() {
    let home = Home::new();
    let models = home.models().await;
    let base = Successors::answering(ANSWER).with_template("");
    home.give(&models, "base", &base).await;
    let body = json!({ "model": "base", "prompt": "b", "stream": false });
    let reply = ask(&models, "POST", "/api/generate", body.clone()).await.json();
    assert_eq!(reply["response"], "lue!");
    let body = with(body, json!({ "system": "Be brief." }));
    ask(&models, "POST", "/api/generate", body).await.failed(400);
    let error = ask(&models, "POST", "/api/chat", hello("base")).await.failed(400);
    assert!(error["error"].as_str().unwrap().contains("chat"), "{error}");
}

#[tokio::test]
async fn a_model_of_the_users_own_has_its_settings() {
    let home = Home::new();
    let models = home.with_catalog().await;
    let body = json!({ "model": "tiny", "stream": false });
    ask(&models, "POST", "/api/pull", body).await.json();
    let create = json!({
        "model": "mine", "from": "tiny", "system": "Be brief.",
        "parameters": { "num_predict": 5, "stop": ["bl"], "num_ctx": 128, "temperature": 0.25 },
    });
    let lines = ask(&models, "POST", "/api/create", create).await.lines();
    assert_eq!(lines.last().unwrap(), &json!({ "status": "success" }));

    let whole = json!({ "stream": false });
    let reply = ask(&models, "POST", "/api/chat", with(hello("mine"), whole.clone())).await.json();
    assert_eq!(
        (&reply["message"]["content"], &reply["done_reason"]),
        (&json!("Sky b"), &json!("length"))
    );
    // With the instructions it is a longer prompt than that of the other.
    let other = ask(&models, "POST", "/api/chat", with(hello("tiny"), whole)).await.json();
    let tokens = |reply: &Value| reply["prompt_eval_count"].as_u64().unwrap();
    assert!(tokens(&reply) > tokens(&other) + 10);
    // What the request says comes first.
    let more = json!({ "stream": false, "options": { "num_predict": 2, "stop": "x" } });
    let reply = ask(&models, "POST", "/api/chat", with(hello("mine"), more)).await.json();
    assert_eq!(reply["message"]["content"], "Sk");
    let ps = ask(&models, "GET", "/api/ps", Value::Null).await.json();
    assert_eq!(ps["models"][0]["context_length"], 128);

    let shown = ask(&models, "POST", "/api/show", json!({ "model": "mine" })).await.json();
    assert_eq!(shown["system"], "Be brief.");
    let parameters = shown["parameters"].as_str().unwrap();
    assert!(parameters.lines().any(|line| line.starts_with("stop ") && line.ends_with("\"bl\"")));
    assert!(shown["modelfile"].as_str().unwrap().contains("PARAMETER num_ctx"));

    for (more, name) in [
        (json!({ "from": "nothing" }), "not found"),
        (json!({ "from": null }), "from"),
        (json!({ "template": "{{ .Prompt }}" }), "template"),
        (json!({ "parameters": { "nonsense": 1 } }), "nonsense"),
        (json!({ "parameters": { "top_p": 2 } }), "top_p"),
        (json!({ "model": "smollm2" }), "catalog"),
    ] {
        let body = with(json!({ "model": "other", "from": "tiny" }), more.clone());
        let reply = ask(&models, "POST", "/api/create", body).await;
        assert!(matches!(reply.status, 400 | 404), "{more}: {reply:?}");
        assert!(reply.text.contains(name), "{more}: {reply:?}");
    }
}
