//! HTTP over the engine: the interfaces of OpenAI, Ollama, Anthropic and llama-server, and a web
//! page.
//!
//! Every interface turns its requests into one neutral form and shows the same answers in its own
//! shape, so that no interface can do what another cannot.
#![forbid(unsafe_code)]

mod error;
mod models;
#[cfg(test)]
mod testing;

pub use error::{ApiError, Kind, Result};
pub use models::{
    Capabilities, Facts, Installed, KeepAlive, Lease, Loaded, ModelOptions, Models, Pulling, Running,
    Wish,
};
