//! Any text as a chat template: it compiles or not, renders or not, but always comes to an end.

#![no_main]

use baton_text::{ChatTemplate, Content, Message, RenderOptions};
use libfuzzer_sys::fuzz_target;

/// Long chains need a long stack to compile, which `ChatTemplates` gives them and a test covers.
const MAX_SOURCE: usize = 4_000;

fuzz_target!(|source: &str| {
    if source.len() > MAX_SOURCE {
        return;
    }
    let Ok(template) = ChatTemplate::new(source, Some("<s>"), Some("</s>")) else { return };
    let parts = serde_json::json!({ "type": "text", "text": "part" });
    let messages = [
        Message::system("Be brief."),
        Message::user("Hi 👋🏽"),
        Message { content: None, ..Message::assistant("") },
        Message { content: Some(Content::Parts(vec![parts])), ..Message::user("") },
    ];
    let mut options = RenderOptions::for_answer();
    options.tools =
        Some(serde_json::json!([{ "name": "f", "parameters": { "x": [1, 2.5, null] } }]));
    let _ = template.render(&messages, &options);
});
