//! Core ML packages without Core ML: read, written, checked and run on any machine.
//!
//! - [`mil`]: the language of Core ML's ML Programs, as a library.
//! - [`Model`]: a program with the description of its functions; [`Package`]: a model with its weights,
//!   as a folder `X.mlpackage`.
//! - [`BlobWriter`], [`Blobs`]: weight files.
//!
//! The crate speaks opset `CoreML8` (specification 9: iOS 18, macOS 15) and reads older ones as far as
//! their operations are the same.
#![forbid(unsafe_code)]

mod blob;
mod error;
mod executor;
mod host;
pub mod interpret;
pub mod lower;
pub mod mil;
mod model;
mod package;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod wire;

pub use blob::{BlobWriter, Blobs, WEIGHT_FILE, in_memory};
pub use error::{Error, Problem, Result};
pub use executor::{CoreMl, PackageExecutor};
pub use model::{Array, ArrayType, Feature, FeatureKind, FunctionDescription, Metadata, Model};
pub use package::{Package, PackageWriter};
