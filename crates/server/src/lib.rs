//! HTTP over the engine: the interfaces of OpenAI, Ollama, Anthropic and llama-server, and a web
//! page.
//!
//! Every interface turns its requests into one neutral form (`chat`) and shows the same answers in
//! its own shape, so that no interface can do what another cannot. `routes` is the one table of
//! endpoints; `models` finds, loads and unloads what answers.
#![forbid(unsafe_code)]

mod anthropic;
mod api;
mod baton;
mod call;
mod chat;
mod error;
mod fields;
mod ids;
mod llama;
mod models;
mod ollama;
mod openai;
mod openapi;
mod page;
mod routes;
mod safety;
mod server;
mod stream;
#[cfg(test)]
mod testing;
mod text_or;
mod vectors;

pub use error::{ApiError, Kind, Result};
pub use models::{
    Capabilities, Facts, Installed, KeepAlive, Lease, Loaded, ModelOptions, Models, Pulling,
    Running, Wish,
};
pub use server::{ServeOptions, Server};
