use super::*;

fn messages(messages: Value) -> Vec<Message> {
    serde_json::from_value(messages).unwrap()
}

fn normalized(source: &str, given: Value, tools: Option<&Value>) -> Value {
    let template = ChatTemplate::new(source, None, None).unwrap();
    serde_json::to_value(template.normalize_messages(&messages(given), tools)).unwrap()
}

/// Shows everything; `CALL` writes a call.
fn source(call: &str) -> String {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\
        {% for c in m.tool_calls %}CALL{% endfor %}{% endfor %}{{ tools | tojson }}";
    template.replace("CALL", call)
}

fn called(arguments: Value) -> Value {
    json!([
        { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": "", "tool_calls": [{ "id": "abcdef123",
            "type": "function", "function": { "name": "f", "arguments": arguments } }] },
        { "role": "tool", "content": "7", "tool_call_id": "abcdef123", "name": "f" },
    ])
}

fn arguments(messages: &Value) -> &Value {
    &messages[1]["tool_calls"][0]["function"]["arguments"]
}

#[test]
fn arguments_take_the_form_that_comes_through() {
    let object = source("{{ c.function.arguments | tojson }}");
    let items = source("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}");
    let text = source("{{ 'call:' + c.function.arguments }}");
    for (source, wanted) in
        [(&object, json!({ "a": 1 })), (&items, json!({ "a": 1 })), (&text, json!("{\"a\":1}"))]
    {
        for given in [json!({ "a": 1 }), json!("{\"a\":1}")] {
            let result = normalized(source, called(given), None);
            assert_eq!(arguments(&result), &wanted, "{source}");
        }
    }
    // What is no object is left as it is.
    assert_eq!(arguments(&normalized(&object, called(json!("oops")), None)), "oops");
}

#[test]
fn content_beside_a_call_is_what_the_template_can_bear() {
    let text = source("{{ c.function.arguments | tojson }}").replace("m.content", "m.content + ''");
    let none = "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}\
        {% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}";
    let mut given = called(json!("{}"));
    given[1]["content"] = Value::Null;
    assert_eq!(normalized(&text, given, None)[1]["content"], "");
    assert_eq!(normalized(none, called(json!("{}")), None)[1]["content"], Value::Null);
}

#[test]
fn ids_that_are_refused_are_shortened_everywhere() {
    let call = "{{ c.function | tojson }}\
        {% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}";
    let mut given = called(json!("{}"));
    let long = "call_0123456789abcdef";
    given[1]["tool_calls"][0]["id"] = json!(long);
    given[2]["tool_call_id"] = json!(long);
    let result = normalized(&source(call), given.clone(), None);
    let id = result[1]["tool_calls"][0]["id"].as_str().unwrap();
    assert_eq!((id.len(), &result[2]["tool_call_id"]), (9, &json!(id)));
    assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let kept = normalized(&source("{{ c.function | tojson }}"), given, None);
    assert_eq!(kept[2]["tool_call_id"], long);
    let fits = normalized(&source(call), called(json!("{}")), None);
    assert_eq!(fits[2]["tool_call_id"], "abcdef123");
}

#[test]
fn ids_names_and_types_are_filled_in() {
    let call = |name: &str| json!({ "function": { "name": name, "arguments": {} } });
    let given = json!([
        { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": "", "tool_calls": [call("f"), call("g")] },
        { "role": "tool", "content": "2", "tool_name": "g" },
        { "role": "tool", "content": "1" },
        { "role": "assistant", "content": "So.", "tool_calls": [] },
    ]);
    let result = normalized(&source("{{ c.function | tojson }}"), given, None);
    let calls = &result[1]["tool_calls"];
    assert_eq!((&calls[0]["id"], &calls[0]["type"]), (&json!("call_1"), &json!("function")));
    assert_eq!(result[2]["tool_call_id"], "call_2");
    assert_eq!((&result[3]["tool_call_id"], &result[3]["name"]), (&json!("call_1"), &json!("f")));
    assert_eq!(result[4].get("tool_calls"), None);
}

#[test]
fn a_developer_is_the_system_unless_the_template_knows_it() {
    let given = json!([{ "role": "developer", "content": "x" }]);
    assert_eq!(normalized(&source(""), given.clone(), None)[0]["role"], "system");
    let knows = source("") + "{% if messages[0].role == 'developer' %}{% endif %}";
    assert_eq!(normalized(&knows, given, None)[0]["role"], "developer");
}

#[test]
fn thoughts_are_found_under_the_templates_name() {
    let given = json!([{ "role": "assistant", "content": "x", "reasoning": "hm" }]);
    let knows = source("") + "{{ messages[0].reasoning_content }}";
    assert_eq!(normalized(&knows, given.clone(), None)[0]["reasoning_content"], "hm");
    assert_eq!(normalized(&knows, given.clone(), None)[0].get("reasoning"), None);
    let thinking = source("") + "{{ messages[0]['thinking'] }}";
    assert_eq!(normalized(&thinking, given, None)[0]["thinking"], "hm");
}

#[test]
fn a_template_without_tools_is_told_of_them_in_text() {
    let plain = "{% for m in messages %}\
        {% if m.role not in ['user', 'assistant'] %}{{ raise_exception('role') }}{% endif %}\
        <{{ m.role }}>{{ m.content }}{% endfor %}";
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let mut given = called(json!("{\"a\": 1}"));
    given[1]["content"] = json!("Wait.");
    let result = normalized(plain, given, Some(&tools));
    let first = result[0]["content"].as_str().unwrap();
    assert!(first.contains("\"name\": \"f\"") && first.ends_with("\n\nHi"), "{first}");
    let call = "Wait.\n{\"name\":\"f\",\"parameters\":{\"a\":1}}";
    assert_eq!(result[1], json!({ "role": "assistant", "content": call }));
    assert_eq!(result[2]["role"], "user");
    assert_eq!(result[2]["content"], "```tool_output\n7\n```");
}

#[test]
fn variables_of_the_template_itself_cannot_be_set() {
    let template = ChatTemplate::new("{{ documents }}{{ reasoning_effort }}", None, None).unwrap();
    let mut options = RenderOptions::default();
    options.extra.insert("documents".to_owned(), json!(["x"]));
    options.extra.insert("reasoning_effort".to_owned(), json!("high"));
    assert_eq!(template.render(&[], &options).unwrap(), "['x']high");
    options.extra.insert("messages".to_owned(), json!([]));
    assert!(template.render(&[], &options).is_err());
}
