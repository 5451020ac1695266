//! Where packed weights and compiled packages are kept between runs.

use baton_engine::{CompiledCache, PackedCache};
use baton_hub::Store;

use crate::format;

/// Enough for some models of ordinary size.
const LIMIT: &str = "20GiB";

/// The part of the command line that concerns them.
#[derive(Clone, Debug, clap::Args)]
pub struct Packing {
    /// Most room on the disk for models' weights in the order in which this processor reads them, so
    /// that they load at once the next time; 0 keeps none
    #[arg(long, value_name = "SIZE", env = "BATON_PACKED_LIMIT", default_value = LIMIT)]
    #[arg(value_parser = limit)]
    packed_limit: u64,
}

impl Packing {
    /// The cache, unless it is switched off.
    pub fn cache(&self, store: &Store) -> Option<PackedCache> {
        (self.packed_limit > 0).then(|| cache(store, self.packed_limit))
    }
}

/// The cache as it is on the disk, for looking into it and for making room.
pub fn existing(store: &Store) -> PackedCache {
    cache(store, 0)
}

/// Where Core ML keeps what it has compiled.
pub fn compiled(store: &Store) -> CompiledCache {
    CompiledCache::new(store.settings().home.join("coreml"))
}

fn cache(store: &Store, limit: u64) -> PackedCache {
    PackedCache::new(store.settings().home.join("packed"), limit)
}

fn limit(text: &str) -> Result<u64, String> {
    if text.trim() == "0" { Ok(0) } else { format::parse_memory(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_size_or_nothing() {
        assert_eq!(limit("0"), Ok(0));
        assert_eq!(limit("2GiB"), Ok(2 << 30));
        assert!(limit(LIMIT).is_ok_and(|limit| limit > 0));
        assert!(limit("many").is_err());
    }
}
