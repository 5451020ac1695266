//! Our own side: the engine, as `baton run` uses it.

use std::path::Path;
use std::time::Instant;

use baton_engine::{Engine, Event, GenerateOptions, LoadOptions, Sampling};

use super::Answer;
use crate::bench::numbers::Pair;
use crate::bench::passes::Random;
use crate::bench::subject::Caches;

/// A loaded model that answers requests.
pub struct Ours {
    engine: Engine,
    name: String,
    vocab: usize,
    random: Random,
}

impl Ours {
    /// Loads the model at `path` for requests of up to `context` tokens.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn load(
        path: &Path,
        threads: usize,
        batch: usize,
        context: usize,
        caches: Caches,
    ) -> anyhow::Result<Ours> {
        let options = LoadOptions {
            context: Some(context),
            batch_tokens: batch,
            threads: Some(threads),
            packed: caches.packed,
            compiled: caches.compiled,
            ..LoadOptions::default()
        };
        let engine = Engine::load(path, &options)?;
        let vocab = engine.tokenizer()?.vocab_size();
        Ok(Ours { engine, name: path.display().to_string(), vocab, random: Random(7) })
    }

    /// The model's file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Answers one request.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn ask(&mut self, workload: Pair) -> anyhow::Result<Answer> {
        self.engine.clear_cache()?;
        let vocab = self.vocab.max(1) as u64;
        let prompt: Vec<u32> =
            (0..workload.prompt).map(|_| (self.random.bits() % vocab) as u32).collect();
        let options = GenerateOptions {
            sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
            max_tokens: Some(workload.generated),
            ignore_end: true,
            ..GenerateOptions::default()
        };
        let mut answer = Answer { prompt_tokens: prompt.len(), ..Answer::default() };
        let mut session = self.engine.session();
        let start = Instant::now();
        for event in session.generate(prompt, &options)? {
            if let Event::Token(_) = event? {
                answer.last = start.elapsed();
                if answer.tokens == 0 {
                    answer.first = answer.last;
                }
                answer.tokens += 1;
            }
        }
        Ok(answer)
    }
}
