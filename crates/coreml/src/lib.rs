//! Core ML packages without Core ML: read, written, checked and run on any machine.
//!
//! - [`mil`]: the language of Core ML's ML Programs, as a library.
//! - [`Model`]: a program with the description of its functions; [`Package`]: a model with its weights,
//!   as a folder `X.mlpackage`.
//! - [`BlobWriter`], [`Blobs`]: weight files.
//! - [`passes`]: rewrites packages, of whoever made them, to suit the Neural Engine.
//! - [`report`]: says where a package's operations would run, by rules that others have found.
//! - [`interpret`]: runs a package's functions on the CPU.
//! - [`layout`]: how the packages of a model are laid out, for Baton and for other programs.
//! - [`lower`]: makes functions of a model's graph; [`calibrate`] finds what keeps it in half precision.
//! - [`Folder`], [`FolderUnit`]: the packages that a model was compiled into, found again and run.
//! - [`Foreign`]: folders that other projects' programs run, found and run here too.
//! - [`CoreMl`], [`PackageExecutor`]: the compute unit that both make together; [`compare`]: how good it is.
//! - [`runtime`]: what an executor's functions are run by.
//!
//! The crate speaks opset `CoreML8` (specification 9: iOS 18, macOS 15) and reads older ones as far as
//! their operations are the same.
#![forbid(unsafe_code)]

mod blob;
mod calibrate;
mod error;
mod executor;
mod files;
mod folder;
mod foreign;
mod host;
pub mod interpret;
pub mod layout;
pub mod lower;
mod memory;
pub mod mil;
mod model;
mod package;
pub mod passes;
mod quality;
pub mod report;
pub mod runtime;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unit;
mod wire;

pub use blob::{BlobWriter, Blobs, WEIGHT_FILE, in_memory};
pub use calibrate::{Calibration, calibrate};
pub use error::{Error, Problem, Result};
pub use executor::PackageExecutor;
pub use folder::{FOLDER_FILE, FOLDER_FORMAT, Folder, FolderUnit, Installing, describe_files};
pub use foreign::{Foreign, Sizes, check_described, packages_context};
pub use memory::{held_by_packages, states_and_history};
pub use model::{Array, ArrayType, Feature, FeatureKind, FunctionDescription, Metadata, Model};
pub use package::{Draft, Package, PackageWriter};
pub use quality::{Quality, compare, measure};
pub use unit::CoreMl;
