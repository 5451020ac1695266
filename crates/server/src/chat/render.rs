//! From a conversation to the text that the model reads.

use baton_engine::{Message, RenderOptions};
use serde_json::{Map, Value, json};

use super::{ChatRequest, Think, ToolChoice};
use crate::models::Loaded;
use crate::{ApiError, Kind, Result};

/// The conversation as the model's chat template writes it, with messages guarded against being
/// read as control tokens.
///
/// # Errors
/// If the model has no template, or its template refuses the conversation.
pub fn rendered(loaded: &Loaded, request: &ChatRequest) -> Result<String> {
    if request.messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages is empty; there must be at least one"));
    }
    let engine = loaded.engine()?;
    let tools = offered(request)?;
    let templates = &engine.traits().templates;
    let template = templates.choose(!tools.is_empty()).map_err(|error| ApiError {
        param: Some("model".into()),
        ..ApiError::new(Kind::Invalid, format!("{} cannot chat: {error}", loaded.name))
    })?;
    let tokenizer = engine.tokenizer()?;
    let mut messages = for_template(&request.messages);
    if let Some(system) = &loaded.facts.defaults.system
        && messages.iter().all(|message| message.role != "system")
    {
        messages.insert(0, Message::system(system));
    }
    let guarded: Vec<Message> = messages.iter().map(|m| tokenizer.guard(m)).collect();
    let options = RenderOptions {
        add_generation_prompt: !request.continue_last,
        tools: (!tools.is_empty()).then(|| guarded_value(tokenizer, Value::Array(tools))),
        extra: variables(request),
        now: None,
    };
    let text = template.render(&guarded, &options).map_err(refused)?;
    match guarded.last() {
        Some(last) if request.continue_last => cut_behind(text, &last.text()),
        _ => Ok(text),
    }
}

/// Refuses token ids that the model does not have.
pub(super) fn check_tokens(loaded: &Loaded, tokens: &[u32]) -> Result<()> {
    let vocabulary = loaded.tokenizer()?.vocab_size();
    match tokens.iter().find(|&&id| id as usize >= vocabulary) {
        None => Ok(()),
        Some(id) => {
            let message = format!("token {id} is not one of the model's {vocabulary}");
            Err(ApiError::invalid("prompt", message))
        }
    }
}

/// The tools that the model is told of.
pub(super) fn offered(request: &ChatRequest) -> Result<Vec<Value>> {
    let wanted = match &request.tool_choice {
        ToolChoice::None => return Ok(Vec::new()),
        ToolChoice::Auto => return Ok(request.tools.clone()),
        ToolChoice::Required => None,
        ToolChoice::Named(name) => Some(name),
    };
    let fits = |tool: &&Value| wanted.is_none_or(|name| tool["function"]["name"] == **name);
    let tools: Vec<Value> = request.tools.iter().filter(fits).cloned().collect();
    match (tools.is_empty(), wanted) {
        (false, _) => Ok(tools),
        (true, None) => Err(ApiError::invalid("tool_choice", "there are no tools to choose from")),
        (true, Some(name)) => {
            Err(ApiError::invalid("tool_choice", format!("there is no tool called {name:?}")))
        }
    }
}

/// What templates call the ways of thinking. Each model looks at one of them.
fn variables(request: &ChatRequest) -> Map<String, Value> {
    let mut variables = Map::new();
    if let Some(think) = &request.think {
        let thinks = *think != Think::Off;
        variables.insert("enable_thinking".into(), thinks.into());
        variables.insert("thinking".into(), thinks.into());
        if let Think::Effort(effort) = think {
            variables.insert("reasoning_effort".into(), effort.as_str().into());
        }
    }
    variables.extend(request.template_variables.clone());
    variables
}

/// Messages as templates expect them, which is not quite as interfaces send them.
fn for_template(messages: &[Message]) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let mut names: Vec<(String, String)> = Vec::new();
    for message in &mut messages {
        if message.role == "developer" {
            message.role = "system".into();
        }
        if let Some(Value::Array(calls)) = message.extra.get_mut("tool_calls") {
            for call in calls {
                arguments_as_object(call);
                if let (Some(id), Some(name)) =
                    (call["id"].as_str(), call["function"]["name"].as_str())
                {
                    names.push((id.to_owned(), name.to_owned()));
                }
            }
        }
        // Some templates name the tool that a result is of, and some clients do not.
        if message.role == "tool" && !message.extra.contains_key("name") {
            let id = message.extra.get("tool_call_id").and_then(Value::as_str);
            let known = names.iter().rev().find(|(known, _)| Some(known.as_str()) == id);
            if let Some((_, name)) = known {
                message.extra.insert("name".into(), name.as_str().into());
            }
        }
    }
    messages
}

/// Interfaces send the arguments of a call as a string; templates write them as an object.
fn arguments_as_object(call: &mut Value) {
    let arguments = &mut call["function"]["arguments"];
    if let Some(Ok(object @ Value::Object(_))) = arguments.as_str().map(serde_json::from_str) {
        *arguments = object;
    } else if arguments.as_str().is_some_and(|text| text.trim().is_empty()) {
        *arguments = json!({});
    }
}

/// A value other than a message, guarded as messages are.
fn guarded_value(tokenizer: &baton_text::Tokenizer, value: Value) -> Value {
    let mut carrier = Message::user("");
    carrier.extra.insert("value".into(), value);
    tokenizer.guard(&carrier).extra.remove("value").unwrap_or_default()
}

/// The text up to the end of the last message, which the model is to go on with.
fn cut_behind(mut text: String, last: &str) -> Result<String> {
    let last = last.trim();
    match text.rfind(last) {
        Some(at) => {
            text.truncate(at + last.len());
            Ok(text)
        }
        None => {
            let message = "the chat template changes the last message, so it cannot be continued";
            Err(ApiError::invalid("messages", message))
        }
    }
}

fn refused(error: baton_text::Error) -> ApiError {
    ApiError::invalid("messages", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(value: Value) -> Vec<Message> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn messages_take_the_form_that_templates_expect() {
        let call = |arguments: Value| {
            json!([{ "id": "c1", "type": "function",
                "function": { "name": "add", "arguments": arguments } }])
        };
        let given = messages(json!([
            { "role": "developer", "content": "Be brief." },
            { "role": "assistant", "content": null, "tool_calls": call("{\"a\": 1}".into()) },
            { "role": "tool", "tool_call_id": "c1", "content": "2" },
            { "role": "tool", "tool_call_id": "c2", "content": "?" },
        ]));
        let expected = messages(json!([
            { "role": "system", "content": "Be brief." },
            { "role": "assistant", "content": null, "tool_calls": call(json!({ "a": 1 })) },
            { "role": "tool", "tool_call_id": "c1", "content": "2", "name": "add" },
            { "role": "tool", "tool_call_id": "c2", "content": "?" },
        ]));
        assert_eq!(for_template(&given), expected);
    }

    #[test]
    fn arguments_that_are_no_object_stay_as_they_are() {
        for (given, expected) in
            [("[1]", json!("[1]")), ("{\"a\":", json!("{\"a\":")), ("", json!({}))]
        {
            let mut call = json!({ "function": { "arguments": given } });
            arguments_as_object(&mut call);
            assert_eq!(call["function"]["arguments"], expected);
        }
    }

    #[test]
    fn a_text_is_cut_behind_the_last_message() {
        let text = "<s>user: go<e><s>assistant: go on<e>\n".to_owned();
        assert_eq!(
            cut_behind(text.clone(), "go on ").unwrap(),
            "<s>user: go<e><s>assistant: go on"
        );
        assert!(cut_behind(text, "stop").is_err());
    }

    #[test]
    fn tools_are_chosen() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let with = |tool_choice| ChatRequest {
            tools: vec![tool("a"), tool("b")],
            tool_choice,
            ..ChatRequest::default()
        };
        let names = |request: &ChatRequest| -> Vec<String> {
            let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
            offered(request).unwrap().iter().map(name).collect()
        };
        assert_eq!(names(&with(ToolChoice::Auto)), ["a", "b"]);
        assert_eq!(names(&with(ToolChoice::Required)), ["a", "b"]);
        assert_eq!(names(&with(ToolChoice::Named("b".into()))), ["b"]);
        assert!(names(&with(ToolChoice::None)).is_empty());
        for request in [
            with(ToolChoice::Named("c".into())),
            ChatRequest { tool_choice: ToolChoice::Required, ..ChatRequest::default() },
        ] {
            assert_eq!(offered(&request).unwrap_err().param.as_deref(), Some("tool_choice"));
        }
    }
}
