//! Names for answers and calls, and the time of day.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name that no other thing has: `prefix` and 32 digits, such as `chatcmpl-5e1f…`.
pub fn unique(prefix: &str) -> String {
    static KEYS: LazyLock<[RandomState; 2]> =
        LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let half = |keys: &RandomState| {
        let mut hasher = keys.build_hasher();
        hasher.write_u64(count);
        hasher.finish()
    };
    let [first, second] = &*KEYS;
    format!("{prefix}{:016x}{:016x}", half(first), half(second))
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let names: std::collections::HashSet<_> = (0..1000).map(|_| unique("x-")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 34 && name.starts_with("x-")));
    }
}
