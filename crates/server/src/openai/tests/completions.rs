//! Completions.

use serde_json::{Value, json};

use super::{chunks, complete, refused, with};
use crate::testing::{CONTEXT, Home};

#[tokio::test]
async fn a_text_goes_on() {
    let home = Home::new();
    let models = home.models().await;
    let reply = complete(&models, json!({ "model": "sky", "prompt": "Sk" })).await.json();
    assert_eq!(reply["object"], "text_completion");
    let choice = &reply["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("y blue!"), &json!("stop")));
    assert_eq!(reply["usage"]["prompt_tokens"], 2);
    // The text, its tokens, and several of both.
    for prompt in [json!([83, 107]), json!(["Sk"]), json!([[83, 107]])] {
        let reply = complete(&models, json!({ "model": "sky", "prompt": prompt })).await.json();
        assert_eq!(reply["choices"][0]["text"], "y blue!");
    }
    let body = json!({ "model": "sky", "prompt": ["S", "b"], "n": 2, "echo": true });
    let reply = complete(&models, body.clone()).await.json();
    let texts: Vec<&Value> =
        reply["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["Sky blue!", "Sky blue!", "blue!", "blue!"]);
    assert_eq!(reply["usage"]["prompt_tokens"], 2);
    let streamed = chunks(&complete(&models, with(body, json!({ "stream": true }))).await);
    for (index, expected) in ["Sky blue!", "Sky blue!", "blue!", "blue!"].iter().enumerate() {
        let own = streamed.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index);
        let text: String = own.filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(text, *expected);
    }
}

#[tokio::test]
async fn a_text_goes_on_for_sixteen_tokens_unless_the_request_says() {
    let home = Home::new();
    let models = home.models().await;
    let tokens = async |more: Value| {
        let body = with(json!({ "model": "endless", "prompt": "a" }), more);
        let reply = complete(&models, body).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        reply["usage"]["completion_tokens"].as_u64().unwrap() as usize
    };
    assert_eq!(tokens(json!({})).await, 16);
    assert_eq!(tokens(json!({ "max_tokens": 3 })).await, 3);
    assert_eq!(tokens(json!({ "max_tokens": 0 })).await, 0);
    assert_eq!(tokens(json!({ "max_tokens": -1 })).await, CONTEXT - 1);
}

#[tokio::test]
async fn the_tokens_of_a_text_are_told_with_their_places() {
    let home = Home::new();
    let models = home.models().await;
    let body = json!({ "model": "sky", "prompt": "Sk", "logprobs": 1, "temperature": 0 });
    let reply = complete(&models, body.clone()).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["y", " ", "b", "l", "u", "e", "!"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4, 5, 6]));
    assert_eq!(logprobs["top_logprobs"][0]["y"], logprobs["token_logprobs"][0]);
    refused(&complete(&models, with(body, json!({ "echo": true }))).await, 400, "echo");
}

#[tokio::test]
async fn a_text_that_makes_no_sense_is_refused() {
    let home = Home::new();
    let models = home.models().await;
    for (more, param) in [
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": [4_000_000] }), "prompt"),
        (json!({ "prompt": 5 }), "prompt"),
        (json!({ "best_of": 2 }), "best_of"),
        (json!({ "suffix": "x" }), "suffix"),
        (json!({ "stop": [""] }), "stop"),
    ] {
        let body = with(json!({ "model": "sky", "prompt": "b" }), more);
        refused(&complete(&models, body).await, 400, param);
    }
}
