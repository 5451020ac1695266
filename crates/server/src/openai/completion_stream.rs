//! Completions in pieces.

use serde_json::{Value, json};

use super::completions::Logprobs;
use super::shapes::{Chunks, Timings, Usage, finish_reason};
use crate::ApiError;
use crate::api::Api;
use crate::chat::{Part, TokenInfo};
use crate::stream::{Frames, Script};

/// Tells of answers as OpenAI does: each piece is a chunk with more of the text.
#[derive(Debug)]
pub struct CompletionScript {
    chunks: Chunks,
    /// Answers to each prompt.
    n: usize,
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
        let chunks = Chunks::new("text_completion", id, model, wants_usage);
        CompletionScript { chunks, n, logprobs, usages, choices }
    }

    fn choice(&mut self, index: usize, text: &str, reason: Option<&str>) -> Value {
        let progress = &mut self.choices[index];
        let tokens = std::mem::take(&mut progress.tokens);
        let logprobs = (self.logprobs && !tokens.is_empty())
            .then(|| Logprobs::of(&tokens, &mut progress.offset));
        let choice =
            json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason });
        self.chunks.chunk(json!([choice]))
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
        let mut usage = Usage::default();
        self.usages.iter().for_each(|prompt| usage.add_request(prompt));
        self.chunks.end(&usage, out);
    }
}
