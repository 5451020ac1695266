//! What can go wrong while building a graph and while running one.

use crate::SeqId;

/// A graph that does not fit together. The text names the node.
#[derive(Debug, thiserror::Error)]
#[error("node {node:?}: {problem}")]
pub struct GraphError {
    /// Name of the node at fault.
    pub node: String,
    /// What is wrong with it.
    pub problem: String,
}

impl GraphError {
    pub(crate) fn new(node: impl Into<String>, problem: impl Into<String>) -> Self {
        GraphError { node: node.into(), problem: problem.into() }
    }
}

/// Why a unit could not compile or run a graph.
///
/// Every failure is found before anything is computed: an executor that returns one is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The graph itself is at fault.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A weight is missing or unreadable.
    #[error(transparent)]
    Weights(#[from] baton_weights::Error),
    /// A weight has not the shape that the graph gives it.
    #[error("weight {name:?} has shape {found:?}, the graph wants {expected:?}")]
    WeightShape {
        /// The weight's name.
        name: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape in the graph.
        expected: Vec<usize>,
    },
    /// The unit has no way to run this.
    #[error("{unit} cannot run {what}; {instead}")]
    Unsupported {
        /// The unit.
        unit: &'static str,
        /// What it cannot run.
        what: String,
        /// What to do instead.
        instead: String,
    },
    /// A sequence would become longer than the context limit.
    #[error("sequence {seq} holds {len} tokens; {new} more exceed the context of {context}")]
    ContextFull {
        /// The sequence.
        seq: SeqId,
        /// Tokens it holds.
        len: usize,
        /// Tokens that were to be added.
        new: usize,
        /// The limit.
        context: usize,
    },
    /// A part of a text for a model whose tokens see what comes after them.
    #[error(
        "sequence {seq} holds {len} tokens and cannot be continued: this model reads a text as a \
         whole; free the sequence and give all of the text at once"
    )]
    PartOfText {
        /// The sequence.
        seq: SeqId,
        /// Tokens it holds.
        len: usize,
    },
    /// The KV storage has too few free pages.
    #[error("the KV cache needs {needed} more pages of {page_tokens} tokens, {free} are free")]
    OutOfPages {
        /// Pages wanted.
        needed: usize,
        /// Pages free.
        free: usize,
        /// Tokens in one page.
        page_tokens: usize,
    },
    /// A batch larger than the limits the graph was compiled for.
    #[error("a batch of {tokens} tokens exceeds the limit of {limit}")]
    BatchTooLarge {
        /// New tokens in the batch.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A request that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// What the unit works with is gone or was never there, such as a connection. It holds nothing
    /// any more, and may be tried again later.
    #[error("{0}")]
    Lost(String),
}
