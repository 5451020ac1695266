//! HTTP over the engine: the interfaces of OpenAI, Ollama, Anthropic and llama-server, and a web
//! page.
//!
//! Every interface turns its requests into one neutral form and shows the same answers in its own
//! shape, so that no interface can do what another cannot.
#![forbid(unsafe_code)]

mod error;

pub use error::{ApiError, Kind, Result};
