//! One test: forward passes with a clock, without tokenizer and without sampling.

use std::time::{Duration, Instant};

use baton_graph::{Batch, ExecError, Executor, Rows, SeqId};
pub use baton_models::shape::Random;

use super::plan::Test;

const SEQ: SeqId = SeqId(0);

/// What one repetition took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Until the logits of the prompt's last token; zero without a prompt.
    pub prompt: Duration,
    /// All passes after that.
    pub generated: Duration,
}

impl Sample {
    /// The whole.
    pub fn total(&self) -> Duration {
        self.prompt + self.generated
    }
}

/// The passes of one test over random tokens.
pub struct Passes<'a> {
    executor: &'a mut dyn Executor,
    test: Test,
    tokens: Vec<u32>,
}

impl<'a> Passes<'a> {
    /// Prepares a test of a model that knows `vocab` tokens.
    pub fn new(executor: &'a mut dyn Executor, vocab: usize, test: Test) -> Self {
        let tokens = random_tokens(test.depth + test.tokens(), vocab);
        Passes { executor, test, tokens }
    }

    /// Runs the prompt and one token of the answer, so that memory is there and clocks are up.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn warm_up(&mut self) -> Result<(), ExecError> {
        self.executor.free(SEQ);
        let Test { prompt, generated, .. } = self.test;
        let tokens = self.tokens.clone();
        self.prompt(&tokens[..prompt], true)?;
        self.one_by_one(&tokens[prompt..prompt + generated.min(1)])
    }

    /// Fills the cache with what is to be there before the clock runs.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn fill_depth(&mut self) -> Result<(), ExecError> {
        self.executor.free(SEQ);
        let before = self.tokens[..self.test.depth].to_vec();
        self.prompt(&before, false)
    }

    /// Runs the test once and takes back what it added to the cache.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn repeat(&mut self) -> Result<Sample, ExecError> {
        let Test { prompt, depth, .. } = self.test;
        if depth == 0 {
            self.executor.free(SEQ);
        } else {
            self.executor.truncate(SEQ, depth)?;
        }
        let tokens = self.tokens[depth..].to_vec();
        let (prompt, generated) = tokens.split_at(prompt);
        let start = Instant::now();
        self.prompt(prompt, true)?;
        let between = start.elapsed();
        self.one_by_one(generated)?;
        let total = start.elapsed();
        Ok(Sample {
            prompt: if prompt.is_empty() { Duration::ZERO } else { between },
            generated: if prompt.is_empty() { total } else { total - between },
        })
    }

    /// Evaluates tokens as many at a time as the executor takes; logits, if wanted, are the last
    /// one's.
    fn prompt(&mut self, tokens: &[u32], wants_logits: bool) -> Result<(), ExecError> {
        let parts = tokens.chunks(self.executor.limits().batch_tokens);
        let last = parts.len().saturating_sub(1);
        for (i, part) in parts.enumerate() {
            let rows = if wants_logits && i == last { Rows::Last } else { Rows::None };
            self.executor.forward(&Batch::one(SEQ, part.to_vec(), rows))?;
        }
        Ok(())
    }

    fn one_by_one(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        for &token in tokens {
            self.executor.forward(&Batch::one(SEQ, vec![token], Rows::Last))?;
        }
        Ok(())
    }
}

/// Tokens that differ from run to run of a list, but are the same in every run of the program.
pub fn random_tokens(n: usize, vocab: usize) -> Vec<u32> {
    let mut random = Random(1);
    (0..n).map(|_| (random.bits() % vocab.max(1) as u64) as u32).collect()
}
