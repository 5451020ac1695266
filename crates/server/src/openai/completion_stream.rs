//! Completions in pieces.

use serde_json::{Value, json};

use super::completions::Logprobs;
use super::shapes::{FINGERPRINT, Timings, Usage, finish_reason};
use crate::api::Api;
use crate::chat::{Part, TokenInfo};
use crate::stream::{Frames, Script};
use crate::{ApiError, ids};

/// Tells of answers as OpenAI does: each piece is a chunk with more of the text.
#[derive(Debug)]
pub struct CompletionScript {
    id: String,
    created: u64,
    model: String,
    /// Answers to each prompt.
    n: usize,
    wants_usage: bool,
    logprobs: bool,
    usages: Vec<Usage>,
    choices: Vec<Progress>,
}

/// How far one answer has come.
#[derive(Clone, Debug)]
struct Progress {
    /// What it begins with.
    echo: String,
    /// Tokens of the text that comes next, and where they begin.
    tokens: Vec<TokenInfo>,
    offset: usize,
}

impl CompletionScript {
    /// For one answer for each of `echoes`, of which `n` follow each other for the same prompt.
    pub fn new(
        id: String,
        model: String,
        n: usize,
        echoes: Vec<String>,
        logprobs: bool,
        wants_usage: bool,
    ) -> Self {
        let usages = vec![Usage::default(); echoes.len() / n];
        let progress =
            |echo: String| Progress { offset: echo.chars().count(), echo, tokens: Vec::new() };
        let choices = echoes.into_iter().map(progress).collect();
        let created = ids::now();
        CompletionScript { id, created, model, n, wants_usage, logprobs, usages, choices }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if self.wants_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&mut self, index: usize, text: &str, reason: Option<&str>) -> Value {
        let progress = &mut self.choices[index];
        let tokens = std::mem::take(&mut progress.tokens);
        let logprobs = (self.logprobs && !tokens.is_empty())
            .then(|| Logprobs::of(&tokens, &mut progress.offset));
        let choice =
            json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason });
        self.chunk(json!([choice]))
    }
}

impl Script for CompletionScript {
    fn begin(&mut self, out: &mut Frames) {
        for index in 0..self.choices.len() {
            let echo = std::mem::take(&mut self.choices[index].echo);
            if !echo.is_empty() {
                let chunk = self.choice(index, &echo, None);
                out.data(&chunk);
            }
        }
    }

    fn part(&mut self, index: usize, part: Part, out: &mut Frames) {
        match part {
            Part::Logprobs(tokens) => self.choices[index].tokens.extend(tokens),
            Part::Text(text) => {
                let chunk = self.choice(index, &text, None);
                out.data(&chunk);
            }
            Part::Done(finish) => {
                self.usages[index / self.n].add_answer(&finish);
                let mut last = self.choice(index, "", Some(finish_reason(finish.reason)));
                if self.choices.len() == 1 {
                    last["timings"] = json!(Timings::of(&finish));
                }
                out.data(&last);
            }
            // A text that goes on has neither thoughts nor calls.
            _ => {}
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Frames) {
        out.data(&Api::OpenAi.failure_body(error));
    }

    fn end(&mut self, out: &mut Frames) {
        if self.wants_usage {
            let mut usage = Usage::default();
            self.usages.iter().for_each(|prompt| usage.add_request(prompt));
            let mut last = self.chunk(json!([]));
            last["usage"] = json!(usage);
            out.data(&last);
        }
        out.mark("[DONE]");
    }
}
