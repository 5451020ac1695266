//! The merges of a BPE vocabulary that comes without a list of them.
//!
//! SentencePiece joins the neighbours whose join has the best score; a list of merges says which
//! pair goes first. Every way to cut a token into two tokens is a merge, ordered by the score of
//! the token and then by the lengths of its parts, longest first. The same order is used when
//! such vocabularies are converted to `tokenizer.json`, so that the ids agree.

use std::collections::HashMap;

/// Longer tokens get no merges. The longest in published vocabularies, runs of spaces and of `=`,
/// have half as many bytes, and the work grows with the square of the length.
const MAX_TOKEN_BYTES: usize = 256;

/// The merges that make `pieces`, each a token, its id and its score, from one another.
pub(crate) fn from_scores<'a>(pieces: &[(&'a str, u32, f32)]) -> Vec<(String, String)> {
    let ids: HashMap<&str, u32> = pieces.iter().map(|&(token, id, _)| (token, id)).collect();
    struct Merge<'a> {
        left: &'a str,
        right: &'a str,
        score: f32,
    }
    let mut merges: Vec<Merge<'a>> = Vec::with_capacity(pieces.len());
    for &(token, _, score) in pieces {
        if token.len() > MAX_TOKEN_BYTES {
            tracing::warn!("a token of {} bytes is never made by merging", token.len());
            continue;
        }
        let first = merges.len();
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push(Merge { left, right, score });
            }
        }
        merges[first..].sort_by_key(|merge| (ids[merge.left], ids[merge.right]));
    }
    let length = |text: &str| text.chars().count();
    // A stable sort: what is equal stays in the order of the vocabulary.
    merges.sort_by(|a, b| {
        b.score
            .total_cmp(&a.score)
            .then_with(|| length(b.left).cmp(&length(a.left)))
            .then_with(|| length(b.right).cmp(&length(a.right)))
    });
    merges.into_iter().map(|merge| (merge.left.to_owned(), merge.right.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_come_first_and_longer_parts_before_shorter() {
        let pieces =
            [("a", 0, 0.0), ("b", 1, 0.0), ("ab", 2, -2.0), ("ba", 3, -1.0), ("aba", 4, -3.0)];
        let merges = from_scores(&pieces);
        let merges: Vec<(&str, &str)> =
            merges.iter().map(|(left, right)| (left.as_str(), right.as_str())).collect();
        assert_eq!(merges, [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]);
    }

    #[test]
    fn absurd_scores_and_lengths_do_no_harm() {
        let long = "x".repeat(1 << 20);
        let pieces = [("x", 0, f32::NAN), ("xx", 1, f32::INFINITY), (long.as_str(), 2, -1.0)];
        assert_eq!(from_scores(&pieces), [("x".to_owned(), "x".to_owned())]);
    }
}
