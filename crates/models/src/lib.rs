//! Model architectures: from a model's files to the graph of what it computes.
//!
//! [`Model::open`] reads the hyperparameters from `config.json` or GGUF metadata, finds the
//! architecture and checks all of it; [`Model::build`] yields a [`Graph`](baton_graph::Graph) and
//! the [`Weights`](baton_weights::Weights) it names. Architectures are variants of one decoder
//! (`decoder.rs`) or one encoder (`encoder.rs`), each in a file of its own under `arch/` that sets what differs; `names.rs` has the
//! tensor names. A graph looks the same whatever file it came from. The crate knows nothing of the
//! units that run it.
//!
//! ```no_run
//! use baton_models::{BuildOptions, Model};
//!
//! let model = Model::open("SmolLM2-135M-Instruct.Q4_1.gguf")?;
//! println!("{}, {} parameters", model.architecture(), model.parameters());
//! let context = model.config().context_length.min(4096);
//! let (graph, weights) = model.build(&BuildOptions { context })?;
//! # Ok::<(), baton_models::Error>(())
//! ```
#![forbid(unsafe_code)]

mod arch;
mod config;
mod decoder;
mod embedding;
mod encoder;
mod error;
mod files;
mod hyper;
mod loader;
mod model;
mod names;
mod outline;
mod packaged;
mod rope;
mod rope_keys;
#[cfg(feature = "shapes")]
pub mod shape;
mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::{EncoderConfig, ExpertsConfig, LayerConfig, ModelConfig};
pub use embedding::{DenseConfig, EmbeddingConfig};
pub use error::{Error, Result};
pub use model::{BuildOptions, Model, Quantization};
pub use outline::{OUTLINE_FILE, PACKAGES_FILE};
pub use packaged::{Packaged, PackagedSizes};
pub use rope::{RopeConfig, RopeScaling, RopeTable};
pub use source::{Source, TensorSummary};
