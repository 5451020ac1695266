//! Messages as clients send them, in the form that a template reads.
//!
//! The API has one form, templates have many: some want the arguments of a call as an object, some
//! as text; some want no content beside a call, some an empty one; some refuse long ids, the role
//! `developer`, or system messages. What a template wants is found out by rendering a small
//! conversation with a call in each form, once, when it is first needed.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

use super::{ChatTemplate, Content, Message, RenderOptions};

const NAME: &str = "baton_tool";
const KEY: &str = "baton_key";
const TEXT: &str = "baton probe";
const RESULT: &str = "baton result";
/// The length of ids that Mistral's templates insist on.
const ID_LENGTH: usize = 9;
/// By what names messages carry the thoughts before an answer.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// The forms that a template reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    /// It shows the tools there are.
    tools: bool,
    /// It shows calls of tools, in this form.
    calls: Option<CallForm>,
    /// It shows what tools return.
    results: bool,
    /// It shows system messages.
    system: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CallForm {
    /// Arguments are an object, or else text.
    object: bool,
    /// Ids must be of one length.
    short_ids: bool,
    /// What may stand as the content beside a call: nothing, or an empty text.
    null: bool,
    empty: bool,
}

impl ChatTemplate {
    /// The messages in the form that this template reads, for [`ChatTemplate::render`]; `tools` as
    /// in [`RenderOptions::tools`].
    ///
    /// Messages come as the OpenAI API has them, or Ollama's. Arguments of calls become objects, or
    /// stay text where the template wants that; ids, names and types that are missing are filled in;
    /// `developer` becomes `system` for templates that do not know it; thoughts are found under the
    /// name the template looks for. A template that shows no calls gets them as text, results of
    /// tools as messages of the user, and the tools as instructions in the system message. A system
    /// message that it would refuse or drop goes before what the user says first.
    pub fn normalize_messages(&self, messages: &[Message], tools: Option<&Value>) -> Vec<Message> {
        let traits = *self.traits.get_or_init(|| Traits::probe(self));
        let mut messages: Vec<Message> = messages.to_vec();
        name_calls(&mut messages);
        for message in &mut messages {
            if message.role == "developer" && !self.source.contains("developer") {
                message.role = "system".to_owned();
            }
            self.fit_thoughts(message);
            if let Some(form) = traits.calls {
                form.fit(message);
            } else {
                call_as_text(message);
            }
            if message.content.is_none() && !message.extra.contains_key("tool_calls") {
                message.content = Some(Content::Text(String::new()));
            }
        }
        if !traits.results {
            messages = results_as_users(messages);
        }
        if let Some(tools) = tools.filter(|_| !traits.tools) {
            let text = instructions(tools);
            match messages.first_mut().filter(|first| first.role == "system") {
                Some(system) => prepend(system, &text),
                None => messages.insert(0, Message::system(text)),
            }
        }
        if !traits.system {
            messages = systems_as_users(messages);
        }
        messages
    }

    /// Whether the template itself tells the model of the tools there are. For others
    /// [`ChatTemplate::normalize_messages`] does.
    pub fn shows_tools(&self) -> bool {
        self.traits.get_or_init(|| Traits::probe(self)).tools
    }

    /// Puts the thoughts of an earlier answer where the template looks for them.
    fn fit_thoughts(&self, message: &mut Message) {
        let given =
            THOUGHTS.iter().find_map(|name| message.extra.get(*name).filter(|v| v.is_string()));
        let Some(thoughts) = given.cloned() else { return };
        for name in THOUGHTS {
            // Names that a template does not know are of no use, and two of them may be too many.
            if name != THOUGHTS[0] {
                message.extra.shift_remove(name);
            }
            if self.mentions(name) {
                message.extra.insert(name.to_owned(), thoughts.clone());
            }
        }
    }

    /// Whether the template reads a field of this name.
    fn mentions(&self, field: &str) -> bool {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        let ends = |text: &str| !text.starts_with(part);
        self.source.match_indices(field).any(|(place, _)| {
            let begins = self.source[..place].ends_with(['.', '\'', '"']);
            begins && ends(&self.source[place + field.len()..])
        })
    }
}

impl Traits {
    fn probe(template: &ChatTemplate) -> Self {
        let tool = json!([{ "type": "function", "function": {
            "name": NAME, "description": TEXT,
            "parameters": { "type": "object", "properties": { KEY: { "type": "string" } } },
        } }]);
        let render = |messages: &[Message], tools: bool| {
            let tools = tools.then(|| tool.clone());
            let options = RenderOptions { tools, ..RenderOptions::for_answer() };
            template.render(messages, &options).unwrap_or_default()
        };
        let user = Message::user("?");
        let calls = CallForm::probe(|call, result| render(&[user.clone(), call, result], true));
        let conversation = match calls {
            Some(form) => {
                let mut call = call(form.empty.then_some(""));
                form.fit(&mut call);
                let mut result = result();
                form.fit(&mut result);
                [user.clone(), call, result]
            }
            None => [user.clone(), Message::assistant("."), result()],
        };
        Self {
            tools: render(std::slice::from_ref(&user), true).contains(NAME),
            calls,
            results: render(&conversation, false).contains(RESULT),
            system: render(&[Message::system(TEXT), user], false).contains(TEXT),
        }
    }
}

impl CallForm {
    /// The first form in which a call comes through.
    fn probe(render: impl Fn(Message, Message) -> String) -> Option<Self> {
        for short_ids in [false, true] {
            for object in [true, false] {
                let mut form = Self { object, short_ids, null: false, empty: false };
                let shows = |content| {
                    let (mut call, mut result) = (call(content), result());
                    form.fit_calls(&mut call);
                    form.fit(&mut result);
                    whole(&render(call, result))
                };
                (form.null, form.empty) = (shows(None), shows(Some("")));
                if form.null || form.empty {
                    return Some(form);
                }
            }
        }
        None
    }

    fn fit(self, message: &mut Message) {
        let id = message.extra.get_mut("tool_call_id").filter(|_| self.short_ids);
        if let Some(Value::String(id)) = id {
            *id = short_id(id);
        }
        if !message.extra.contains_key("tool_calls") {
            return;
        }
        self.fit_calls(message);
        let nothing = match &message.content {
            None => true,
            Some(Content::Text(text)) => text.is_empty(),
            Some(Content::Parts(parts)) => parts.is_empty(),
        };
        if nothing && !(self.null && self.empty) {
            message.content = self.empty.then(|| Content::Text(String::new()));
        }
    }

    fn fit_calls(self, message: &mut Message) {
        let Some(Value::Array(calls)) = message.extra.get_mut("tool_calls") else { return };
        for call in calls {
            if let Some(Value::String(id)) = call.get_mut("id").filter(|_| self.short_ids) {
                *id = short_id(id);
            }
            let Some(arguments) = call.get_mut("function").and_then(|f| f.get_mut("arguments"))
            else {
                continue;
            };
            match arguments {
                Value::String(text) if self.object => {
                    if let Ok(object) = serde_json::from_str::<Map<String, Value>>(text) {
                        *arguments = Value::Object(object);
                    }
                }
                Value::Object(_) if !self.object => {
                    *arguments = Value::String(arguments.to_string())
                }
                _ => {}
            }
        }
    }
}

/// A message with a call, as the API has it.
fn call(content: Option<&str>) -> Message {
    let arguments = json!({ KEY: TEXT }).to_string();
    let call = json!({ "id": "call_baton_probe", "type": "function",
        "function": { "name": NAME, "arguments": arguments } });
    let extra = Map::from_iter([("tool_calls".to_owned(), json!([call]))]);
    let content = content.map(|text| Content::Text(text.to_owned()));
    Message { role: "assistant".to_owned(), content, extra }
}

fn result() -> Message {
    let mut message = Message::new("tool", RESULT);
    message.extra.insert("tool_call_id".to_owned(), json!("call_baton_probe"));
    message.extra.insert("name".to_owned(), json!(NAME));
    message
}

/// Whether a call came through: not as Python prints a dictionary, nor as text in quotes.
fn whole(text: &str) -> bool {
    let bad = [format!("'{KEY}'"), format!("\\\"{KEY}")];
    text.contains(KEY) && text.contains(TEXT) && !bad.iter().any(|bad| text.contains(bad))
}

/// An id of the length that some templates insist on; the same for the same id.
fn short_id(id: &str) -> String {
    if id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // Fowler, Noll and Vo's hash in its 64-bit form.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut rest = id.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digit = || {
        let digit = digits[(rest % 36) as usize];
        rest /= 36;
        char::from(digit)
    };
    (0..ID_LENGTH).map(|_| digit()).collect()
}

/// Fills in what calls and results lack: types, ids, and which call a result is of.
fn name_calls(messages: &mut [Message]) {
    let mut count = 0;
    // The calls without a result yet: id and name.
    let mut open: VecDeque<(Value, Value)> = VecDeque::new();
    for message in messages {
        let extra = &mut message.extra;
        let calls = extra.get("tool_calls").and_then(Value::as_array);
        if calls.is_none_or(Vec::is_empty) {
            extra.shift_remove("tool_calls");
        }
        if let Some(Value::Array(calls)) = extra.get_mut("tool_calls") {
            open.clear();
            for call in calls.iter_mut().filter_map(Value::as_object_mut) {
                count += 1;
                call.entry("type").or_insert(json!("function"));
                let id = call.entry("id").or_insert(json!(format!("call_{count}"))).clone();
                let name =
                    call.get("function").map_or(Value::Null, |function| function["name"].clone());
                open.push_back((id, name));
            }
        }
        if message.role != "tool" {
            continue;
        }
        let given = |extra: &Map<String, Value>, key: &str| {
            extra.get(key).filter(|value| value.is_string()).cloned()
        };
        let name = given(extra, "name").or_else(|| given(extra, "tool_name"));
        let place = match given(extra, "tool_call_id") {
            Some(id) => open.iter().position(|(open, _)| *open == id),
            None => {
                let named = open.iter().position(|(_, open)| Some(open) == name.as_ref());
                named.or((name.is_none() && !open.is_empty()).then_some(0))
            }
        };
        let call = place.and_then(|place| open.remove(place));
        let (id, called) = call.map_or((None, None), |(id, name)| (Some(id), Some(name)));
        if given(extra, "tool_call_id").is_none() {
            extra.extend(id.map(|id| ("tool_call_id".to_owned(), id)));
        }
        if given(extra, "name").is_none() {
            extra.extend(name.or(called).map(|name| ("name".to_owned(), name)));
        }
    }
}

/// Writes calls into the text of a message, for a template that does not show them.
fn call_as_text(message: &mut Message) {
    let Some(Value::Array(calls)) = message.extra.shift_remove("tool_calls") else { return };
    let texts = calls.iter().map(|call| {
        let function = &call["function"];
        let parameters = match &function["arguments"] {
            Value::String(text) => serde_json::from_str(text).unwrap_or(json!(text)),
            Value::Null => json!({}),
            other => other.clone(),
        };
        json!({ "name": function["name"], "parameters": parameters }).to_string()
    });
    let texts: Vec<String> = texts.collect();
    let calls =
        if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
    let before = message.text();
    let text = if before.is_empty() { calls } else { format!("{before}\n{calls}") };
    message.content = Some(Content::Text(text));
}

/// Results of tools as messages of the user, neighbours in one.
fn results_as_users(messages: Vec<Message>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    let mut last_is_result = false;
    for message in messages {
        let is_result = message.role == "tool";
        if !is_result {
            all.push(message);
        } else {
            let text = format!("```tool_output\n{}\n```", message.text());
            match all.last_mut().filter(|_| last_is_result) {
                Some(last) => *last = Message::user(format!("{}\n{text}", last.text())),
                None => all.push(Message::user(text)),
            }
        }
        last_is_result = is_result;
    }
    all
}

/// System messages put before what the user says next.
fn systems_as_users(messages: Vec<Message>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    let mut system = String::new();
    for mut message in messages {
        if message.role == "system" {
            system = format!("{system}{}\n\n", message.text());
            continue;
        }
        if message.role == "user" && !system.is_empty() {
            prepend(&mut message, std::mem::take(&mut system).trim_end());
        }
        all.push(message);
    }
    if !system.is_empty() {
        all.push(Message::user(system.trim_end()));
    }
    all
}

/// Puts a paragraph before the content of a message.
fn prepend(message: &mut Message, text: &str) {
    match &mut message.content {
        Some(Content::Text(content)) => *content = format!("{text}\n\n{content}"),
        Some(Content::Parts(parts)) => {
            parts.insert(0, json!({ "type": "text", "text": format!("{text}\n\n") }));
        }
        None => message.content = Some(Content::Text(text.to_owned())),
    }
}

/// What a model is told of its tools if its template does not: in the way that Gemma's makers do.
fn instructions(tools: &Value) -> String {
    let functions = tools.as_array().into_iter().flatten();
    let functions = functions.map(|tool| tool.get("function").unwrap_or(tool).clone());
    let list = serde_json::to_string_pretty(&Value::Array(functions.collect()));
    format!(
        "You can call functions. To call one, answer with nothing but a JSON object of the form \
         {{\"name\": \"function name\", \"parameters\": {{\"argument\": \"value\"}}}}; to call \
         several, with a list of such objects. If no function is of use, answer as usual. The \
         functions are:\n{}",
        list.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests;
