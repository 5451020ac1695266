//! The items of an answer, and the events that tell how they come to be.

use serde_json::{Value, json};

use crate::api::Api;
use crate::chat::{Finish, Part, Reason, TokenInfo};
use crate::openai::shapes::Logprobs;
use crate::stream::{Frames, Script};
use crate::{ApiError, ids};

/// Tells of one answer, item by item, in events with names and numbers.
#[derive(Debug)]
pub struct ResponseScript {
    /// The response as it stands.
    response: Value,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
    wants_logprobs: bool,
    /// Tokens of the text that comes next.
    tokens: Vec<TokenInfo>,
    sequence: u64,
    finished: bool,
}

/// The item that is being written.
#[derive(Clone, Debug)]
struct Item {
    id: String,
    content: Content,
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Thought,
    Message,
    Call { id: String, name: String },
}

impl ResponseScript {
    /// Begins with a response that has no output.
    pub fn new(response: Value, wants_logprobs: bool) -> Self {
        ResponseScript {
            response,
            output: Vec::new(),
            open: None,
            wants_logprobs,
            tokens: Vec::new(),
            sequence: 0,
            finished: false,
        }
    }

    /// The response, once it is complete.
    pub fn finished(&self) -> Option<&Value> {
        self.finished.then_some(&self.response)
    }

    /// Sends an event; its number is added.
    fn tell(&mut self, name: &str, mut event: Value, out: &mut Frames) {
        event["type"] = name.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        out.event(name, &event);
    }

    /// Sends an event that has to do with the open item.
    fn tell_of(&mut self, name: &str, item: &Item, mut event: Value, out: &mut Frames) {
        event["item_id"] = item.id.as_str().into();
        event["output_index"] = self.output.len().into();
        if !matches!(item.content, Content::Call { .. }) {
            event["content_index"] = 0.into();
        }
        self.tell(name, event, out);
    }

    /// Makes sure that an item of this content is open.
    fn open(&mut self, content: Content, out: &mut Frames) {
        if self.open.as_ref().is_some_and(|item| item.content == content) {
            return;
        }
        self.close(out);
        let prefix = match content {
            Content::Thought => "rs_",
            Content::Message => "msg_",
            Content::Call { .. } => "fc_",
        };
        let (text, logprobs) = (String::new(), Vec::new());
        let item = Item { id: ids::unique(prefix), content, text, logprobs };
        let event = json!({ "output_index": self.output.len(), "item": item.json("in_progress") });
        self.tell("response.output_item.added", event, out);
        if let Some(part) = item.part() {
            self.tell_of("response.content_part.added", &item, json!({ "part": part }), out);
        }
        self.open = Some(item);
    }

    fn add(&mut self, text: &str, out: &mut Frames) {
        let Some(mut item) = self.open.take() else { return };
        item.text += text;
        let mut event = json!({ "delta": text });
        if item.content == Content::Message {
            let logprobs = self.logprobs();
            event["logprobs"] = logprobs.clone().into();
            item.logprobs.extend(logprobs);
        }
        let name = match item.content {
            Content::Thought => "response.reasoning_text.delta",
            Content::Message => "response.output_text.delta",
            Content::Call { .. } => "response.function_call_arguments.delta",
        };
        self.tell_of(name, &item, event, out);
        self.open = Some(item);
    }

    fn logprobs(&mut self) -> Vec<Value> {
        if !self.wants_logprobs {
            return Vec::new();
        }
        let mut shown = json!(Logprobs::of(&std::mem::take(&mut self.tokens)));
        match shown["content"].take() {
            Value::Array(tokens) => tokens,
            _ => Vec::new(),
        }
    }

    fn close(&mut self, out: &mut Frames) {
        let Some(item) = self.open.take() else { return };
        let (name, event) = match &item.content {
            Content::Thought => ("response.reasoning_text.done", json!({ "text": item.text })),
            Content::Message => {
                let event = json!({ "text": item.text, "logprobs": item.logprobs });
                ("response.output_text.done", event)
            }
            Content::Call { name, .. } => {
                let event = json!({ "name": name, "arguments": item.text });
                ("response.function_call_arguments.done", event)
            }
        };
        self.tell_of(name, &item, event, out);
        if let Some(part) = item.part() {
            self.tell_of("response.content_part.done", &item, json!({ "part": part }), out);
        }
        let whole = item.json("completed");
        let event = json!({ "output_index": self.output.len(), "item": whole });
        self.tell("response.output_item.done", event, out);
        self.output.push(whole);
    }

    fn finish(&mut self, finish: &Finish, out: &mut Frames) {
        self.close(out);
        let usage = finish.usage;
        let response = &mut self.response;
        response["output"] = std::mem::take(&mut self.output).into();
        response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": { "cached_tokens": usage.cached },
            "output_tokens": usage.generated,
            "output_tokens_details": { "reasoning_tokens": usage.reasoning },
            "total_tokens": usage.prompt + usage.generated,
        });
        let complete = finish.reason != Reason::Length;
        response["status"] = if complete { "completed" } else { "incomplete" }.into();
        if !complete {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let name = if complete { "response.completed" } else { "response.incomplete" };
        let event = json!({ "response": self.response });
        self.tell(name, event, out);
        self.finished = true;
    }
}

impl Item {
    /// The item as it is shown.
    fn json(&self, status: &str) -> Value {
        let begun = status == "in_progress";
        let content: Vec<Value> = self.part().filter(|_| !begun).into_iter().collect();
        match &self.content {
            Content::Thought => json!({ "id": self.id, "type": "reasoning", "summary": [],
                "content": content, "status": status }),
            Content::Message => json!({ "id": self.id, "type": "message", "role": "assistant",
                "content": content, "status": status }),
            Content::Call { id, name } => json!({ "id": self.id, "type": "function_call",
                "call_id": id, "name": name, "arguments": self.text, "status": status }),
        }
    }

    /// Its content, which is one part.
    fn part(&self) -> Option<Value> {
        match self.content {
            Content::Thought => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Content::Message => Some(json!({ "type": "output_text", "text": self.text,
                "annotations": [], "logprobs": self.logprobs })),
            Content::Call { .. } => None,
        }
    }
}

impl Script for ResponseScript {
    fn begin(&mut self, out: &mut Frames) {
        for name in ["response.created", "response.in_progress"] {
            let event = json!({ "response": self.response });
            self.tell(name, event, out);
        }
    }

    fn part(&mut self, _: usize, part: Part, out: &mut Frames) {
        match part {
            Part::Progress { .. } => {}
            Part::Logprobs(tokens) => self.tokens.extend(tokens),
            Part::Reasoning(text) => {
                self.open(Content::Thought, out);
                self.add(&text, out);
            }
            Part::Text(text) => {
                self.open(Content::Message, out);
                self.add(&text, out);
            }
            Part::ToolCallStart { id, name, .. } => self.open(Content::Call { id, name }, out),
            Part::ToolCallArguments { json, .. } => self.add(&json, out),
            Part::ToolCallEnd { .. } => self.close(out),
            Part::Done(finish) => self.finish(&finish, out),
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        let body = Api::OpenAi.failure_body(error);
        self.response["status"] = "failed".into();
        self.response["error"] =
            json!({ "code": "server_error", "message": body["error"]["message"] });
        let event = json!({ "response": self.response });
        self.tell("response.failed", event, out);
    }
}
