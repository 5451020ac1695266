use baton_models::testing::{CHATML, Successors};
use serde_json::{Value, json};

use crate::testing::{ANSWER, CONTEXT, Home, Reply, ask};
use crate::{KeepAlive, Models};

fn hello(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] })
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

async fn chat(models: &Models, more: Value) -> Reply {
    ask(models, "POST", "/v1/chat/completions", with(hello("sky"), more)).await
}

async fn complete(models: &Models, body: Value) -> Reply {
    ask(models, "POST", "/v1/completions", body).await
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
    let error = ask(&models, "POST", "/v1/chat/completions", nameless).await.failed(400);
    assert!(error["error"]["message"].as_str().unwrap().contains("model"));
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
async fn the_last_message_is_continued() {
    let home = Home::new();
    let models = home.models().await;
    let messages = json!([{ "role": "user", "content": "Hello" },
        { "role": "assistant", "content": "Sky b" }]);
    let more = json!({ "messages": messages, "continue_final_message": true });
    let reply = chat(&models, more).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "lue!");
}

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

#[tokio::test]
async fn a_response_consists_of_items() {
    let home = Home::new();
    let models = home.models().await;
    let body = json!({ "model": "sky", "input": "Hello", "instructions": "Be brief.",
        "metadata": { "a": "b" } });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(reply["metadata"], json!({ "a": "b" }));
    let item = &reply["output"][0];
    assert_eq!((&item["type"], &item["status"]), (&json!("message"), &json!("completed")));
    let part = json!({ "type": "output_text", "text": ANSWER, "annotations": [], "logprobs": [] });
    assert_eq!(item["content"], json!([part]));
    assert_eq!(reply["usage"]["output_tokens"], ANSWER.len());
    let body = json!({ "model": "sky", "input": [{ "role": "user", "content": "Hello" }],
        "max_output_tokens": 3 });
    let cut = ask(&models, "POST", "/v1/responses", body).await.json();
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"], json!({ "reason": "max_output_tokens" }));
}

#[tokio::test]
async fn a_response_tells_how_its_items_come_to_be() {
    let home = Home::new();
    let models = home.models().await;
    let body = json!({ "model": "sky", "input": "Hello", "stream": true,
        "include": ["message.output_text.logprobs"] });
    let events = ask(&models, "POST", "/v1/responses", body).await.events();
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names, expected);
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.clone().map(|(_, event)| event["delta"].as_str().unwrap()).collect();
    let tokens = deltas.flat_map(|(_, event)| event["logprobs"].as_array().unwrap()).count();
    assert_eq!((text.as_str(), tokens), (ANSWER, ANSWER.len()));
    let (_, last) = events.last().unwrap();
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], ANSWER);
}

#[tokio::test]
async fn a_response_does_not_go_on_from_what_is_not_kept() {
    let home = Home::new();
    let models = home.models().await;
    for (more, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "background": true }), "background"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "input": [] }), "messages"),
    ] {
        let body = with(json!({ "model": "sky", "input": "Hello" }), more);
        refused(&ask(&models, "POST", "/v1/responses", body).await, 400, param);
    }
}

/// CHATML that shows how tools are called, and how the model thinks.
fn hermes() -> String {
    format!("{CHATML}{{# <tool_call> <think> </think> #}}")
}

fn weather() -> Value {
    json!({ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "enum": ["Paris"] } }, "required": ["city"],
        "additionalProperties": false } } })
}

const CALL: &[&str] = &[
    "<tool_call>",
    "\n{\"name\": \"weather\", ",
    "\"arguments\": {\"city\": ",
    "\"Paris\"}}\n",
    "</tool_call>",
];

#[tokio::test]
async fn a_call_is_told_as_one() {
    let home = Home::new();
    let models = home.models().await;
    let model = Successors::speaking(CALL).with_template(&hermes());
    home.give(&models, "caller", &model).await;
    let body = with(hello("caller"), json!({ "tools": [weather()] }));
    let reply = ask(&models, "POST", "/v1/chat/completions", body.clone()).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"]["name"], "weather");
    let arguments = call["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "city": "Paris" }));

    let streamed = with(body.clone(), json!({ "stream": true }));
    let chunks = chunks(&ask(&models, "POST", "/v1/chat/completions", streamed).await);
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|c| &c["choices"][0]["delta"]["tool_calls"][0])
        .filter(|c| !c.is_null())
        .collect();
    assert!(calls.iter().all(|call| call["index"] == 0));
    let first = &calls[0];
    assert!(first["id"].is_string() && first["type"] == "function");
    assert_eq!(first["function"], json!({ "name": "weather", "arguments": "" }));
    assert!(calls[1..].iter().all(|call| call["function"].get("name").is_none()));
    let whole: String =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&whole).unwrap(), json!({ "city": "Paris" }));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // Without tools, and with another one, it is what the model said.
    for tools in [json!([]), json!([{ "type": "function", "function": { "name": "other" } }])] {
        let body = with(hello("caller"), json!({ "tools": tools }));
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        assert_eq!(reply["choices"][0]["message"]["content"], CALL.concat());
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
    let body = json!({ "model": "caller", "input": "Hello",
        "tools": [with(json!({ "type": "function" }), weather()["function"].clone())] });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    let item = &reply["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("weather")));
}

#[tokio::test]
async fn thoughts_are_told_under_both_names() {
    let home = Home::new();
    let models = home.models().await;
    let model = Successors::speaking(&["<think>", "\nHm.\n", "</think>", "\n\n", "Yes."]);
    home.give(&models, "thinker", &model.with_template(&hermes())).await;
    let reply = ask(&models, "POST", "/v1/chat/completions", hello("thinker")).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning"]), (&json!("Yes."), &json!("Hm.")));
    assert_eq!(message["reasoning_content"], message["reasoning"]);
    assert_eq!(reply["usage"]["completion_tokens"], 5);
    let thought = &reply["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert!((1..=4).contains(&thought.as_u64().unwrap()), "{thought}");
    let body = with(hello("thinker"), json!({ "stream": true }));
    let chunks = chunks(&ask(&models, "POST", "/v1/chat/completions", body).await);
    assert_eq!(deltas(&chunks, "reasoning_content"), "Hm.");
    assert_eq!(deltas(&chunks, "reasoning"), "Hm.");
    assert_eq!(deltas(&chunks, "content"), "Yes.");
    let body = json!({ "model": "thinker", "input": "Hello" });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    let kinds: Vec<&Value> =
        reply["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    assert_eq!(reply["output"][0]["content"][0]["text"], "Hm.");
}

#[tokio::test]
async fn an_answer_takes_the_form_that_was_asked_for() {
    let home = Home::new();
    let models = home.models().await;
    let schema = json!({ "type": "object", "properties": { "sky": { "enum": ["blue"] } },
        "required": ["sky"], "additionalProperties": false });
    let named = json!({ "name": "answer", "schema": schema, "strict": true });
    for format in [
        json!({ "type": "json_schema", "json_schema": named }),
        json!({ "type": "json_object", "schema": schema }),
    ] {
        let reply =
            chat(&models, json!({ "response_format": format, "temperature": 0 })).await.json();
        let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({ "sky": "blue" }));
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
    let regex = json!({ "type": "grammar", "syntax": "regex", "definition": "[0-9]{4}" });
    let body = json!({ "model": "sky", "prompt": "b", "response_format": regex });
    let text =
        complete(&models, body).await.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.len() == 4 && text.chars().all(|c| c.is_ascii_digit()), "{text}");
    let format = json!({ "type": "json_schema", "name": "answer", "schema": schema });
    let body = json!({ "model": "sky", "input": "Hello", "text": { "format": format } });
    let reply = ask(&models, "POST", "/v1/responses", body).await.json();
    let text = reply["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({ "sky": "blue" }));
    let bad = json!({ "type": "json_schema", "json_schema": { "schema": { "type": "potato" } } });
    refused(&chat(&models, json!({ "response_format": bad })).await, 400, "response_format");
}

#[tokio::test]
async fn a_call_can_be_forced() {
    let home = Home::new();
    let models = home.models().await;
    home.give(&models, "sayer", &Successors::answering(ANSWER).with_template(&hermes())).await;
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for choice in [json!("required"), named] {
        let more = json!({ "tools": [weather()], "tool_choice": choice, "temperature": 0 });
        let body = with(hello("sayer"), more);
        let reply = ask(&models, "POST", "/v1/chat/completions", body).await.json();
        let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather");
        let arguments = call["arguments"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "city": "Paris" }));
    }
    // Nothing is known of how `sky` would call.
    let more = json!({ "tools": [weather()], "tool_choice": "required" });
    refused(&chat(&models, more).await, 400, "tool_choice");
    refused(&chat(&models, json!({ "tool_choice": "required" })).await, 400, "tool_choice");
    let unknown = json!({ "type": "function", "function": { "name": "other" } });
    let more = json!({ "tools": [weather()], "tool_choice": unknown });
    refused(&chat(&models, more).await, 400, "tool_choice");
}
