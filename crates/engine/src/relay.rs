//! The relay: two units as one executor. Prompts are read on one, answers are written on the other,
//! and the cache is handed on.
//!
//! The decode unit's cache is the one that counts. The prefill unit computes in a thread of its own
//! ([`prefiller`]): a chunk of a prompt is queued there, and while it computes the next one the block
//! of the last is taken over by the decode unit, in the caller's thread. The last token of a prompt is
//! always the decode unit's, so that the prefill unit needs no logits, and the first token of the
//! answer comes right behind the last chunk.
//!
//! Of each sequence is known which tokens each unit holds; only what is missing moves. After an answer
//! the prefill unit still has the prompt: for the next turn it gets the answer's part back, and computes
//! the rest. Whatever it fails at, the decode unit computes itself from the tokens that it still
//! lacks, so that nothing depends on the prefill unit but speed.

mod edits;
mod prefiller;
mod state;
mod tracks;

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use baton_graph::{
    Batch, ExecError, Executor, Graph, KvBlock, Limits, Logits, Readiness, SeqId, Unit, Usage,
    Waker,
};
use baton_weights::Weights;

use prefiller::Prefiller;
use state::State;

/// Which part of the work goes to the prefill unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayOptions {
    /// The fewest new tokens that are worth handing over: fewer are computed by the decode unit.
    pub crossover: usize,
    /// Most tokens that are computed and handed over at once.
    pub chunk: usize,
    /// How long the prefill unit is left alone after it failed.
    pub pause: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        RelayOptions { crossover: 32, chunk: 512, pause: Duration::from_secs(30) }
    }
}

/// Two executors of one model as one.
pub struct Relay {
    limits: Limits,
    vocab: usize,
    input_vocab: usize,
    /// `export_kv` must take over what it is asked for.
    state: RefCell<State>,
}

impl Relay {
    /// Joins two executors of `graph`. The limits are those of `decode`.
    ///
    /// # Errors
    /// If the model has no cache that can be handed over, or the system gives no thread.
    pub fn new(
        graph: &Graph,
        prefill: Box<dyn Executor>,
        decode: Box<dyn Executor>,
        options: RelayOptions,
    ) -> Result<Self, ExecError> {
        if graph.needs_whole_texts() {
            let text = "a model that reads texts as a whole runs on one unit; name only one";
            return Err(ExecError::Invalid(text.into()));
        }
        // Says what cannot be handed over.
        KvBlock::zeros(graph, 0)?;
        let limits = *decode.limits();
        let chunk = options.chunk.clamp(1, prefill.limits().batch_tokens);
        let prefiller = Prefiller::start(prefill)?;
        Ok(Relay {
            limits,
            vocab: graph.vocab(),
            input_vocab: graph.input_vocab(),
            state: RefCell::new(State::new(decode, prefiller, RelayOptions { chunk, ..options })),
        })
    }

    /// Everything that can be found wrong with a batch before it is begun.
    fn check(&self, batch: &Batch) -> Result<(), ExecError> {
        batch.check(self.input_vocab, &self.limits)?;
        let context = self.limits.context;
        for span in &batch.spans {
            let (seq, len, new) = (span.seq, self.len(span.seq), span.tokens.len());
            if new > context.saturating_sub(len) {
                return Err(ExecError::ContextFull { seq, len, new, context });
            }
        }
        Ok(())
    }
}

impl Executor for Relay {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        self.check(batch)?;
        let state = self.state.get_mut();
        let before: Vec<(SeqId, usize)> =
            batch.spans.iter().map(|span| (span.seq, state.len(span.seq))).collect();
        let result = state.forward(batch, self.vocab);
        if result.is_err() {
            // Some spans may have been begun.
            for (seq, len) in before {
                state.truncate(seq, len)?;
            }
        }
        result
    }

    fn prepare(&mut self, seq: SeqId, new: usize) -> Readiness {
        self.state.get_mut().prepare(seq, new)
    }

    fn on_progress(&mut self, wake: Waker) {
        self.state.get_mut().on_progress(wake);
    }

    fn handed_over(&self, seq: SeqId, range: Range<usize>) -> usize {
        self.state.borrow().handed_over(seq, range)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len(&self, seq: SeqId) -> usize {
        self.state.borrow().len(seq)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        self.state.get_mut().truncate(seq, len)
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        self.state.get_mut().copy(from, to, len)
    }

    fn free(&mut self, seq: SeqId) {
        self.state.get_mut().free(seq);
    }

    fn export_kv(&self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError> {
        self.state.borrow_mut().export(seq, range)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        self.state.get_mut().import(seq, at, block)
    }

    fn usage(&self) -> Usage {
        self.state.borrow().usage()
    }
}

/// Two units as one: what it compiles is a [`Relay`].
pub struct RelayUnit {
    /// Reads prompts.
    pub prefill: Box<dyn Unit>,
    /// Writes answers.
    pub decode: Box<dyn Unit>,
    /// Which of them does what.
    pub options: RelayOptions,
}

impl Unit for RelayUnit {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let decode = self.decode.compile(graph, weights, limits)?;
        let batch_tokens = self.options.chunk.clamp(1, limits.batch_tokens.max(1));
        let limits = Limits { batch_tokens, ..limits };
        let prefill = self.prefill.compile(graph, weights, limits)?;
        Ok(Box::new(Relay::new(graph, prefill, decode, self.options)?))
    }
}
