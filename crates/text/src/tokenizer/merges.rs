//! The merges of a BPE vocabulary that comes without a list of them.
//!
//! SentencePiece joins the neighbours whose join has the best score; a list of merges says which
//! pair goes first. Every way to cut a token into two tokens is a merge, ordered by the score of
//! the token and then by the lengths of its parts, longest first. The same order is used when
//! such vocabularies are converted to `tokenizer.json`, so that the ids agree.

/// Longer tokens get no merges. The longest in published vocabularies, runs of spaces and of `=`,
/// have half as many bytes, and the work grows with the square of the length.
const MAX_TOKEN_BYTES: usize = 256;

/// The merges that make `pieces`, each a token and its score, from one another. `id` tells the id of
/// a token that is one of them.
pub(crate) fn from_scores<'a>(
    pieces: impl Iterator<Item = (&'a str, f32)>,
    id: impl Fn(&str) -> Option<u32>,
) -> Vec<(String, String)> {
    /// Everything that decides its place is looked up once: there are hundreds of thousands.
    struct Merge<'a> {
        parts: (&'a str, &'a str),
        ids: (u32, u32),
        score: f32,
        lengths: (usize, usize),
    }
    let mut merges: Vec<Merge<'a>> = Vec::new();
    for (token, score) in pieces {
        if token.len() > MAX_TOKEN_BYTES {
            tracing::warn!("a token of {} bytes is never made by merging", token.len());
            continue;
        }
        let first = merges.len();
        let length = token.chars().count();
        for (before, (cut, _)) in token.char_indices().enumerate().skip(1) {
            let parts = token.split_at(cut);
            if let Some(left) = id(parts.0)
                && let Some(right) = id(parts.1)
            {
                let lengths = (before, length - before);
                merges.push(Merge { parts, ids: (left, right), score, lengths });
            }
        }
        merges[first..].sort_by_key(|merge| merge.ids);
    }
    // A stable sort: what is equal stays in the order of the vocabulary.
    merges.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.lengths.cmp(&a.lengths)));
    merges.into_iter().map(|Merge { parts, .. }| (parts.0.to_owned(), parts.1.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_of(pieces: &[(&str, f32)]) -> Vec<(String, String)> {
        let id = |token: &str| pieces.iter().position(|piece| piece.0 == token);
        from_scores(pieces.iter().copied(), |token| id(token).map(|id| id as u32))
    }

    #[test]
    fn better_scores_come_first_and_longer_parts_before_shorter() {
        let merges = made_of(&[("a", 0.0), ("b", 0.0), ("ab", -2.0), ("ba", -1.0), ("aba", -3.0)]);
        let merges: Vec<(&str, &str)> =
            merges.iter().map(|(left, right)| (left.as_str(), right.as_str())).collect();
        assert_eq!(merges, [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]);
    }

    #[test]
    fn absurd_scores_and_lengths_do_no_harm() {
        let long = "x".repeat(1 << 20);
        let pieces = [("x", f32::NAN), ("xx", f32::INFINITY), (long.as_str(), -1.0)];
        assert_eq!(made_of(&pieces), [("x".to_owned(), "x".to_owned())]);
    }
}
