//! Guesses of a draft model: a small one that writes ahead what the large one then reads.

use std::time::{Duration, Instant};

use baton_graph::{Batch, Rows, SeqId};
use baton_text::Tokenizer;

use crate::sequences::common;
use crate::{Engine, Error, ModelTraits, Result, Sampler, Sampling};

/// Tokens by which two vocabularies may differ at their ends, where some files fill them up.
const PADDING: usize = 128;
/// Tokens that the draft model reads in one step to catch up, so that the answer does not stop.
const CATCH_UP: usize = 128;
/// A guess goes on while all of it is at least this likely, by the draft model itself.
const LEAST_LIKELY: f32 = 0.35;

/// What a draft model wrote, and what that took.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) tokens: Vec<u32>,
    /// Steps of the draft model, but for one that caught up with the answer: one more than tokens if
    /// it was too unsure to go on.
    pub(super) steps: usize,
    pub(super) took: Duration,
}

/// What a draft model has read of one answer.
#[derive(Debug)]
pub(super) struct Drafter {
    engine: Engine,
    seq: Option<SeqId>,
    /// Takes the likeliest token and tells how likely it is.
    greedy: Sampler,
    /// Tokens that both models know.
    vocab: usize,
}

impl Drafter {
    pub(super) fn new(engine: Engine) -> Result<Self> {
        let sampling = Sampling { logprobs: Some(0), ..Sampling::greedy() };
        let greedy = Sampler::new(sampling.resolve()?);
        let vocab = engine.tokenizer()?.vocab_size();
        Ok(Drafter { engine, seq: None, greedy, vocab })
    }

    /// Most tokens that it can read.
    pub(super) fn context(&self) -> usize {
        self.engine.limits().context
    }

    /// Up to `most` tokens that may follow `tokens`; none while it has much to catch up with.
    pub(super) fn guess(&mut self, tokens: &[u32], most: usize) -> Result<Draft> {
        let mut sequences = self.engine.lock()?;
        let seq = match self.seq {
            Some(seq) => {
                let kept = common(sequences.tokens(seq), &tokens[..tokens.len() - 1]);
                sequences.truncate(seq, kept)?;
                seq
            }
            None => *self.seq.insert(sequences.acquire(None, tokens)?),
        };
        let mut next = tokens[sequences.tokens(seq).len()..].to_vec();
        let step = CATCH_UP.min(self.engine.limits().batch_tokens);
        if next.len() > step {
            next.truncate(step);
            sequences.extend(Batch::one(seq, next, Rows::None))?;
            return Ok(Draft::default());
        }
        let (mut draft, mut likely) = (Draft::default(), 1.0);
        while draft.tokens.len() < most {
            let catches_up = next.len() > 2;
            let started = Instant::now();
            // Two, though one is enough: after a few tokens a draft ends, and nothing is to be begun for
            // the one behind it.
            let rows = self.greedy.enough().map_or(Rows::Last, |n| Rows::Best(n.max(2)));
            let logits = sequences.extend(Batch::one(seq, next, rows))?;
            if !catches_up {
                draft.steps += 1;
                draft.took += started.elapsed();
            }
            let token = match logits.best_of(0) {
                Some(best) => self.greedy.sample_best(best)?,
                None => {
                    let row = logits.row(0);
                    self.greedy.sample(&row[..row.len().min(self.vocab)], None)?
                }
            };
            if token.id as usize >= self.vocab {
                // A row may be longer than the vocabulary.
                break;
            }
            likely *= token.logprob.unwrap_or(0.0).exp();
            if likely < LEAST_LIKELY {
                break;
            }
            draft.tokens.push(token.id);
            next = vec![token.id];
        }
        Ok(draft)
    }
}

impl Drop for Drafter {
    fn drop(&mut self) {
        // What it read stays for the next turn.
        if let Some(seq) = self.seq
            && let Ok(mut sequences) = self.engine.lock()
        {
            sequences.orphan(seq);
        }
    }
}

/// Checks that a token means the same to both models.
pub(crate) fn check_vocabulary(model: &ModelTraits, draft: &ModelTraits) -> Result<()> {
    let fails = |problem| Err(Error::Draft { draft: draft.name.clone(), problem });
    let (ours, theirs) = (model.tokenizer()?, draft.tokenizer()?);
    let (n, m) = (ours.vocab_size(), theirs.vocab_size());
    if n.abs_diff(m) > PADDING {
        return fails(format!("it knows {m} tokens and {} {n}", model.name));
    }
    let same = |id: &u32| {
        ours.token_bytes(*id) == theirs.token_bytes(*id)
            && ours.is_control(*id) == theirs.is_control(*id)
    };
    match (0..n.min(m) as u32).find(|id| !same(id)) {
        None => Ok(()),
        Some(id) => {
            let name = |tokenizer: &Tokenizer| tokenizer.token(id).unwrap_or_default();
            let (ours, theirs) = (name(ours), name(theirs));
            fails(format!("its token {id} is {theirs:?} and that of {} {ours:?}", model.name))
        }
    }
}
