//! How well a compute unit's answers are those they should be: perplexity, and the difference from
//! another executor of the same model.

use baton_graph::{Batch, Executor, Logits, Rows, SeqId};

use crate::{Error, Result};

/// The sequence that is used, and freed again; no session ever gets that far.
const SEQ: SeqId = SeqId(u32::MAX);
/// Most rows of logits held at once.
const MAX_ROWS: usize = 64;

/// How a text is cut into pieces that are evaluated each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Tokens of a piece, the first one below included. The last piece may be shorter.
    pub len: usize,
    /// Put before every piece: the BOS token, for models that want one.
    pub first: Option<u32>,
}

/// How likely a text is to a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Tokens that were predicted: all but the first of each window.
    pub tokens: usize,
    /// Sum of their negative log-probabilities.
    pub nll: f64,
}

impl Evaluation {
    /// `exp` of the mean negative log-probability.
    pub fn perplexity(&self) -> f64 {
        (self.nll / self.tokens as f64).exp()
    }
}

/// How far an executor is from a reference, over every token of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The executor's own view of the text.
    pub evaluation: Evaluation,
    /// The reference's.
    pub reference: Evaluation,
    /// Rows of logits compared.
    pub rows: usize,
    /// Mean Kullback-Leibler divergence of the executor from the reference, in nats.
    pub mean_kl: f64,
    /// The largest.
    pub max_kl: f64,
    /// Share of rows with the same most likely token.
    pub top1_agreement: f64,
    /// The largest absolute difference of two logits.
    pub max_difference: f32,
    /// Where the reference's choice of a token is the closest, if there was one: texts that are written by
    /// the likeliest tokens go different ways there first.
    pub closest: Option<Choice>,
}

/// How far the two likeliest tokens of a row are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The row, from 0.
    pub row: usize,
    /// The difference of the two logits in the reference.
    pub margin: f32,
    /// The same difference in the executor: below 0 if it takes the other token.
    pub found: f32,
}

/// The likelihood of `tokens`.
///
/// # Errors
/// If the windows do not fit the executor, or its logits are no numbers.
pub fn evaluate(
    executor: &mut dyn Executor,
    tokens: &[u32],
    windows: Windows,
) -> Result<Evaluation> {
    let mut result = Evaluation::default();
    over_windows(&mut [executor], tokens, windows, |logits, targets| {
        for (row, &target) in targets.iter().enumerate() {
            let logprobs = log_softmax(logits[0].row(row))?;
            result.add(&logprobs, target);
        }
        Ok(())
    })?;
    Ok(result)
}

/// Compares an executor with `reference`, both of the same model.
///
/// # Errors
/// As [`evaluate`]; also if their vocabularies differ.
pub fn compare(
    executor: &mut dyn Executor,
    reference: &mut dyn Executor,
    tokens: &[u32],
    windows: Windows,
) -> Result<Comparison> {
    let mut result = Comparison::default();
    over_windows(&mut [executor, reference], tokens, windows, |logits, targets| {
        result.add([&logits[0], &logits[1]], targets)
    })?;
    Ok(result.finished())
}

/// Compares an executor that hands caches over with one that does not, `reference`: over the
/// `answer` tokens that `reference` finds most likely behind `prompt`, the cache of which is handed over.
/// Also gives how many tokens of the prompt really were.
///
/// # Errors
/// If the prompt and the answer do not fit the executors, or their logits are no numbers.
pub fn compare_handoff(
    relay: &mut dyn Executor,
    reference: &mut dyn Executor,
    prompt: &[u32],
    answer: usize,
) -> Result<(Comparison, usize)> {
    let Some((&last, before)) = prompt.split_last() else { return Err(Error::EmptyPrompt) };
    let mut result = Comparison::default();
    let mut run = || {
        fill(relay, before)?;
        fill(reference, before)?;
        let mut token = last;
        for _ in 0..answer {
            let batch = Batch::one(SEQ, vec![token], Rows::Last);
            let logits = [relay.forward(&batch)?, reference.forward(&batch)?];
            token = argmax(logits[1].row(0)) as u32;
            result.add([&logits[0], &logits[1]], &[Some(token)])?;
        }
        Ok(())
    };
    let ran = run();
    let handed_over = relay.handed_over(SEQ, 0..prompt.len());
    relay.free(SEQ);
    reference.free(SEQ);
    ran.map(|()| (result.finished(), handed_over))
}

/// Makes the sequence hold these tokens and no others.
fn fill(executor: &mut dyn Executor, tokens: &[u32]) -> Result<()> {
    executor.free(SEQ);
    let most = executor.limits().batch_tokens;
    for chunk in tokens.chunks(most) {
        executor.forward(&Batch::one(SEQ, chunk.to_vec(), Rows::None))?;
    }
    Ok(())
}

impl Comparison {
    /// Adds rows of the executor and of the reference, with the token that came after each.
    fn add(&mut self, [ours, theirs]: [&Logits; 2], targets: &[Option<u32>]) -> Result<()> {
        if ours.vocab != theirs.vocab {
            let (ours, theirs) = (ours.vocab, theirs.vocab);
            let problem = format!("vocabularies of {ours} and {theirs} cannot be compared");
            return Err(Error::BadLogits { problem });
        }
        for (row, &target) in targets.iter().enumerate() {
            let [ours, theirs] = [ours.row(row), theirs.row(row)];
            let (p, q) = (log_softmax(theirs)?, log_softmax(ours)?);
            self.reference.add(&p, target);
            self.evaluation.add(&q, target);
            let kl: f64 = p.iter().zip(&q).map(|(p, q)| divergence(*p, *q)).sum();
            // Rounding can make the divergence of near-equals a little negative.
            self.mean_kl += kl.max(0.0);
            self.max_kl = self.max_kl.max(kl);
            self.top1_agreement += f64::from(u8::from(argmax(ours) == argmax(theirs)));
            let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
            self.max_difference = differences.fold(self.max_difference, f32::max);
            let (best, second) = likeliest(theirs);
            let margin = theirs[best] - theirs[second];
            if self.closest.is_none_or(|closest| margin < closest.margin) {
                let found = ours[best] - ours[second];
                self.closest = Some(Choice { row: self.rows, margin, found });
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// Makes means of sums.
    fn finished(self) -> Self {
        let rows = self.rows.max(1) as f64;
        let (mean_kl, top1_agreement) = (self.mean_kl / rows, self.top1_agreement / rows);
        Comparison { mean_kl, top1_agreement, ..self }
    }
}

impl Evaluation {
    fn add(&mut self, logprobs: &[f64], target: Option<u32>) {
        if let Some(target) = target {
            self.tokens += 1;
            self.nll -= logprobs[target as usize];
        }
    }
}

/// Runs all executors over the same windows. `visit` gets the logits of some consecutive tokens,
/// and for each the token that came next, if it is in the window.
fn over_windows(
    executors: &mut [&mut dyn Executor],
    tokens: &[u32],
    windows: Windows,
    mut visit: impl FnMut(&[Logits], &[Option<u32>]) -> Result<()>,
) -> Result<()> {
    let own = windows.len.saturating_sub(usize::from(windows.first.is_some()));
    if own == 0 {
        let (value, wanted) = (windows.len.to_string(), "at least one token of text");
        return Err(Error::Option { name: "window", value, wanted });
    }
    let rows = executors.iter().map(|e| e.limits().batch_tokens).min();
    let rows = rows.unwrap_or(MAX_ROWS).clamp(1, MAX_ROWS);
    let mut run = || {
        for piece in tokens.chunks(own) {
            executors.iter_mut().for_each(|executor| executor.free(SEQ));
            let window: Vec<u32> = windows.first.into_iter().chain(piece.iter().copied()).collect();
            for (at, chunk) in window.chunks(rows).enumerate() {
                let batch = Batch::one(SEQ, chunk.to_vec(), Rows::All);
                let logits: Result<Vec<Logits>> =
                    executors.iter_mut().map(|executor| Ok(executor.forward(&batch)?)).collect();
                let next = (0..chunk.len()).map(|i| window.get(at * rows + i + 1).copied());
                visit(&logits?, &next.collect::<Vec<_>>())?;
            }
        }
        Ok(())
    };
    let result = run();
    executors.iter_mut().for_each(|executor| executor.free(SEQ));
    result
}

fn log_softmax(logits: &[f32]) -> Result<Vec<f64>> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() || logits.iter().any(|l| l.is_nan()) {
        return Err(Error::BadLogits { problem: "a logit is no number".into() });
    }
    let max = f64::from(max);
    let total: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    let shift = max + total.ln();
    Ok(logits.iter().map(|&l| f64::from(l) - shift).collect())
}

/// One token's part of the divergence of `q` from `p`, both log-probabilities.
fn divergence(p: f64, q: f64) -> f64 {
    match p.exp() {
        0.0 => 0.0,
        probability => probability * (p - q),
    }
}

fn argmax(logits: &[f32]) -> usize {
    likeliest(logits).0
}

/// The places of the two largest logits, the first of equal ones; the same twice if there is but one.
fn likeliest(logits: &[f32]) -> (usize, usize) {
    let (mut best, mut second) = (0, 0);
    for (i, logit) in logits.iter().enumerate().skip(1) {
        if *logit > logits[best] {
            (best, second) = (i, best);
        } else if second == best || *logit > logits[second] {
            second = i;
        }
    }
    (best, second)
}

#[cfg(test)]
mod tests {
    use baton_graph::reference::Reference;
    use baton_graph::testing::{Tiny, random_tokens, random_weights};
    use baton_graph::{Limits, Unit};

    use super::*;

    fn executor(batch_tokens: usize, seed: u64) -> Box<dyn Executor> {
        let graph = Tiny::default().graph().unwrap();
        let limits = Limits { context: 64, kv_tokens: 64, batch_tokens };
        Reference.compile(&graph, &random_weights(&graph, seed), limits).unwrap()
    }

    #[test]
    fn perplexity_does_not_depend_on_the_batch() {
        let tokens = random_tokens(70, 97, 1);
        let windows = Windows { len: 32, first: None };
        let whole = evaluate(&mut *executor(64, 1), &tokens, windows).unwrap();
        let cut = evaluate(&mut *executor(5, 1), &tokens, windows).unwrap();
        assert_eq!(whole.tokens, 31 + 31 + 5);
        assert!((whole.nll - cut.nll).abs() < 1e-3);
    }

    #[test]
    fn a_first_token_goes_before_every_window() {
        let tokens = random_tokens(10, 97, 1);
        let windows = Windows { len: 6, first: Some(3) };
        let with = evaluate(&mut *executor(64, 1), &tokens, windows).unwrap();
        let spelled: Vec<u32> = [&[3], &tokens[..5], &[3], &tokens[5..]].concat();
        let plain = Windows { len: 6, first: None };
        let expected = evaluate(&mut *executor(64, 1), &spelled, plain).unwrap();
        assert_eq!(with, expected);
        assert!(evaluate(&mut *executor(64, 1), &tokens, Windows { len: 1, ..windows }).is_err());
    }

    #[test]
    fn a_model_is_equal_to_itself_and_to_no_other() {
        let tokens = random_tokens(50, 97, 1);
        let windows = Windows { len: 64, first: None };
        let same = compare(&mut *executor(64, 1), &mut *executor(16, 1), &tokens, windows).unwrap();
        assert!(same.mean_kl < 1e-6 && same.top1_agreement == 1.0, "{same:?}");
        let other =
            compare(&mut *executor(64, 1), &mut *executor(64, 2), &tokens, windows).unwrap();
        assert!(other.mean_kl > 0.01 && other.top1_agreement < 0.5, "{other:?}");
        assert_eq!((other.rows, other.evaluation.tokens), (50, 49));
    }

    #[test]
    fn a_cache_that_was_handed_over_gives_the_same_answer() {
        let relay = |seed| {
            let unit = || Box::new(Reference) as Box<dyn Unit>;
            let options = crate::RelayOptions { crossover: 1, chunk: 7, ..Default::default() };
            let unit = crate::RelayUnit { prefill: unit(), decode: unit(), options };
            let graph = Tiny::default().graph().unwrap();
            let limits = Limits { context: 64, kv_tokens: 64, batch_tokens: 16 };
            unit.compile(&graph, &random_weights(&graph, seed), limits).unwrap()
        };
        let prompt = random_tokens(40, 97, 2);
        let check =
            |seed| compare_handoff(&mut *relay(seed), &mut *executor(16, 1), &prompt, 20).unwrap();
        let (same, handed_over) = check(1);
        assert_eq!(handed_over, 39);
        assert!(same.mean_kl < 1e-4 && same.top1_agreement == 1.0, "{same:?}");
        // Halves were handed over, where the reference has singles.
        assert!(same.rows == 20 && same.max_difference > 0.0, "{same:?}");
        let (other, _) = check(2);
        assert!(other.mean_kl > 0.01 && other.top1_agreement < 0.5, "{other:?}");
        let alone = compare_handoff(&mut *executor(16, 2), &mut *executor(16, 1), &prompt, 20);
        assert_eq!(alone.unwrap().1, 0, "one unit hands nothing over");
        let long = compare_handoff(&mut *relay(1), &mut *executor(16, 1), &prompt, 30);
        assert!(long.is_err(), "longer than the context");
    }

    #[test]
    fn the_two_likeliest_tokens_are_found_wherever_they_are() {
        for (logits, expected) in [
            (&[1.0][..], (0, 0)),
            (&[1.0, 3.0], (1, 0)),
            (&[3.0, 1.0, 2.0], (0, 2)),
            (&[1.0, 3.0, 2.0, 3.0], (1, 3)),
            (&[2.0, 2.0, 5.0, 4.0], (2, 3)),
        ] {
            assert_eq!(likeliest(logits), expected, "{logits:?}");
        }
    }

    #[test]
    fn the_closest_choice_is_told_with_what_the_executor_makes_of_it() {
        let row =
            |values: [f32; 3]| Logits { vocab: 3, values: values.into(), ..Logits::default() };
        let mut found = Comparison::default();
        for (ours, theirs) in [
            ([0.0, 5.0, 1.0], [0.0, 5.0, 1.0]),
            // The other way round, by little.
            ([2.0, 0.0, 2.25], [2.5, 0.0, 2.0]),
            ([9.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ] {
            found.add([&row(ours), &row(theirs)], &[None]).unwrap();
        }
        assert_eq!(found.closest, Some(Choice { row: 1, margin: 0.5, found: -0.25 }));
        assert_eq!(Comparison::default().closest, None);
    }

    #[test]
    fn a_divergence_by_hand() {
        // 3/4, 1/4 against 1/2, 1/2.
        let p = log_softmax(&[3f32.ln(), 0.0]).unwrap();
        let q = log_softmax(&[5.0, 5.0]).unwrap();
        let kl: f64 = p.iter().zip(&q).map(|(p, q)| divergence(*p, *q)).sum();
        assert!((kl - (0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln())).abs() < 1e-7);
    }
}
