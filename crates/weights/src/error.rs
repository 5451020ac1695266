//! What can be wrong with a weight file.

use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why weights could not be read or written.
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
    /// Writing failed.
    #[error("cannot write weights: {0}")]
    Write(#[from] std::io::Error),
    /// The file's bytes contradict its format: it is cut off, damaged or hostile.
    #[error("{path}: {problem}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
    /// The file is sound, but of a kind that is not read.
    #[error("{path}: {problem}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is, and what to use instead.
        problem: String,
    },
    /// A file of a set is not there.
    #[error("{path} is missing: it is part {part} of {parts} of this model")]
    MissingPart {
        /// The missing file.
        path: PathBuf,
        /// Its number, from 1.
        part: usize,
        /// How many there are.
        parts: usize,
    },
    /// A tensor's shape, type and bytes do not fit together.
    #[error("tensor {name:?}: {problem}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What does not fit.
        problem: String,
    },
    /// A tensor's elements have a type that is not computed with.
    #[error(
        "tensor {name:?} has type {dtype}, which is not supported; \
         use a file quantized to another type, such as Q4_K_M or Q8_0"
    )]
    UnsupportedType {
        /// The tensor's name.
        name: String,
        /// The type, as its format calls it.
        dtype: String,
    },
    /// Values cannot be encoded in this type.
    #[error("cannot quantize to {dtype}; use F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0")]
    CannotQuantize {
        /// The type.
        dtype: crate::DType,
    },
    /// A tensor that the model needs is not in the file.
    #[error("tensor {name:?} is missing")]
    MissingTensor {
        /// The tensor's name.
        name: String,
    },
    /// A metadata key that is needed is not in the file.
    #[error("metadata key {key:?} is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata key has a value of another type, or one that does not fit.
    #[error("metadata key {key:?} should be {wanted}, found {found}")]
    WrongValue {
        /// The key.
        key: String,
        /// What was asked for.
        wanted: &'static str,
        /// What is there.
        found: String,
    },
}
