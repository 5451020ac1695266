//! A run of tokens that grows: the unit of prefix reuse.

use std::time::Instant;

use baton_graph::SeqId;
use baton_text::StopStrings;

use crate::generation::{Plan, TextStream};
use crate::{CancelToken, Engine, Error, Generation, Result, Sampler, Sampling};

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text as it is, without a chat template; the model's BOS is put before it if it wants one.
    /// The names of control tokens in it stand for those tokens.
    Text(String),
    /// Token ids, all of them.
    Tokens(Vec<u32>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Prompt::Tokens(tokens)
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Self {
        Prompt::Tokens(tokens.to_vec())
    }
}

/// How to answer.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of the answer; none for as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Go on when the model would end its answer.
    pub ignore_end: bool,
    /// Ends the answer from outside.
    pub cancel: CancelToken,
}

/// A sequence of tokens over an [`Engine`]. Its cache is kept from one answer to the next, so that
/// a prompt that continues it costs only what is new.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    seq: Option<SeqId>,
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Self {
        Session { engine, seq: None }
    }

    /// The engine that it runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokens in its cache. Empty after its room was needed for others.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn tokens(&self) -> Result<Vec<u32>> {
        let sequences = self.engine.lock()?;
        Ok(self.seq.map_or(Vec::new(), |seq| sequences.tokens(seq).to_vec()))
    }

    /// Starts an answer to `prompt`, which is all of the text so far, not what was added to it. As
    /// much of the cache as begins the same is reused: this session's, or any other's.
    ///
    /// Nothing is computed before the first event is asked for.
    ///
    /// # Errors
    /// If an option makes no sense, the prompt is empty or does not fit the context, or the prompt
    /// or the stop strings are text and the engine has no tokenizer.
    pub fn generate(
        &mut self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
    ) -> Result<Generation<'_>> {
        let started = Instant::now();
        let config = options.sampling.or(&self.engine.traits().sampling).resolve()?;
        let seed = config.seed();
        let penalized = config.penalizes();
        let mut sampler = Sampler::new(config);
        let text = self.text_stream(&options.stop)?;
        let prompt = self.prompt_tokens(prompt.into())?;
        let context = self.engine.limits().context;
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() >= context {
            return Err(Error::PromptTooLong { prompt: prompt.len(), counted: true, context });
        }
        if penalized {
            prompt.iter().for_each(|&token| sampler.accept(token));
        }
        let room = context - prompt.len();
        let limit = options.max_tokens.map_or(room, |n| n.min(room));
        let (seq, reused) = {
            let mut sequences = self.engine.lock()?;
            let seq = sequences.acquire(self.seq, &prompt)?;
            (seq, sequences.tokens(seq).len())
        };
        self.seq = Some(seq);
        let (cancel, ignore_end) = (options.cancel.clone(), options.ignore_end);
        let plan =
            Plan { seq, prompt, reused, sampler, seed, text, cancel, ignore_end, limit, started };
        Ok(Generation::new(self, plan))
    }

    fn prompt_tokens(&self, prompt: Prompt) -> Result<Vec<u32>> {
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens),
            Prompt::Text(text) => {
                self.engine.check_length(&text)?;
                Ok(self.engine.tokenizer()?.encode(&text, true)?)
            }
        }
    }

    fn text_stream(&self, stop: &[String]) -> Result<Option<TextStream>> {
        let tokenizer = match self.engine.tokenizer() {
            Err(Error::NoTokenizer) if stop.is_empty() => return Ok(None),
            other => other?,
        };
        let detokenizer = tokenizer.detokenizer(true);
        let stops = StopStrings::new(stop)?;
        Ok(Some(TextStream { detokenizer, stops, stop_list: stop.to_vec() }))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(seq) = self.seq
            && let Ok(mut sequences) = self.engine.lock()
        {
            sequences.orphan(seq);
        }
    }
}
