//! What can go wrong between text and token ids.

use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a tokenizer, a chat template or a stop string.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the model could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A JSON file of the model is not what its name promises.
    #[error("{what} is not valid: {reason}")]
    Json {
        /// The kind of file, such as `tokenizer.json`.
        what: &'static str,
        /// What is wrong, with the place if it is known.
        reason: String,
    },
    /// The GGUF metadata lacks a part of the tokenizer.
    #[error(
        "the GGUF file has no usable tokenizer ({0}); use a GGUF made with its vocabulary, \
         or the model's tokenizer.json"
    )]
    Metadata(#[from] baton_weights::Error),
    /// Two parts of the GGUF vocabulary contradict each other.
    #[error("the tokenizer in the GGUF metadata is damaged: {reason}")]
    BadMetadata {
        /// What does not fit.
        reason: String,
    },
    /// A tokenizer of a kind that is not implemented.
    #[error(
        "{what} {name:?} is not supported; known: {known}. If the model comes with a \
         tokenizer.json, use that instead"
    )]
    Unsupported {
        /// What it is, such as `pre-tokenizer`.
        what: &'static str,
        /// The name in the file.
        name: String,
        /// The names that would have worked.
        known: String,
    },
    /// Text could not be turned into ids.
    #[error("the text cannot be tokenized: {reason}")]
    Encode {
        /// What the tokenizer said.
        reason: String,
    },
    /// The model has no chat template.
    #[error("the model has no chat template: it continues texts and was not trained to chat")]
    NoTemplate,
    /// The model has chat templates, but none of this name.
    #[error("the model has no chat template named {name:?}; it has: {known}")]
    NoSuchTemplate {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The chat template is not valid Jinja.
    #[error("the chat template cannot be parsed: {reason}")]
    TemplateSyntax {
        /// The parser's words, with the line.
        reason: String,
    },
    /// The chat template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },
    /// The chat template failed.
    #[error("the chat template failed: {reason}")]
    TemplateRender {
        /// What failed, with the line.
        reason: String,
    },
    /// The chat template did more work, or wrote more text, than any honest one does.
    #[error("the chat template ran away: {reason}")]
    TemplateLimit {
        /// Which bound it crossed.
        reason: String,
    },
    /// A stop string that cannot be searched for.
    #[error("bad stop string: {reason}")]
    BadStop {
        /// What is wrong with it.
        reason: String,
    },
}
