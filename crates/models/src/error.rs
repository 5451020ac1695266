//! What can be wrong with a model.

use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model could not be opened or built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A weight file is unreadable or corrupt.
    #[error(transparent)]
    Weights(#[from] baton_weights::Error),
    /// The graph does not fit together.
    #[error(transparent)]
    Graph(#[from] baton_graph::GraphError),
    /// There is no model at this path.
    #[error("{path}: {problem}")]
    NoModel {
        /// The path given, or the file in it that is at fault.
        path: PathBuf,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// An architecture that nobody has written yet.
    #[error("architecture {name:?} is not supported; supported are {supported}")]
    UnknownArchitecture {
        /// `model_type` or `general.architecture`.
        name: String,
        /// Those that are.
        supported: String,
    },
    /// A key is missing that the architecture cannot do without.
    #[error("{place} has no key {key:?}, which {architecture} needs")]
    MissingKey {
        /// `config.json` or `GGUF metadata`.
        place: &'static str,
        /// The key.
        key: String,
        /// The architecture.
        architecture: String,
    },
    /// A key has a value that makes no sense.
    #[error("{place}: key {key:?} {problem}")]
    BadKey {
        /// `config.json` or `GGUF metadata`.
        place: &'static str,
        /// The key.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// A tensor has not the shape that the config makes it have.
    #[error("tensor {name:?} has shape {found:?}, the config asks for {expected:?}")]
    TensorShape {
        /// Its name in the file.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The right shape.
        expected: Vec<usize>,
    },
    /// A tensor of a layer that the architecture as written here would not use.
    #[error(
        "tensor {name:?} is no part of {architecture} as Baton knows it; \
         running without it would give wrong answers"
    )]
    UnusedTensor {
        /// Its name in the file.
        name: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A variant of a known architecture that is not implemented.
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// The variant.
        what: String,
        /// What to do instead.
        instead: &'static str,
    },
}
