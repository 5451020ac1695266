//! Prompts that another machine reads.
//!
//! A [`PrefillServer`] holds the same model and computes parts of prompts for those who know its
//! [`Key`]; a [`RemoteUnit`] is that server as a compute unit, which a [`Relay`](crate::Relay) uses for
//! prompts like any other. What goes over the network are token ids and blocks of the cache, over a
//! [`channel`] that both ends encrypt and prove to know the key by. Whatever the other end sends is
//! bounded and checked; if it falls silent, is wrong or goes away, the relay computes the rest of the
//! prompt itself.

mod channel;
mod client;
mod messages;
mod pool;
mod server;
mod timed;

pub use channel::{BadKey, Key};
pub use client::RemoteUnit;
pub use server::PrefillServer;
