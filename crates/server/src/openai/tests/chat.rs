//! Chat completions.

use baton_models::testing::Successors;
use serde_json::{Value, json};

use super::{chat, chunks, deltas, hello, refused, with};
use crate::testing::{ANSWER, CONTEXT, Home, ask};

#[tokio::test]
async fn a_conversation_is_answered() {
    let home = Home::new();
    let models = home.models().await;
    let reply = chat(&models, json!({})).await.json();
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&reply["object"], &reply["model"]), (&json!("chat.completion"), &json!("sky")));
    let choice = &reply["choices"][0];
    assert_eq!(
        choice["message"],
        json!({ "role": "assistant", "content": ANSWER, "refusal": null })
    );
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("stop"), &Value::Null));
    let usage = &reply["usage"];
    assert_eq!(usage["completion_tokens"], ANSWER.len());
    let total = usage["prompt_tokens"].as_u64().unwrap() + ANSWER.len() as u64;
    assert_eq!(usage["total_tokens"], total);
    let timings = &reply["timings"];
    assert_eq!((&timings["predicted_n"], &timings["cache_n"]), (&json!(ANSWER.len()), &json!(0)));
    assert_eq!(timings["prompt_n"], usage["prompt_tokens"]);
    // What was asked before is in the cache; the last token is always evaluated again.
    let again = chat(&models, json!({})).await.json();
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached, usage["prompt_tokens"].as_u64().unwrap() - 1);
    assert_eq!(again["timings"]["prompt_n"], 1);
}

#[tokio::test]
async fn an_answer_comes_in_pieces() {
    let home = Home::new();
    let models = home.models().await;
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let chunks = chunks(&chat(&models, options).await);
    let first = &chunks[0]["choices"][0]["delta"];
    assert_eq!((&first["role"], &first["content"]), (&json!("assistant"), &json!("")));
    assert_eq!(deltas(&chunks, "content"), ANSWER);
    assert!(chunks.len() > 4, "the answer comes as it is made");
    let [.., last, usage] = chunks.as_slice() else { panic!() };
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!((&usage["choices"], &last["usage"]), (&json!([]), &Value::Null));
    assert_eq!(usage["usage"]["completion_tokens"], ANSWER.len());
    for chunk in &chunks {
        assert_eq!(
            (&chunk["id"], &chunk["object"]),
            (&chunks[0]["id"], &json!("chat.completion.chunk"))
        );
    }
}

#[tokio::test]
async fn a_stream_says_nothing_of_usage_unless_asked() {
    let home = Home::new();
    let models = home.models().await;
    for chunk in chunks(&chat(&models, json!({ "stream": true })).await) {
        assert!(chunk.get("usage").is_none(), "{chunk}");
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn whole_numbers_may_have_a_point_in_every_interface() {
    let home = Home::new();
    let models = home.models().await;
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    for (path, limit, rest) in [
        ("/v1/chat/completions", "max_tokens", json!({ "messages": messages, "n": 1.0 })),
        ("/v1/completions", "max_tokens", json!({ "prompt": "Hello", "top_k": 1.0 })),
        ("/v1/responses", "max_output_tokens", json!({ "input": "Hello", "seed": 7.0 })),
        ("/v1/messages", "max_tokens", json!({ "messages": messages, "top_k": 1.0 })),
        ("/completion", "n_predict", json!({ "prompt": "Hello", "repeat_last_n": -1.0 })),
    ] {
        let body = |n: f64| {
            let mut body = rest.clone();
            body["model"] = "sky".into();
            body[limit] = n.into();
            body
        };
        ask(&models, "POST", path, body(3.0)).await.json();
        let error = ask(&models, "POST", path, body(3.5)).await.failed(400).to_string();
        assert!(error.contains("whole number"), "{path}: {error}");
    }
}

#[tokio::test]
async fn a_stop_string_ends_an_answer_and_is_not_in_it() {
    let home = Home::new();
    let models = home.models().await;
    for (stop, expected) in
        [(json!("blu"), "Sky "), (json!(["nothing", "e!"]), "Sky blu"), (json!("blu?"), ANSWER)]
    {
        let whole = chat(&models, json!({ "stop": stop })).await.json();
        assert_eq!(whole["choices"][0]["message"]["content"], expected);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        let pieces = chat(&models, json!({ "stop": stop, "stream": true })).await;
        assert_eq!(deltas(&chunks(&pieces), "content"), expected);
    }
    refused(&chat(&models, json!({ "stop": 5 })).await, 400, "stop");
}

#[tokio::test]
async fn characters_are_never_torn_apart() {
    let home = Home::new();
    let models = home.models().await;
    let text = "é🙂日";
    home.give(&models, "signs", &Successors::answering(text)).await;
    let body = with(hello("signs"), json!({ "stream": true }));
    let chunks = chunks(&ask(&models, "POST", "/v1/chat/completions", body).await);
    assert_eq!(deltas(&chunks, "content"), text);
    // One that is cut off is shown as one that is not known.
    for (tokens, expected) in [(1, "\u{fffd}"), (2, "é"), (4, "é\u{fffd}"), (6, "é🙂")] {
        let body = with(hello("signs"), json!({ "max_tokens": tokens }));
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        let choice = &reply["choices"][0];
        assert_eq!(choice["message"]["content"], expected, "{tokens}");
        assert_eq!(choice["finish_reason"], "length");
    }
}

#[tokio::test]
async fn several_answers_are_told_apart() {
    let home = Home::new();
    let models = home.models().await;
    let reply = chat(&models, json!({ "n": 3, "seed": 1 })).await.json();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(
            (&choice["index"], &choice["message"]["content"]),
            (&json!(index), &json!(ANSWER))
        );
    }
    assert_eq!(reply["usage"]["completion_tokens"], 3 * ANSWER.len());
    let chunks = chunks(&chat(&models, json!({ "n": 2, "stream": true })).await);
    for index in 0..2 {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index);
        let text: String = own.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, ANSWER);
    }
    refused(&chat(&models, json!({ "n": 0 })).await, 400, "n");
    refused(&chat(&models, json!({ "n": 1000 })).await, 400, "n");
}

#[tokio::test]
async fn tokens_are_told_with_their_probabilities() {
    let home = Home::new();
    let models = home.models().await;
    let options = json!({ "logprobs": true, "top_logprobs": 2, "temperature": 0 });
    let reply = chat(&models, options.clone()).await.json();
    let tokens = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, ANSWER);
    for token in tokens {
        let logprob = token["logprob"].as_f64().unwrap();
        assert!(logprob <= 0.0 && logprob.is_finite());
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (2, &token["token"]));
        assert_eq!(token["bytes"], json!(token["token"].as_str().unwrap().as_bytes()));
    }
    let streamed = chunks(&chat(&models, with(options, json!({ "stream": true }))).await);
    let tokens: String = streamed
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    assert_eq!(tokens, ANSWER);
    refused(&chat(&models, json!({ "top_logprobs": 2 })).await, 400, "top_logprobs");
    let many = json!({ "logprobs": true, "top_logprobs": 21 });
    refused(&chat(&models, many).await, 400, "top_logprobs");
}

#[tokio::test]
async fn what_is_not_known_or_not_supported_is_named() {
    let home = Home::new();
    let models = home.models().await;
    for (more, param) in [
        (json!({ "temprature": 1 }), "temprature"),
        (json!({ "audio": { "voice": "x" } }), "audio"),
        (json!({ "functions": [{}] }), "functions"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "top_p": 2 }), "top_p"),
        (json!({ "logit_bias": { "the": 1 } }), "logit_bias"),
        (json!({ "reasoning_effort": "lots" }), "reasoning_effort"),
        (json!({ "stream_options": { "x": 1 } }), "stream_options.x"),
        (json!({ "tool_choice": "perhaps" }), "tool_choice"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "robot", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (
            json!({ "messages": [{ "role": "user", "content": [
                { "type": "text", "text": "x" }, { "type": "image_url", "image_url": {} }] }] }),
            "messages[0].content[1]",
        ),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }),
            "tools[0].function.name",
        ),
    ] {
        let message = refused(&chat(&models, more).await, 400, param);
        assert!(!message.is_empty());
    }
    let broken = r#"{"model": "sky", "messages": ["#;
    let body = Value::String(broken.into());
    ask(&models, "POST", "/v1/chat/completions", body).await.failed(400);
}

#[tokio::test]
async fn what_clients_send_along_is_taken() {
    let home = Home::new();
    let models = home.models().await;
    let more = json!({
        "user": "me", "metadata": { "a": "b" }, "store": true, "service_tier": "auto",
        "parallel_tool_calls": true, "tools": [], "tool_choice": null, "functions": null,
        "audio": null, "logit_bias": {}, "n": null, "stop": null, "modalities": ["text"],
        "messages": [
            { "role": "developer", "content": [{ "type": "text", "text": "Be " },
                { "type": "text", "text": "brief.", "cache_control": { "type": "ephemeral" } }] },
            { "role": "user", "content": "Hi", "name": "me" },
            { "role": "assistant", "content": "Yes?", "refusal": null, "annotations": [],
              "audio": null, "function_call": null, "tool_calls": null, "reasoning": "Hm." },
            { "role": "user", "content": "Hello" },
        ],
    });
    let reply = chat(&models, more).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], ANSWER);
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_refused_with_both_numbers() {
    let home = Home::new();
    let models = home.models().await;
    let long = json!({ "messages": [{ "role": "user", "content": "x".repeat(CONTEXT) }] });
    let error = chat(&models, long).await.failed(400)["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("{CONTEXT}")), "{message}");
    let prompt = message.split_whitespace().find_map(|word| word.parse::<usize>().ok());
    assert!(prompt.is_some_and(|tokens| tokens > CONTEXT), "{message}");
}

#[tokio::test]
async fn the_last_message_is_continued() {
    let home = Home::new();
    let models = home.models().await;
    let messages = json!([{ "role": "user", "content": "Hello" },
        { "role": "assistant", "content": "Sky b" }]);
    let more = json!({ "messages": messages, "continue_final_message": true });
    let reply = chat(&models, more).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "lue!");
}
