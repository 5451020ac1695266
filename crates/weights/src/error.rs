//! What can be wrong with a weight file.

use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why weights could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened, mapped or read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A tensor's shape, type and bytes do not fit together.
    #[error("tensor {name:?}: {problem}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What does not fit.
        problem: String,
    },
    /// A tensor that the model needs is not in the file.
    #[error("tensor {name:?} is missing")]
    MissingTensor {
        /// The tensor's name.
        name: String,
    },
}
