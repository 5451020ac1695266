//! The items of a conversation, and the messages that they make up.

use baton_engine::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fields::Ignored;
use crate::openai::text_or::TextOr;
use crate::{ApiError, Result};

/// An item: a message, a thought, a call, or the result of one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ResponseItem")]
pub struct Item {
    /// `message`, `reasoning`, `function_call` or `function_call_output`; a message without it.
    #[serde(default)]
    r#type: Option<String>,
    /// Who speaks.
    #[serde(default)]
    role: Option<String>,
    /// What is said or thought.
    #[serde(default)]
    content: Option<TextOr<Vec<Part>>>,
    /// The call that is made or answered.
    #[serde(default)]
    call_id: Option<String>,
    /// The function that is called.
    #[serde(default)]
    name: Option<String>,
    /// Its arguments.
    #[serde(default)]
    arguments: Option<String>,
    /// What came of a call.
    #[serde(default)]
    output: Option<TextOr<Vec<Part>>>,
    /// Thoughts in brief, for want of the thoughts themselves.
    #[serde(default)]
    summary: Option<Vec<Part>>,
    #[serde(default, rename = "id")]
    _id: Ignored,
    #[serde(default, rename = "status")]
    _status: Ignored,
    #[serde(default, rename = "phase")]
    _phase: Ignored,
    /// Thoughts that only another server can read.
    #[serde(default, rename = "encrypted_content")]
    _encrypted_content: Ignored,
}

/// A part of a content.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseItemPart")]
pub struct Part {
    /// `input_text`, `output_text`, `reasoning_text`, `summary_text` or `refusal`.
    r#type: String,
    /// Its text.
    #[serde(default, alias = "refusal")]
    text: Option<String>,
}

/// The messages of a conversation, with instructions before them.
///
/// # Errors
/// If an item is not understood.
pub fn messages(instructions: Option<String>, input: TextOr<Vec<Item>>) -> Result<Vec<Message>> {
    let mut messages: Vec<Message> = instructions.map(Message::system).into_iter().collect();
    let items = match input {
        TextOr::Text(text) => {
            messages.push(Message::user(text));
            return Ok(messages);
        }
        TextOr::Other(items) => items,
    };
    // Thoughts, text and calls that follow each other are one message of the assistant.
    let mut open = false;
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("input[{index}]");
        let kind = item.r#type.clone().unwrap_or_else(|| "message".into());
        match (kind.as_str(), item.role.as_deref()) {
            ("message", Some("assistant")) => {
                let said = text(item.content, &format!("{place}.content"))?;
                let message = assistant(&mut messages, &mut open);
                let before = message.text();
                message.content = Some(baton_text::Content::Text(before + &said));
            }
            ("message", Some(role @ ("system" | "developer" | "user"))) => {
                open = false;
                let said = text(item.content, &format!("{place}.content"))?;
                messages.push(Message::new(role, said));
            }
            ("reasoning", _) => {
                let place = format!("{place}.content");
                let mut thought = text(item.content, &place)?;
                if thought.is_empty() {
                    thought = text(item.summary.map(TextOr::Other), &place)?;
                }
                if !thought.is_empty() {
                    // What is thought comes before what is said.
                    open = false;
                    let message = assistant(&mut messages, &mut open);
                    message.extra.insert("reasoning_content".into(), thought.into());
                }
            }
            ("function_call", _) => {
                let name = needed(item.name, &place, "name")?;
                let id = needed(item.call_id, &place, "call_id")?;
                let arguments = item.arguments.unwrap_or_default();
                let call = json!({ "id": id, "type": "function",
                    "function": { "name": name, "arguments": arguments } });
                let message = assistant(&mut messages, &mut open);
                let calls = message.extra.entry("tool_calls").or_insert_with(|| json!([]));
                if let Value::Array(calls) = calls {
                    calls.push(call);
                }
            }
            ("function_call_output", _) => {
                open = false;
                let id = needed(item.call_id, &place, "call_id")?;
                let mut message =
                    Message::new("tool", text(item.output, &format!("{place}.output"))?);
                message.extra.insert("tool_call_id".into(), id.into());
                messages.push(message);
            }
            ("message", role) => {
                let message = format!("{place}.role is {role:?}; it must be user, assistant, …");
                return Err(ApiError::invalid(format!("{place}.role"), message));
            }
            (other, _) => {
                let message = format!("items of type {other:?} are not supported");
                return Err(ApiError::invalid(format!("{place}.type"), message));
            }
        }
    }
    Ok(messages)
}

/// The assistant's message that is being put together.
fn assistant<'m>(messages: &'m mut Vec<Message>, open: &mut bool) -> &'m mut Message {
    if !*open || messages.is_empty() {
        messages.push(Message::assistant(""));
        *open = true;
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn needed(field: Option<String>, place: &str, name: &str) -> Result<String> {
    let param = format!("{place}.{name}");
    field.ok_or_else(|| ApiError::invalid(param.as_str(), format!("{param} is missing")))
}

fn text(content: Option<TextOr<Vec<Part>>>, place: &str) -> Result<String> {
    let parts = match content {
        None => return Ok(String::new()),
        Some(TextOr::Text(text)) => return Ok(text),
        Some(TextOr::Other(parts)) => parts,
    };
    let part = |(index, part): (usize, Part)| match (part.r#type.as_str(), part.text) {
        (
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" | "refusal",
            Some(text),
        ) => Ok(text),
        (kind, _) => {
            let param = format!("{place}[{index}]");
            let message = format!("{param}: parts of type {kind:?} are not supported; send text");
            Err(ApiError::invalid(param, message))
        }
    };
    parts.into_iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(items: Value) -> Result<Vec<Message>> {
        messages(None, serde_json::from_value(items).unwrap())
    }

    #[test]
    fn what_the_assistant_did_in_a_row_is_one_message() {
        let read = read(json!([
            { "role": "user", "content": [{ "type": "input_text", "text": "2+2?" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [],
              "content": [{ "type": "reasoning_text", "text": "Add." }] },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{ "type": "output_text", "text": "Let me see.", "annotations": [] }] },
            { "type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\":2}" },
            { "type": "function_call", "call_id": "c2", "name": "add", "arguments": "" },
            { "type": "function_call_output", "call_id": "c1", "output": "4" },
        ]));
        let read = serde_json::to_value(read.unwrap()).unwrap();
        let call = |id: &str, arguments: &str| {
            json!({ "id": id, "type": "function",
                "function": { "name": "add", "arguments": arguments } })
        };
        let expected = json!([
            { "role": "user", "content": "2+2?" },
            { "role": "assistant", "content": "Let me see.", "reasoning_content": "Add.",
              "tool_calls": [call("c1", "{\"a\":2}"), call("c2", "")] },
            { "role": "tool", "content": "4", "tool_call_id": "c1" },
        ]);
        assert_eq!(read, expected);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (item, param) in [
            (json!({ "type": "item_reference" }), "input[0].type"),
            (json!({ "role": "robot", "content": "x" }), "input[0].role"),
            (json!({ "type": "function_call", "name": "f" }), "input[0].call_id"),
            (
                json!({ "role": "user", "content": [{ "type": "input_image" }] }),
                "input[0].content[0]",
            ),
        ] {
            assert_eq!(read(json!([item])).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
