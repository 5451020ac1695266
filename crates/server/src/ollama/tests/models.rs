use baton_models::testing::CHATML;
use serde_json::{Value, json};

use super::{hello, said, with};
use crate::testing::{ANSWER, Home, ask};

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
    for bad in ["../x", "x\n", "", "hf.co/a/b", "/x"] {
        ask(&models, "POST", "/api/copy", copy(bad)).await.failed(400);
    }
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
    assert!(models.running().is_empty());
}
