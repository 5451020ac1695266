//! What can go wrong between a model file and an answer.

use std::path::PathBuf;

use baton_graph::{ExecError, GraphError};

use crate::UnitKind;
use crate::memory::MemoryPlan;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model could not be loaded or a request not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file beside the model could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A JSON file beside the model is malformed.
    #[error("{path} is not valid JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the place.
        source: serde_json::Error,
    },
    /// A pass that cannot be switched off because there is none of that name, or a faulty graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The model's files cannot be read, or hold no model that is known.
    #[error(transparent)]
    Model(#[from] baton_models::Error),
    /// The CPU was asked for instructions that it does not have.
    #[error(transparent)]
    Isa(#[from] baton_cpu::UnsupportedIsa),
    /// A compute unit that is not there.
    #[error("nothing can run on {name:?}: {problem}; say cpu, or leave the choice to auto")]
    NoUnit {
        /// What was asked for.
        name: String,
        /// Why not.
        problem: String,
    },
    /// A model that is there as packages was to run elsewhere.
    #[error(
        "{} holds packages alone, which the unit coreml runs and {unit} cannot; leave the unit out, or name \
         the model that they were made of, and this folder as --packages",
        folder.display()
    )]
    PackagesAlone {
        /// The folder.
        folder: PathBuf,
        /// What was asked for.
        unit: UnitKind,
    },
    /// The compute unit failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The tokenizer, the chat template or a stop string is at fault.
    #[error(transparent)]
    Text(#[from] baton_text::Error),
    /// The model does not fit into memory.
    #[error("the model does not fit into memory: {plan}; use a smaller context or a smaller model")]
    Memory {
        /// Every term of the sum.
        plan: MemoryPlan,
    },
    /// A prompt longer than the context.
    #[error(
        "the prompt has {}{prompt} tokens, and the context of {context} must hold it and at least \
         one token of answer; shorten the prompt or {}",
        if *.counted { "" } else { "at least " },
        match *.of_packages {
            true => "compile the model again with a larger --context",
            false => "load the model with a larger context",
        }
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// False if the prompt is so long that it was not tokenized, and may have more.
        counted: bool,
        /// Tokens of the context.
        context: usize,
        /// Whether the packages that the model runs by have room for no more.
        of_packages: bool,
    },
    /// A prompt without a token.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A text longer than an embedding model can read.
    #[error(
        "text {index} has {}{tokens} tokens and the model reads up to {context}; shorten it, or ask \
         for it to be cut (truncate)",
        if *.counted { "" } else { "at least " }
    )]
    TextTooLong {
        /// Its number among the texts, from 0.
        index: usize,
        /// Its tokens, the model's own included.
        tokens: usize,
        /// False if the text is so long that it was not tokenized, and may have more.
        counted: bool,
        /// Most tokens.
        context: usize,
    },
    /// A text without a token.
    #[error("text {index} is empty")]
    EmptyText {
        /// Its number among the texts, from 0.
        index: usize,
    },
    /// Vectors of a size that the model cannot give.
    #[error("vectors of {wanted} elements are asked for; this model gives 1 to {most}")]
    Dimensions {
        /// The size asked for.
        wanted: usize,
        /// The model's own.
        most: usize,
    },
    /// A vector with an element that is infinite or no number.
    #[error("the model's vector for a text holds values that are no numbers; its file is damaged")]
    BadVector,
    /// The work was stopped from outside.
    #[error("the request was cancelled")]
    Cancelled,
    /// Vectors were asked for of a model that makes none.
    #[error(
        "{name} is no embedding model: it continues texts and makes no vectors; use a model such as \
         nomic-embed-text or all-MiniLM"
    )]
    NoEmbeddingModel {
        /// The model.
        name: String,
    },
    /// An answer was asked for of a model that makes vectors.
    #[error(
        "{name} is an embedding model: it makes vectors of texts and cannot answer; use it with \
         `baton embed`, or another model to chat"
    )]
    EmbeddingModel {
        /// The model.
        name: String,
    },
    /// Other sequences that are being worked on fill the cache.
    #[error("the KV cache is full of requests that are running: {source}; try again later")]
    CacheFull {
        /// What the compute unit said.
        source: ExecError,
    },
    /// A saved cache that cannot be used.
    #[error("the saved cache cannot be used: {problem}; delete it, it only saves time")]
    SavedCache {
        /// What is wrong with it.
        problem: String,
    },
    /// The cache could not be saved.
    #[error("the cache cannot be saved: {source}")]
    Write {
        /// What the system said.
        source: std::io::Error,
    },
    /// What was measured could not be kept.
    #[error("{path} cannot be written: {source}")]
    Profile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Too many requests wait for their turn.
    #[error("{waiting} requests are waiting already; try again later")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
    /// An option whose value makes no sense.
    #[error("{name} is {value}; it must be {wanted}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// A schema, a regular expression or a grammar that an answer cannot be held to.
    #[error("{what} cannot be used: {problem}")]
    Grammar {
        /// Which of them.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A vocabulary that no answer can be held to a grammar with.
    #[error("answers of this model cannot be held to a grammar: {problem}")]
    Vocabulary {
        /// What is wrong with it.
        problem: String,
    },
    /// A draft model that cannot guess for another.
    #[error(
        "{draft} cannot be the draft model: {problem}; take a smaller model of the same family, with \
         the same tokenizer"
    )]
    Draft {
        /// Its name.
        draft: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model computed something that no token can be chosen from.
    #[error("the model's output cannot be sampled: {problem}")]
    BadLogits {
        /// What is wrong with it.
        problem: String,
    },
    /// The tokenizer beside packages knows more tokens than they have.
    #[error(
        "{path}: its tokenizer has {tokens} tokens and its packages {vocab}, so that it is another model's; get \
         the whole folder"
    )]
    OtherTokenizer {
        /// The folder.
        path: PathBuf,
        /// Tokens that the tokenizer knows.
        tokens: usize,
        /// Tokens that have logits.
        vocab: usize,
    },
    /// Text was asked for, but the engine was made without a tokenizer.
    #[error("the engine has no tokenizer; give the prompt as token ids")]
    NoTokenizer,
    /// A thread that held the engine panicked; what the cache holds is not known any more.
    #[error("the engine failed in another thread; load the model again")]
    Poisoned,
}
