//! The contract between the engine and a compute unit.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use baton_weights::Weights;

use crate::{ExecError, Graph, KvBlock, LogitRow, Logits};

/// A place a graph can run: the CPU, a GPU, the Neural Engine.
pub trait Unit {
    /// The unit's name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// What the hardware could do at best, if that is known or can be measured in a second or two.
    fn roof(&self) -> Option<Roof> {
        None
    }

    /// Prepares `graph` for execution and allocates its KV storage.
    ///
    /// # Errors
    /// If a weight is missing, an operation or format is not supported, or memory is short.
    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError>;
}

/// The limits of a unit's hardware: the two lines of a roofline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof {
    /// Bytes per second that memory is read with.
    pub read: f64,
    /// Operations per second, a product and its addition counted as two; none where that is not known.
    pub ops: Option<f64>,
}

impl Roof {
    /// The operations per second that are possible with so many for each byte.
    pub fn at(&self, ops_per_byte: f64) -> f64 {
        let by_memory = self.read * ops_per_byte;
        self.ops.map_or(by_memory, |ops| ops.min(by_memory))
    }
}

/// Sizes that an executor is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens that one sequence may hold.
    pub context: usize,
    /// Most tokens that all sequences together may hold; tokens that sequences share count once.
    pub kv_tokens: usize,
    /// Most new tokens in one batch.
    pub batch_tokens: usize,
}

impl Limits {
    /// Largest limit of any kind: keeps all row and page numbers within 32 bits.
    const MOST_TOKENS: usize = 1 << 26;

    /// Refuses limits that a unit which counts in 32 bits cannot have.
    ///
    /// # Errors
    /// If one is zero or too large.
    pub fn check_range(&self) -> Result<(), ExecError> {
        let most = Self::MOST_TOKENS;
        for (name, limit) in [
            ("context", self.context),
            ("kv_tokens", self.kv_tokens),
            ("batch_tokens", self.batch_tokens),
        ] {
            if limit == 0 || limit > most {
                let text = format!("a limit of {limit} for {name}; say 1 to {most}");
                return Err(ExecError::Invalid(text));
            }
        }
        Ok(())
    }
}

/// Names a sequence of tokens whose cache an executor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u32);

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Which rows of logits are wanted of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rows {
    /// None: the span only fills the cache.
    None,
    /// That of the last token.
    #[default]
    Last,
    /// One for each token.
    All,
    /// That of the last token, of which the so many most likely tokens are enough: the executor
    /// may give [`Logits::best`] in the place of all logits. Who asks for one is likely to go on with
    /// that token, and an executor may begin with what comes then.
    Best(usize),
}

/// New tokens of one sequence, appended behind those that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The sequence; one that holds nothing yet needs no announcement.
    pub seq: SeqId,
    /// The new tokens; at least one.
    pub tokens: Vec<u32>,
    /// The logits wanted.
    pub rows: Rows,
}

/// A ragged batch: any number of sequences, any number of new tokens each, so that prefill and
/// decode are the same call. A sequence may occur once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The spans.
    pub spans: Vec<Span>,
}

impl Batch {
    /// A batch with one span.
    pub fn one(seq: SeqId, tokens: Vec<u32>, rows: Rows) -> Self {
        Batch { spans: vec![Span { seq, tokens, rows }] }
    }

    /// Number of new tokens.
    pub fn tokens(&self) -> usize {
        self.spans.iter().map(|span| span.tokens.len()).sum()
    }

    /// Checks what every executor must check: no empty span, no sequence twice, tokens within the
    /// vocabulary, no more tokens than the limit.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self, vocab: usize, limits: &Limits) -> Result<(), ExecError> {
        let mut seen = std::collections::HashSet::new();
        for span in &self.spans {
            if span.tokens.is_empty() {
                return Err(ExecError::Invalid(format!("sequence {} adds no token", span.seq)));
            }
            if !seen.insert(span.seq) {
                return Err(ExecError::Invalid(format!("sequence {} occurs twice", span.seq)));
            }
            if let Some(&token) = span.tokens.iter().find(|&&t| t as usize >= vocab) {
                return Err(ExecError::UnknownToken { token, vocab });
            }
        }
        if self.tokens() > limits.batch_tokens {
            let (tokens, limit) = (self.tokens(), limits.batch_tokens);
            return Err(ExecError::BatchTooLarge { tokens, limit });
        }
        Ok(())
    }

    /// For graphs that [need whole texts](Graph::needs_whole_texts): checks that no sequence holds
    /// anything yet, `len` telling how many tokens one holds.
    ///
    /// # Errors
    /// The first that does.
    pub fn check_whole(&self, len: impl Fn(SeqId) -> usize) -> Result<(), ExecError> {
        let mut held = self.spans.iter().map(|span| (span.seq, len(span.seq)));
        match held.find(|(_, len)| *len > 0) {
            Some((seq, len)) => Err(ExecError::PartOfText { seq, len }),
            None => Ok(()),
        }
    }

    /// The wanted rows in order: position among all new tokens of the batch, and origin.
    pub fn wanted_rows(&self) -> Vec<(usize, LogitRow)> {
        let mut wanted = Vec::new();
        let mut start = 0;
        for (at, span) in self.spans.iter().enumerate() {
            let n = span.tokens.len();
            let first = match span.rows {
                Rows::None => n,
                Rows::Last | Rows::Best(_) => n.saturating_sub(1),
                Rows::All => 0,
            };
            wanted.extend((first..n).map(|token| (start + token, LogitRow { span: at, token })));
            start += n;
        }
        wanted
    }
}

/// Memory that an executor holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of weights, mapped files included.
    pub weight_bytes: usize,
    /// Bytes of KV storage.
    pub kv_bytes: usize,
    /// Bytes of intermediate values.
    pub scratch_bytes: usize,
    /// Tokens in the KV storage; shared ones count once, part-filled pages as full.
    pub kv_tokens: usize,
    /// Tokens that the KV storage can hold.
    pub kv_capacity: usize,
}

/// When an executor would compute the next tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// As soon as they are given, before [`Executor::forward`] returns.
    Now,
    /// The first so many of them, in a span that wants no rows, while the caller does other things:
    /// `forward` only takes note of them.
    Background(usize),
    /// Not before something in the background is done; `forward` would wait for it.
    Later,
}

/// A call for another thread, such as that something in the background is done; it must neither block
/// nor call the executor.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A compiled graph with its KV storage.
///
/// Every failure is found before anything changes: after an error all sequences are as they were.
pub trait Executor: Send {
    /// Appends each span to its sequence and returns the logits asked for.
    ///
    /// # Errors
    /// If the batch is malformed or does not fit the limits or the free storage.
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError>;

    /// Announces that `new` more tokens of a sequence are to come, the last of which wants a row, and
    /// asks when the next of them would be computed. Nobody has to ask: `forward` takes any batch.
    fn prepare(&mut self, seq: SeqId, new: usize) -> Readiness {
        let _ = (seq, new);
        Readiness::Now
    }

    /// Asks to be told, by calling `wake` from any thread, when something in the background is done.
    /// Only the last one who asks is told.
    fn on_progress(&mut self, wake: Waker) {
        drop(wake);
    }

    /// How many tokens of a range of a sequence another unit computed and handed over.
    fn handed_over(&self, seq: SeqId, range: Range<usize>) -> usize {
        let _ = (seq, range);
        0
    }

    /// What ends, from any thread, a wait for something that may never come, such as the answer of
    /// another machine: it fails then, and so does all that comes after it. None if nothing is waited
    /// for.
    fn breaker(&self) -> Option<Waker> {
        None
    }

    /// The limits it was compiled for.
    fn limits(&self) -> &Limits;

    /// Tokens that a sequence holds; 0 if it is not known.
    fn len(&self, seq: SeqId) -> usize;

    /// Forgets all tokens of a sequence from position `len` on.
    ///
    /// # Errors
    /// If the sequence holds fewer.
    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError>;

    /// Makes `to` hold the first `len` tokens of `from`, sharing storage; what `to` held is freed.
    ///
    /// # Errors
    /// If `from` holds fewer, or is `to`.
    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError>;

    /// Frees a sequence. Unknown ones are ignored.
    fn free(&mut self, seq: SeqId);

    /// The cache of positions `range` of a sequence.
    ///
    /// # Errors
    /// If the sequence does not hold that range, or the model's layers differ in shape.
    fn export_kv(&self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError>;

    /// Appends a block at position `at`, which must be the sequence's length.
    ///
    /// # Errors
    /// If the block is of another model or shape, `at` is elsewhere, or storage is short.
    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError>;

    /// Memory held.
    fn usage(&self) -> Usage;
}
