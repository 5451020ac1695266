//! Where models come from and where they are kept: the catalog of friendly names, downloads that
//! resume and are checked, and the local store.
//!
//! ```no_run
//! use baton_hub::{Event, Store};
//!
//! let store = Store::open_default()?;
//! let reference = store.resolve("smollm2")?;
//! let model = store.get(&reference, &mut |event: Event<'_>| {
//!     if let Event::Bytes { file, done, total } = event {
//!         eprintln!("{file}: {done} of {total:?} bytes");
//!     }
//! })?;
//! println!("{} is at {}", model.name, model.path.display());
//! # Ok::<(), baton_hub::Error>(())
//! ```
//!
//! A model that is already in the store is found without any network access.
//!
//! # The store on disk
//!
//! ```text
//! <home>/models/<name>/manifest.json    what the model is, where it came from
//! <home>/models/<name>/<file>           a link to the bytes, under the name that loaders expect
//! <home>/blobs/<sha256>                 the bytes; several models may share one
//! <home>/partial/<key>.part, .json      an unfinished download, and where it comes from
//! <home>/locks/<key>.lock               held by the process that works on a file or a model
//! <home>/tmp/                           scratch space, on the same file system
//! ```
//!
//! Everything is written elsewhere first and moved into place with one rename, so a process that
//! dies at any moment leaves either the old state or the new one, and a part that can be resumed.
#![forbid(unsafe_code)]

mod catalog;
mod download;
mod error;
mod event;
mod hash;
mod hf;
mod http;
mod names;
mod part;
mod pypi;
mod reference;
mod settings;
mod source;
mod store;

pub use catalog::{Catalog, Entry};
pub use error::{Error, Result, SourceFailure};
pub use event::{Event, Progress, Silent};
pub use hash::Sha256;
pub use reference::{HfRef, Reference};
pub use settings::{Settings, Token};
pub use source::{Source, Wheel};
pub use store::{Custom, LocalFile, LocalModel, Store};
