//! What a model is computed with: flags of the commands that load one.

use baton_engine::{KvType, LoadOptions};
use baton_hub::Store;

use crate::packing::{self, Packing};

/// How many threads.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Threads {
    /// Threads to compute with (default: one for each core)
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    #[arg(allow_negative_numbers = true)]
    threads: Option<u16>,
}

/// All of it.
#[derive(Clone, Debug, clap::Args)]
pub struct Computing {
    #[command(flatten)]
    threads: Threads,
    /// What the cache of keys and values is kept as: f16, q8_0 or q4_0
    #[arg(long, value_name = "TYPE", default_value_t)]
    kv_type: KvType,
    #[command(flatten)]
    packing: Packing,
}

impl Threads {
    /// Their number, if one was given.
    pub fn number(self) -> Option<usize> {
        self.threads.map(usize::from)
    }
}

impl Computing {
    /// The options that follow from it; all others are as by default.
    pub fn options(&self, store: &Store) -> LoadOptions {
        LoadOptions {
            threads: self.threads.number(),
            kv_type: self.kv_type,
            packed: self.packing.cache(store),
            compiled: Some(packing::compiled(store)),
            ..LoadOptions::default()
        }
    }
}
