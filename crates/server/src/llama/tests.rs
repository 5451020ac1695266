use serde_json::{Value, json};

use crate::testing::{self, ANSWER, CONTEXT, Home, ask};
use crate::{ModelOptions, Models};

#[tokio::test]
async fn texts_are_split_and_joined() {
    let home = Home::new();
    let models = home.models().await;
    let tokenize =
        async |body| ask(&models, "POST", "/tokenize", body).await.json()["tokens"].clone();
    let hi = json!({ "model": "sky", "content": "Hi<|im_end|>" });
    assert_eq!(tokenize(hi).await, json!([72, 105, 258]));
    // It is in memory now, so it is the one that is meant.
    let plain = tokenize(json!({ "content": "<|im_end|>", "parse_special": false })).await;
    assert_eq!(plain.as_array().unwrap().len(), 10);
    let pieces = tokenize(json!({ "content": "é", "with_pieces": true })).await;
    assert_eq!(pieces, json!([{ "id": 0xC3, "piece": [0xC3] }, { "id": 0xA9, "piece": [0xA9] }]));

    let joined = ask(&models, "POST", "/detokenize", json!({ "tokens": [72, 105, 258] })).await;
    assert_eq!(joined.json(), json!({ "content": "Hi<|im_end|>" }));
    let error = ask(&models, "POST", "/detokenize", json!({ "tokens": [999] })).await.failed(400);
    assert_eq!(error["error"]["type"], "invalid_request_error");
    assert!(error["error"]["message"].as_str().unwrap().contains("999"), "{error}");
}

#[tokio::test]
async fn a_conversation_is_written_as_the_model_reads_it() {
    let home = Home::new();
    let models = home.models().await;
    let body = json!({ "model": "sky", "messages": [{ "role": "user", "content": "Hello" }] });
    let reply = ask(&models, "POST", "/apply-template", body).await.json();
    let expected = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(reply, json!({ "prompt": expected }));
    let bad = json!({ "model": "sky", "messages": [{ "content": "Hello" }] });
    let error = ask(&models, "POST", "/apply-template", bad).await.failed(400);
    assert!(error["error"]["message"].as_str().unwrap().contains("messages[0]"), "{error}");
}

#[tokio::test]
async fn the_state_of_the_server_is_told() {
    let home = Home::new();
    let models = home.models().await;
    for path in ["/health", "/v1/health"] {
        let reply = ask(&models, "GET", path, Value::Null).await.json();
        assert_eq!(reply, json!({ "status": "ok" }));
    }
    // Two are installed and none is loaded: neither is meant.
    ask(&models, "GET", "/props", Value::Null).await.failed(400);
    let props = ask(&models, "GET", "/props?model=sky%3Alatest", Value::Null).await.json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], CONTEXT);
    assert_eq!((&props["model_alias"], &props["eos_token"]), (&json!("sky"), &json!("<|im_end|>")));
    assert!(!props.to_string().contains(home.path("").to_str().unwrap()), "paths are not told");
    let slots = ask(&models, "GET", "/slots", Value::Null).await.json();
    let most = models.options().scheduler.max_running;
    assert_eq!(slots.as_array().unwrap().len(), most);
    assert_eq!((&slots[0]["is_processing"], &slots[0]["n_ctx"]), (&json!(false), &json!(CONTEXT)));
    ask(&models, "GET", "/slots?model=nothing", Value::Null).await.failed(404);

    let body = json!({ "prompt": "Hi\n", "temperature": 0 });
    ask(&models, "POST", "/completion", body).await.json();
    // The answer is told before it is counted.
    while models.running()[0].loaded.load().totals.requests == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let metrics = ask(&models, "GET", "/metrics", Value::Null).await;
    assert!(metrics.content_type.starts_with("text/plain"), "{metrics:?}");
    let value = |name: &str| -> f64 {
        let start = format!("llamacpp:{name}{{model=\"sky\"}} ");
        metrics.text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
    };
    assert_eq!(value("prompt_tokens_total"), 3.0);
    assert_eq!(value("tokens_predicted_total"), ANSWER.len() as f64);
    assert_eq!(value("requests_processing"), 0.0);
    assert!(metrics.text.contains("# TYPE llamacpp:requests_deferred gauge"));
}

#[tokio::test]
async fn a_text_is_continued_in_events_and_whole() {
    let home = Home::new();
    let models = home.models().await;
    let body = |more: Value| {
        let mut body = json!({ "model": "sky", "prompt": "Hi\n", "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = ask(&models, "POST", "/completion", body(json!({ "n_predict": 3 }))).await.json();
    assert_eq!((&whole["content"], &whole["stop_type"]), (&json!("Sky"), &json!("limit")));
    assert_eq!((&whole["tokens_predicted"], &whole["tokens_evaluated"]), (&json!(3), &json!(3)));
    let words = body(json!({ "stop": ["bl"], "n_probs": 1 }));
    let stopped = ask(&models, "POST", "/completion", words).await.json();
    assert_eq!((&stopped["content"], &stopped["stop_type"]), (&json!("Sky "), &json!("word")));
    assert_eq!(stopped["stopping_word"], "bl");
    assert_eq!(stopped["completion_probabilities"][0]["token"], "S");
    let ids = body(json!({ "prompt": [72, 10] }));
    let reply = ask(&models, "POST", "/completion", ids).await.json();
    assert_eq!((&reply["content"], &reply["stop_type"]), (&json!(ANSWER), &json!("eos")));

    let events =
        ask(&models, "POST", "/completion", body(json!({ "stream": true }))).await.events();
    let text: String = events.iter().map(|(_, data)| data["content"].as_str().unwrap()).collect();
    assert_eq!(text, ANSWER);
    let (last, pieces) = events.split_last().unwrap();
    assert!(pieces.iter().all(|(_, data)| data["stop"] == false && data.get("timings").is_none()));
    assert_eq!((&last.1["stop"], &last.1["stop_type"]), (&json!(true), &json!("eos")));
    assert!(last.1["timings"]["predicted_per_second"].as_f64().is_some());

    for (more, name) in [
        (json!({ "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "prompt": [9999] }), "9999"),
        (json!({ "surprise": 1 }), "surprise"),
    ] {
        let error = ask(&models, "POST", "/completion", body(more)).await.failed(400);
        assert!(error["error"]["message"].as_str().unwrap().contains(name), "{error}");
    }
}

#[tokio::test]
async fn a_cache_is_saved_and_restored_on_request() {
    let (home, other) = (Home::new(), Home::new());
    let folder = home.path("saved");
    std::fs::create_dir(&folder).unwrap();
    let options = || ModelOptions { cache_folder: Some(folder.clone()), ..testing::options() };
    let (models, fresh) = (home.models_with(options()).await, other.models_with(options()).await);
    let prompt = "Tell me of the sky, and of the sea, and of all that lies between them.";
    let ask_for = async |models: &Models| {
        let body = json!({ "model": "sky", "prompt": prompt, "temperature": 0, "n_predict": 4 });
        ask(models, "POST", "/completion", body).await.json()
    };
    let first = ask_for(&models).await;
    let act = async |models: &Models, action: &str, name: Value| {
        let path = format!("/slots/0?action={action}&model=sky");
        ask(models, "POST", &path, json!({ "filename": name })).await
    };
    let saved = act(&models, "save", json!("sky.cache")).await.json();
    let restored = act(&fresh, "restore", json!("sky.cache")).await.json();
    assert_eq!(saved["n_saved"], restored["n_restored"]);
    assert_eq!(saved["n_written"], std::fs::metadata(folder.join("sky.cache")).unwrap().len());
    let again = ask_for(&fresh).await;
    assert_eq!(again["content"], first["content"]);
    assert_eq!(again["timings"]["prompt_n"], 1, "{again}");

    let erased = act(&fresh, "erase", Value::Null).await.json();
    assert!(erased["n_erased"].as_u64().unwrap() > 0, "{erased}");
    for name in ["../sky.cache", "/etc/passwd", "a/b", ".hidden", ""] {
        act(&models, "save", json!(name)).await.failed(400);
    }
    act(&models, "restore", json!("missing")).await.failed(404);
    std::fs::write(folder.join("broken"), "BATONPC1 and what does not belong there").unwrap();
    act(&models, "restore", json!("broken")).await.failed(400);
    act(&models, "forget", json!("sky.cache")).await.failed(400);
    let plain = home.models().await;
    act(&plain, "save", json!("sky.cache")).await.failed(501);
}
