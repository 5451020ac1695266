//! From a conversation to the text that the model reads.

use baton_engine::{Message, RenderOptions};
use baton_text::{ChatTemplate, Content};
use serde_json::{Map, Value};

use super::{ChatRequest, Think, ToolChoice};
use crate::models::Loaded;
use crate::{ApiError, Kind, Result};

/// The beginning of a block that Claude Code puts before its instructions, whichever interface they come
/// by. It differs in each request, and would keep everything behind it from being found in the cache.
pub const VOLATILE: &str = "x-anthropic-billing-header";

/// The chat template for a conversation with or without tools.
///
/// # Errors
/// If the model has none.
pub fn template(loaded: &Loaded, tools: bool) -> Result<&ChatTemplate> {
    loaded.engine()?.traits().templates.choose(tools).map_err(|error| ApiError {
        param: Some("model".into()),
        ..ApiError::new(Kind::Invalid, format!("{} cannot chat: {error}", loaded.name))
    })
}

/// The conversation as the model's chat template writes it, with messages guarded against being
/// read as control tokens.
///
/// # Errors
/// If the model has no template, or its template refuses the conversation.
pub fn rendered(loaded: &Loaded, request: &ChatRequest) -> Result<String> {
    if request.messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages is empty; there must be at least one"));
    }
    let tools = offered(request)?;
    let template = template(loaded, !tools.is_empty())?;
    let tokenizer = loaded.tokenizer()?;
    let mut messages = request.messages.clone();
    without_volatile(&mut messages);
    if let Some(system) = &loaded.facts.defaults.system
        && messages.iter().all(|message| !matches!(&*message.role, "system" | "developer"))
    {
        messages.insert(0, Message::system(system));
    }
    let tools = (!tools.is_empty()).then_some(Value::Array(tools));
    let messages = template.normalize_messages(&messages, tools.as_ref());
    let guarded: Vec<Message> = messages.iter().map(|m| tokenizer.guard(m)).collect();
    let options = RenderOptions {
        add_generation_prompt: !request.continue_last,
        tools: tools.map(|tools| guarded_value(tokenizer, tools)),
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

/// Takes the block that differs each time from the beginning of the instructions.
fn without_volatile(messages: &mut [Message]) {
    let mut system = messages.iter_mut().filter(|message| message.role == "system");
    let Some(content) = system.next().and_then(|message| message.content.as_mut()) else { return };
    let volatile = |text: &str| text.trim_start().starts_with(VOLATILE);
    match content {
        Content::Text(text) if volatile(text) => {
            let rest = text.trim_start().split_once('\n').map_or("", |(_, rest)| rest);
            *text = rest.trim_start().to_owned();
        }
        Content::Parts(parts) => {
            if parts.first().and_then(|part| part["text"].as_str()).is_some_and(volatile) {
                parts.remove(0);
            }
        }
        Content::Text(_) => {}
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
    use serde_json::json;

    use super::*;

    #[test]
    fn a_block_that_differs_each_time_is_taken_from_the_instructions() {
        let line = "x-anthropic-billing-header: cch=1;";
        let part = |text: &str| json!({ "type": "text", "text": text });
        let cases = [
            (json!(format!("{line}\n\nBe brief.\nPlease.")), json!("Be brief.\nPlease.")),
            (json!(line), json!("")),
            (json!([part(line), part("Be brief.")]), json!([part("Be brief.")])),
            (json!(format!("Be brief. {line}")), json!(format!("Be brief. {line}"))),
            (json!([part("Be brief."), part(line)]), json!([part("Be brief."), part(line)])),
        ];
        for (given, expected) in cases {
            let messages = |content: Value| -> Vec<Message> {
                let user = json!({ "role": "user", "content": line });
                serde_json::from_value(json!([{ "role": "system", "content": content }, user]))
                    .unwrap()
            };
            let mut changed = messages(given);
            without_volatile(&mut changed);
            assert_eq!(changed, messages(expected));
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
