//! Small engines for tests.
#![allow(dead_code)]

use std::sync::Arc;

use baton_engine::{Engine, Event, GenerateOptions, ModelTraits, Sampling, Session, Summary};
use baton_graph::reference::Reference;
use baton_graph::testing::{Tiny, random_weights};
use baton_graph::{Executor, Limits, Unit};
use baton_text::Tokenizer;

/// The byte-level vocabulary, a few merges and control tokens.
pub const VOCAB: usize = 264;
/// `<|end|>`, which ends an answer.
pub const END: u32 = 257;

pub fn limits(context: usize) -> Limits {
    Limits { context, kv_tokens: context, batch_tokens: 16 }
}

pub fn executor_of(unit: &dyn Unit, limits: Limits) -> Box<dyn Executor> {
    let graph = Tiny { vocab: VOCAB, ..Tiny::default() }.graph().unwrap();
    unit.compile(&graph, &random_weights(&graph, 5), limits).unwrap()
}

pub fn executor(limits: Limits) -> Box<dyn Executor> {
    executor_of(&Reference, limits)
}

/// An engine without a tokenizer, on the reference interpreter.
pub fn engine(limits: Limits) -> Engine {
    Engine::new(executor(limits), ModelTraits::default())
}

/// An engine with a tokenizer of bytes.
pub fn text_engine(limits: Limits) -> Engine {
    let tokenizer = Some(Arc::new(tokenizer()));
    let end_tokens = [END].into();
    Engine::new(executor(limits), ModelTraits { tokenizer, end_tokens, ..Default::default() })
}

/// Ids 0 to 255 are the bytes in GPT-2's order of characters, 256 and on control tokens and merges.
pub fn tokenizer() -> Tokenizer {
    let mut alphabet: Vec<char> = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').collect();
    alphabet.extend((0x100..).filter_map(char::from_u32).take(256 - alphabet.len()));
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    for (token, id) in [("Ġa", 258), ("th", 259), ("in", 260)] {
        vocab.insert(token.into(), id.into());
    }
    let special = |id: u32, content: &str| {
        serde_json::json!({
            "id": id, "content": content, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [
            special(256, "<|start|>"), special(END, "<|end|>"),
            special(261, "<|a|>"), special(262, "<|b|>"), special(263, "<|c|>"),
        ],
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false,
        },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false },
        "model": {
            "type": "BPE", "vocab": vocab, "merges": [["Ġ", "a"], ["t", "h"], ["i", "n"]],
        },
    });
    Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap()
}

pub fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling::greedy(),
        max_tokens: Some(max_tokens),
        ..GenerateOptions::default()
    }
}

/// The tokens of an answer, its text and its summary.
pub struct Answer {
    pub tokens: Vec<u32>,
    pub text: String,
    pub summary: Summary,
}

impl Answer {
    pub fn reused(&self) -> usize {
        self.summary.metrics.reused_tokens
    }

    pub fn prefilled(&self) -> usize {
        self.summary.metrics.prefilled_tokens
    }
}

pub fn collect<E: std::fmt::Debug>(events: impl Iterator<Item = Result<Event, E>>) -> Answer {
    let (mut tokens, mut text, mut summary) = (Vec::new(), String::new(), None);
    for event in events {
        assert!(summary.is_none(), "an event after the last");
        match event.unwrap() {
            Event::Token(token) => tokens.push(token.id),
            Event::Text(piece) => {
                assert!(!piece.is_empty());
                text += &piece;
            }
            Event::Done(done) => summary = Some(done),
            _ => {}
        }
    }
    Answer { tokens, text, summary: summary.expect("the last event is a summary") }
}

pub fn answer(session: &mut Session, prompt: &[u32], options: &GenerateOptions) -> Answer {
    collect(session.generate(prompt, options).unwrap())
}
