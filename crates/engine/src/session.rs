//! A run of tokens that grows: the unit of prefix reuse.

use baton_graph::SeqId;

use crate::answer::Answer;
use crate::{CancelToken, Engine, Generation, Grammar, Reasoning, Result, Sampling, Speculate};

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text as it is, without a chat template; the model's BOS is put before it if it wants one.
    /// The names of control tokens in it stand for those tokens.
    Text(String),
    /// Token ids, all of them.
    Tokens(Vec<u32>),
    /// A conversation as a chat template wrote it, with messages guarded by
    /// [`Tokenizer::guard`](baton_text::Tokenizer::guard). Its ids are those that the model saw and
    /// wrote in earlier turns, as far as it is a conversation that the engine answered lately.
    Rendered(String),
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
    /// Control tokens whose names are part of the text, by their ids. Others are never shown.
    pub show: Vec<u32>,
    /// What the answer must look like. It ends by itself when the grammar is complete, and may not
    /// end before.
    pub grammar: Option<Grammar>,
    /// The reasoning before what the grammar says, which may not end the answer, and in which no stop
    /// string counts; without one both count from the first token on. Where the model may leave it out,
    /// they wait for its end only if the answer begins with its beginning.
    pub reasoning: Option<Reasoning>,
    /// Go on when the model would end its answer.
    pub ignore_end: bool,
    /// Where guesses of the next tokens come from; by default as the model was loaded. They make an
    /// answer faster, never another.
    pub speculate: Option<Speculate>,
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
    /// [`Error::Poisoned`](crate::Error::Poisoned).
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
        let mut answer = Answer::new(&self.engine, prompt.into(), options)?;
        let seq = {
            let mut sequences = self.engine.lock()?;
            let seq = sequences.acquire(self.seq, answer.prompt())?;
            answer.begin_at(sequences.tokens(seq).len());
            seq
        };
        self.seq = Some(seq);
        Ok(Generation::new(self, seq, answer, options.cancel.clone()))
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
