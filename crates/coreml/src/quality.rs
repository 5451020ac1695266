//! How far a package's answers are from a model's own.

use std::sync::Arc;

use baton_cpu::Pool;
use baton_graph::{Batch, ExecError, Executor, Graph, Limits, Logits, Rows, SeqId};
use baton_weights::Weights;

use crate::executor::PackageExecutor;
use crate::interpret::{Extreme, Interpreter, Precision};
use crate::lower::MASKED;
use crate::package::Package;

/// Two models' predictions of one text, row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Tokens compared.
    pub rows: usize,
    /// Mean divergence of the distributions (Kullback and Leibler, of the reference from what was found),
    /// in nats.
    pub divergence: f64,
    /// Share of the rows in which both think the same token likeliest.
    pub top1: f64,
    /// Perplexity of the text by what was found.
    pub perplexity: f64,
    /// Perplexity of the text by the reference.
    pub reference_perplexity: f64,
}

/// Compares logits of every token of a text, `found` with those of the reference, from a row on.
///
/// # Panics
/// If the logits are not of all of `tokens`, or of different vocabularies.
pub fn compare(tokens: &[u32], first: usize, found: &Logits, expected: &Logits) -> Quality {
    let n = tokens.len();
    assert_eq!((found.rows.len(), expected.rows.len()), (n, n), "a row for each token");
    assert_eq!(found.vocab, expected.vocab, "length of a row");
    let (mut divergence, mut agreed) = (0.0, 0);
    let (mut losses, mut predicted) = ([0.0; 2], 0);
    for row in first..n {
        let [p, q] = [expected.row(row), found.row(row)].map(log_shares);
        divergence += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        agreed += usize::from(largest(&p) == largest(&q));
        if let Some(&next) = tokens.get(row + 1) {
            losses[0] -= q[next as usize];
            losses[1] -= p[next as usize];
            predicted += 1;
        }
    }
    let predicted = predicted.max(1) as f64;
    let [perplexity, reference_perplexity] = losses.map(|loss| (loss / predicted).exp());
    let rows = n.saturating_sub(first);
    let (divergence, top1) = (divergence / rows.max(1) as f64, agreed as f64 / rows.max(1) as f64);
    Quality { rows, divergence, top1, perplexity, reference_perplexity }
}

/// Runs packages with every result in half precision over a text, a weight at a time, and compares them
/// with the reference from token `first` on. Also yields how large results got, operation by operation.
///
/// # Errors
/// If they cannot be run.
///
/// # Panics
/// If `expected` has not a row for each token.
pub fn measure(
    graph: &Graph,
    weights: &Weights,
    packages: &[&Package],
    tokens: &[u32],
    first: usize,
    expected: &Logits,
    pool: &Arc<Pool>,
) -> Result<(Quality, Vec<Extreme>), ExecError> {
    let n = tokens.len();
    let limits = Limits { context: n, kv_tokens: n, batch_tokens: n };
    let interpreter = |package| -> crate::Result<_> {
        let made = Interpreter::new(package, Precision::F16, pool.clone())?;
        Ok((package, made.streaming().scanning()))
    };
    let packages = packages.iter().copied().map(interpreter).collect::<crate::Result<Vec<_>>>()?;
    let mut executor = PackageExecutor::new(graph, weights, packages, limits)?;
    let found = executor.forward(&Batch::one(SeqId(0), tokens.to_vec(), Rows::All))?;
    // Scores of tokens that are not seen are as large as their mask, which says nothing.
    let masked = |extreme: &Extreme| extreme.op.ends_with(MASKED) && !extreme.overflows();
    let extremes = executor.extremes().into_iter().filter(|extreme| !masked(extreme)).collect();
    Ok((compare(tokens, first, &found, expected), extremes))
}

fn log_shares(logits: &[f32]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = || logits.iter().map(|&l| f64::from(l - highest));
    let total = shifted().map(f64::exp).sum::<f64>().ln();
    shifted().map(|l| l - total).collect()
}

fn largest(values: &[f64]) -> Option<usize> {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]))
}

#[cfg(test)]
mod tests {
    use baton_graph::LogitRow;

    use super::*;

    fn logits(rows: &[[f32; 2]]) -> Logits {
        let origins = (0..rows.len()).map(|token| LogitRow { span: 0, token });
        Logits { vocab: 2, rows: origins.collect(), values: rows.concat(), ..Logits::default() }
    }

    #[test]
    fn divergence_agreement_and_perplexity_are_what_their_formulas_say() {
        // Shares of 3/4 and 1/4 are a difference of ln 3.
        let apart = 3f32.ln();
        let expected = logits(&[[apart, 0.0], [0.0, 0.0]]);
        let same = compare(&[0, 0], 0, &expected, &expected);
        assert!(same.divergence.abs() < 1e-7 && same.top1 == 1.0);
        assert!((same.perplexity - 4.0 / 3.0).abs() < 1e-6);
        let found = logits(&[[5.0, 5.0 + apart], [7.0, 7.0]]);
        let quality = compare(&[0, 0], 0, &found, &expected);
        // 3/4 ln 3 - 1/4 ln 3 in one of two rows.
        assert!((quality.divergence - 0.25 * f64::from(apart)).abs() < 1e-6, "{quality:?}");
        assert_eq!(quality.top1, 0.5);
        assert!((quality.perplexity - 4.0).abs() < 1e-6);
        assert!((quality.reference_perplexity - 4.0 / 3.0).abs() < 1e-6);
        // Rows in front of the first are left out.
        let last = compare(&[0, 0], 1, &found, &expected);
        assert_eq!((last.rows, last.top1), (1, 1.0));
        assert!(last.divergence.abs() < 1e-7);
    }
}
