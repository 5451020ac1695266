//! One loaded model and its cache, shared by all sessions.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_graph::{Executor, Limits, SeqId, Usage};
use baton_text::{ChatTemplates, Tokenizer};

use crate::sequences::{SavedCache, Sequences};
use crate::speculation::{Payoff, check_vocabulary};
use crate::transcript::{Transcript, Transcripts};
use crate::{
    Constraint, Error, Grammar, GrammarCompiler, Lanes, MemoryPlan, Reasoning, Result, Sampling,
    Session, Speculate,
};

/// A model ready to answer: a compiled graph, its cache, and what its texts look like.
///
/// Clones are the same engine. Any number of sessions share it, in any threads; the executor works
/// for one of them at a time, and changes hands between tokens.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// Bytes of text that are tokenized in no time, so that the exact number can be told.
const QUICK: usize = 64 << 10;

struct Shared {
    sequences: Mutex<Sequences>,
    transcripts: Mutex<Transcripts>,
    limits: Limits,
    traits: ModelTraits,
    /// Made when the first answer is to be held to a grammar.
    grammars: Mutex<Option<Arc<GrammarCompiler>>>,
    /// A smaller model that guesses what this one writes.
    draft: Option<Engine>,
    payoff: Mutex<Payoff>,
}

/// What an engine knows of its model besides how to compute it.
#[derive(Clone, Debug, Default)]
pub struct ModelTraits {
    /// Its name.
    pub name: String,
    /// Its tokenizer; without one, prompts and answers are token ids only.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Its chat templates.
    pub templates: ChatTemplates,
    /// Tokens that end an answer.
    pub end_tokens: HashSet<u32>,
    /// The model's own sampling defaults.
    pub sampling: Sampling,
    /// Where guesses of the next tokens come from, unless an answer's options say.
    pub speculate: Speculate,
    /// The units that it runs on, if they are watched.
    pub lanes: Option<Lanes>,
    /// Why these, a line for each reason; empty if nobody had to decide.
    pub units: Vec<String>,
    /// Most tokens that the packages of a folder have room for, if it runs by such.
    pub packages_context: Option<usize>,
    /// How long loading took.
    pub load_time: Duration,
    /// What it was expected to need of memory.
    pub memory: MemoryPlan,
}

impl ModelTraits {
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_deref().ok_or(Error::NoTokenizer)
    }
}

impl Engine {
    /// An engine over any executor.
    pub fn new(executor: Box<dyn Executor>, traits: ModelTraits) -> Self {
        Engine::made(executor, traits, None)
    }

    /// An engine whose tokens `draft` guesses ahead, where [`Speculate`](crate::Speculate) allows it.
    ///
    /// # Errors
    /// [`Error::Draft`] if the two have different vocabularies; [`Error::NoTokenizer`].
    pub fn with_draft(
        executor: Box<dyn Executor>,
        traits: ModelTraits,
        draft: Engine,
    ) -> Result<Self> {
        check_vocabulary(&traits, draft.traits())?;
        Ok(Engine::made(executor, traits, Some(draft)))
    }

    fn made(executor: Box<dyn Executor>, traits: ModelTraits, draft: Option<Engine>) -> Self {
        let shared = Shared {
            limits: *executor.limits(),
            sequences: Mutex::new(Sequences::new(executor)),
            transcripts: Mutex::default(),
            traits,
            grammars: Mutex::default(),
            draft,
            payoff: Mutex::default(),
        };
        Engine { shared: Arc::new(shared) }
    }

    /// A new session, which holds nothing yet.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The sizes that the model was compiled for.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// What is known of the model.
    pub fn traits(&self) -> &ModelTraits {
        &self.shared.traits
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] if it was made without.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.shared.traits.tokenizer()
    }

    /// The model that guesses what this one writes, if there is one.
    pub fn draft(&self) -> Option<&Engine> {
        self.shared.draft.as_ref()
    }

    pub(crate) fn payoff(&self) -> &Mutex<Payoff> {
        &self.shared.payoff
    }

    /// Refuses a text that cannot fit the context whatever its tokens are, before any time is spent
    /// on tokenizing it.
    pub(crate) fn check_length(&self, text: &str) -> Result<()> {
        let context = self.limits().context;
        if text.len() < context || text.len() <= QUICK {
            return Ok(());
        }
        match self.tokenizer()?.least_tokens(text) {
            prompt if prompt < context => Ok(()),
            prompt => Err(self.too_long(prompt, false)),
        }
    }

    /// The error of a prompt of so many tokens, or of so many at least.
    pub(crate) fn too_long(&self, prompt: usize, counted: bool) -> Error {
        let context = self.limits().context;
        let of_packages = self.traits().packages_context.is_some_and(|room| room <= context);
        Error::PromptTooLong { prompt, counted, context, of_packages }
    }

    /// A constraint that holds one answer to `grammar`: all of it, or what follows the reasoning, as
    /// [`GrammarCompiler::compile`] has it. [`GenerateOptions`](crate::GenerateOptions) make one
    /// by themselves.
    ///
    /// # Errors
    /// [`Error::Grammar`] if it cannot be obeyed; [`Error::NoTokenizer`], [`Error::Vocabulary`] if
    /// the model is not made for that.
    pub fn constraint(
        &self,
        grammar: &Grammar,
        reasoning: Option<&Reasoning>,
    ) -> Result<Constraint> {
        let compiler = {
            let mut made = self.shared.grammars.lock().map_err(|_| Error::Poisoned)?;
            match &*made {
                Some(compiler) => Arc::clone(compiler),
                None => {
                    let ends = &self.shared.traits.end_tokens;
                    let compiler = Arc::new(GrammarCompiler::new(self.tokenizer()?, ends)?);
                    Arc::clone(made.insert(compiler))
                }
            }
        };
        compiler.compile(grammar, reasoning)
    }

    /// Memory that the executor holds.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn usage(&self) -> Result<Usage> {
        Ok(self.lock()?.executor().usage())
    }

    /// Forgets all cached sequences but those being worked on.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn clear_cache(&self) -> Result<()> {
        self.lock()?.clear();
        Ok(())
    }

    /// Writes the cache of all sequences to a file, which is complete or not there at all.
    ///
    /// # Errors
    /// [`Error::Write`] if it cannot be written; if the model's cache cannot be handed over.
    pub fn save_cache(&self, path: &Path) -> Result<SavedCache> {
        let failed = |source| Error::Write { source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let mut writer = BufWriter::new(file);
        let saved = self.lock()?.save(&mut writer)?;
        let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(saved)
    }

    /// Reads a file that [`Engine::save_cache`] wrote, as far as the cache has room.
    ///
    /// # Errors
    /// [`Error::Read`] if there is no such file; [`Error::SavedCache`] or [`Error::Exec`] if it is
    /// damaged or of another model. What was read before that stays.
    pub fn restore_cache(&self, path: &Path) -> Result<SavedCache> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        self.lock()?.restore(&mut BufReader::new(file), bytes)
    }

    /// The ids of a rendered conversation: those that the model saw and wrote as far as it is one
    /// that the engine answered lately, the tokenizer's behind that.
    pub(crate) fn recall(&self, rendered: String) -> Result<Transcript> {
        let tokenizer = self.tokenizer()?;
        let nearest = self.transcripts().nearest(&rendered);
        nearest.continued(tokenizer, rendered)
    }

    /// Keeps a conversation for its next turn.
    pub(crate) fn remember(&self, transcript: Transcript) {
        self.transcripts().remember(transcript);
    }

    /// A panic elsewhere leaves no transcript half written.
    fn transcripts(&self) -> MutexGuard<'_, Transcripts> {
        self.shared.transcripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Sequences>> {
        self.shared.sequences.lock().map_err(|_| Error::Poisoned)
    }

    /// Marks a sequence as no longer worked on, of which the first `len` tokens stay; there is nothing
    /// to do if the engine is broken.
    pub(crate) fn release(&self, seq: SeqId, len: usize) {
        if let Ok(mut sequences) = self.lock() {
            // It holds as many, or guesses behind them, which are its own to forget.
            let _ = sequences.truncate(seq, len);
            sequences.release(seq);
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { limits, traits, .. } = &*self.shared;
        f.debug_struct("Engine").field("limits", limits).field("traits", traits).finish()
    }
}
