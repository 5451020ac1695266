//! What a forward pass gives: rows of logits, or what is best in them.

/// Where a row of logits comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitRow {
    /// Index of the span in its batch.
    pub span: usize,
    /// Index of the token in that span.
    pub token: usize,
}

/// Logits, or in embedding models vectors, for the rows that a batch asked for, in the order of its
/// spans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logits {
    /// Length of a row.
    pub vocab: usize,
    /// Origin of each row.
    pub rows: Vec<LogitRow>,
    /// `(rows, vocab)`; empty if `best` is there instead.
    pub values: Vec<f32>,
    /// One for each row, if every row was asked for by [`Rows::Best`](crate::Rows::Best) and the
    /// executor makes use of that.
    pub best: Vec<Best>,
}

/// The most likely tokens of a row of logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Best {
    /// Ids and logits, as many as were asked for: the likeliest first, of equal ones the lower id.
    /// Logits that are NaN or plus infinity come before all others; tokens whose logit is minus
    /// infinity are left out.
    pub tokens: Vec<(u32, f32)>,
    /// Natural logarithm of the sum of the exponentials of all logits of the row: a logit less this is
    /// a log-probability. Exact to about a millionth; no number if the row holds none.
    pub log_sum_exp: f64,
}

impl Logits {
    /// Row `i`.
    ///
    /// # Panics
    /// If there is no such row, or only its best tokens are known.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.vocab..(i + 1) * self.vocab]
    }

    /// The last row that belongs to span `span`, if all its logits are known.
    pub fn last_of(&self, span: usize) -> Option<&[f32]> {
        let at = self.rows.iter().rposition(|row| row.span == span)?;
        self.best.is_empty().then(|| self.row(at))
    }

    /// Row `n` of those that belong to span `span`, if all its logits are known.
    pub fn row_of(&self, span: usize, n: usize) -> Option<&[f32]> {
        let first = self.rows.iter().position(|row| row.span == span)?;
        let row = self.rows.get(first + n).filter(|row| row.span == span);
        row.filter(|_| self.best.is_empty()).map(|_| self.row(first + n))
    }

    /// The best tokens of the row of span `span`, if those are what the executor gave.
    pub fn best_of(&self, span: usize) -> Option<&Best> {
        let at = self.rows.iter().position(|row| row.span == span)?;
        self.best.get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<LogitRow> {
        [(0, 1), (2, 0), (2, 1)].map(|(span, token)| LogitRow { span, token }).to_vec()
    }

    #[test]
    fn rows_are_found_by_their_spans() {
        let values = (0..6).map(|i| i as f32).collect();
        let logits = Logits { vocab: 2, rows: rows(), values, ..Logits::default() };
        assert_eq!(logits.last_of(2), Some(&[4.0, 5.0][..]));
        assert_eq!(logits.row_of(2, 0), Some(&[2.0, 3.0][..]));
        assert_eq!((logits.row_of(0, 1), logits.last_of(1)), (None, None));
        assert_eq!(logits.best_of(0), None);
    }

    #[test]
    fn of_best_tokens_no_row_is_made_up() {
        let best = |id| Best { tokens: vec![(id, 1.0)], log_sum_exp: 2.0 };
        let best = vec![best(7), best(8), best(9)];
        let logits = Logits { vocab: 20, rows: rows(), best, ..Logits::default() };
        assert_eq!((logits.last_of(2), logits.row_of(0, 0)), (None, None));
        assert_eq!(logits.best_of(2).map(|best| best.tokens[0].0), Some(8));
        assert_eq!(logits.best_of(1), None);
    }
}
