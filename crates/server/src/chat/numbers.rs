//! Numbers of requests that have a meaning below zero, which all interfaces read alike.

/// A seed; one below zero stands for a new one each time.
pub fn seed(given: Option<i64>) -> Option<u64> {
    given.and_then(|seed| u64::try_from(seed).ok())
}

/// Most tokens of an answer; below zero stands for no limit.
pub fn limit(given: Option<i64>) -> Option<usize> {
    given.and_then(|most| usize::try_from(most).ok())
}

/// How many of the likeliest tokens to choose among; below zero stands for all.
pub fn top_k(given: Option<i64>) -> Option<usize> {
    given.map(|k| usize::try_from(k).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_zero_there_is_no_number() {
        assert_eq!((seed(Some(-1)), seed(Some(7)), limit(Some(-1))), (None, Some(7), None));
        assert_eq!((top_k(None), top_k(Some(-1)), top_k(Some(5))), (None, Some(0), Some(5)));
    }
}
