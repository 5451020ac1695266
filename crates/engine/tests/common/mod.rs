//! Small engines for tests.
#![allow(dead_code, unused_imports)]

mod paced;
mod probe;
#[path = "tokenizer.rs"]
mod tiny_tokenizer;

use std::sync::{Arc, OnceLock};

use baton_engine::{Engine, Event, GenerateOptions, ModelTraits, Sampling, Session, Summary};
use baton_gpu::{GpuUnit, Options};
use baton_graph::reference::Reference;
use baton_graph::testing::{Tiny, random_weights};
use baton_graph::{Executor, Limits, Unit};
use baton_weights::{Tensor, Weight};

pub use paced::Paced;
pub use probe::{Counts, Pass, Probe, probed, relay_options};
pub use tiny_tokenizer::{END, VOCAB, tokenizer, tokenizer_with};

/// The machine's GPU, opened once.
pub fn gpu() -> GpuUnit {
    static GPU: OnceLock<GpuUnit> = OnceLock::new();
    let open = || GpuUnit::open(&Options::from_env()).unwrap_or_else(|error| panic!("{error}"));
    GPU.get_or_init(open).clone()
}

pub fn limits(context: usize) -> Limits {
    Limits { context, kv_tokens: context, batch_tokens: 16 }
}

pub fn executor_of(unit: &dyn Unit, limits: Limits) -> Box<dyn Executor> {
    let graph = Tiny { vocab: VOCAB, ..Tiny::default() }.graph().unwrap();
    unit.compile(&graph, &random_weights(&graph, 5), limits).unwrap()
}

/// As [`executor_of`], of a model that is surer of what comes next: one token is much likelier than
/// the others.
pub fn sure_executor_of(unit: &dyn Unit, limits: Limits, seed: u64) -> Box<dyn Executor> {
    let tiny = Tiny { vocab: VOCAB, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let mut weights = random_weights(&graph, seed);
    let norm = Tensor::from_f32("norm", &[tiny.hidden], &vec![4.0; tiny.hidden]);
    weights.insert("norm", Weight::One(norm));
    unit.compile(&graph, &weights, limits).unwrap()
}

pub fn executor(limits: Limits) -> Box<dyn Executor> {
    executor_of(&Reference, limits)
}

/// An engine without a tokenizer, on the reference interpreter.
pub fn engine(limits: Limits) -> Engine {
    Engine::new(executor(limits), ModelTraits::default())
}

/// An engine with a tokenizer of bytes.
pub fn text_engine(limits: Limits) -> Engine {
    let tokenizer = Some(Arc::new(tokenizer()));
    let end_tokens = [END].into();
    Engine::new(executor(limits), ModelTraits { tokenizer, end_tokens, ..Default::default() })
}

pub fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling::greedy(),
        max_tokens: Some(max_tokens),
        ..GenerateOptions::default()
    }
}

/// Tokens drawn from all of the vocabulary: bytes of every kind, whole characters or not.
pub fn wild(max_tokens: usize) -> GenerateOptions {
    let sampling = Sampling {
        temperature: Some(20.0),
        top_k: Some(0),
        top_p: Some(1.0),
        min_p: Some(0.0),
        seed: Some(1),
        ..Sampling::default()
    };
    GenerateOptions { sampling, ..greedy(max_tokens) }
}

/// The tokens of an answer, its text and its summary.
pub struct Answer {
    pub tokens: Vec<u32>,
    pub text: String,
    pub summary: Summary,
}

impl Answer {
    pub fn reused(&self) -> usize {
        self.summary.metrics.reused_tokens
    }

    pub fn prefilled(&self) -> usize {
        self.summary.metrics.prefilled_tokens
    }
}

pub fn collect<E: std::fmt::Debug>(events: impl Iterator<Item = Result<Event, E>>) -> Answer {
    let (mut tokens, mut text, mut summary) = (Vec::new(), String::new(), None);
    for event in events {
        assert!(summary.is_none(), "an event after the last");
        match event.unwrap() {
            Event::Token(token) => tokens.push(token.id),
            Event::Text(piece) => {
                assert!(!piece.is_empty());
                text += &piece;
            }
            Event::Done(done) => summary = Some(done),
            _ => {}
        }
    }
    Answer { tokens, text, summary: summary.expect("the last event is a summary") }
}

pub fn answer(session: &mut Session, prompt: &[u32], options: &GenerateOptions) -> Answer {
    collect(session.generate(prompt, options).unwrap())
}
