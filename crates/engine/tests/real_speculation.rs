//! Guesses for real models: texts that repeat what they are made from.

mod common;
#[path = "common/models.rs"]
mod models;

use std::sync::Arc;
use std::time::Duration;

use baton_engine::{
    Compiled, Engine, Error, Event, GenerateOptions, KvType, LoadOptions, Metrics, ModelText,
    ModelTraits, Prompt, Sampling, Speculate, compile_model,
};
use baton_models::Model;

use common::{Paced, greedy};

const LIST: &str = "red apple, green apple, red apple, green apple, red apple, green apple, red";
const CODE: &str = "\
def area_of_square(side):
    if side < 0:
        raise ValueError('side must not be negative')
    return side * side

def area_of_circle(radius):
    if radius < 0:
        raise ValueError('radius must not be negative')
    return 3.14159 * radius * radius

def area_of_cube(";

fn options() -> LoadOptions {
    LoadOptions { context: Some(512), threads: Some(2), ..LoadOptions::default() }
}

/// A model whose steps are so slow that evaluating some guesses more hardly counts.
fn paced(name: &str, options: &LoadOptions, draft: Option<Engine>) -> Option<Engine> {
    let model = Model::open(models::find(name)?).unwrap();
    let ModelText { tokenizer, .. } = ModelText::of(&model).unwrap();
    let Compiled { executor: inner, .. } = compile_model(&model, options).unwrap();
    let (step, token) = (Duration::from_millis(30), Duration::ZERO);
    let executor = Box::new(Paced { inner, step, token, steps: Arc::default() });
    let end_tokens = tokenizer.eog().iter().copied().collect();
    let tokenizer = Some(Arc::new(tokenizer));
    let traits = ModelTraits { tokenizer, end_tokens, ..ModelTraits::default() };
    Some(match draft {
        None => Engine::new(executor, traits),
        Some(draft) => Engine::with_draft(executor, traits, draft).unwrap(),
    })
}

fn tell(engine: &Engine, text: &str, options: &GenerateOptions) -> (Vec<Event>, Metrics) {
    let mut session = engine.session();
    let mut events: Vec<Event> =
        session.generate(Prompt::from(text), options).unwrap().map(Result::unwrap).collect();
    let Some(Event::Done(summary)) = events.pop() else { panic!("no summary") };
    events.retain(|event| !matches!(event, Event::Prefill { .. }));
    (events, summary.metrics)
}

fn same(engine: &Engine, text: &str, options: &GenerateOptions) -> Metrics {
    let off = GenerateOptions { speculate: Some(Speculate::Off), ..options.clone() };
    let (plain, _) = tell(engine, text, &off);
    let (guessed, metrics) = tell(engine, text, options);
    assert_eq!(guessed, plain);
    metrics
}

fn samplings() -> [Sampling; 3] {
    let seeded = Sampling { seed: Some(11), temperature: Some(0.7), ..Sampling::default() };
    let penalized = Sampling { repeat_penalty: Some(1.05), logprobs: Some(2), ..seeded.clone() };
    [Sampling::greedy(), seeded, penalized]
}

#[test]
fn real_models_answer_the_same_with_guesses_from_the_text() {
    for name in [models::SMOLLM2, models::GEMMA3] {
        let Some(engine) = paced(name, &options(), None) else { return };
        let mut right = 0;
        for text in [LIST, CODE] {
            for sampling in samplings() {
                let options = GenerateOptions { sampling, ..greedy(40) };
                right += same(&engine, text, &options).right_guesses;
            }
        }
        assert!(right > 10, "{name}: {right}");
    }
}

#[test]
fn guesses_are_exact_with_every_type_of_cache() {
    for kv_type in KvType::ALL {
        let options = LoadOptions { kv_type, ..options() };
        let Some(engine) = paced(models::SMOLLM2, &options, None) else { return };
        assert!(same(&engine, CODE, &greedy(48)).right_guesses > 2, "{kv_type}");
    }
}

#[test]
fn a_real_model_drafts_for_itself() {
    let Some(path) = models::find(models::SMOLLM2) else { return };
    let draft = Engine::load(path, &options()).unwrap();
    let engine = paced(models::SMOLLM2, &options(), Some(draft)).unwrap();
    for sampling in samplings() {
        let wanted = GenerateOptions { sampling, speculate: Some(Speculate::Draft), ..greedy(40) };
        let metrics = same(&engine, "Once upon a time there was", &wanted);
        let acceptance = metrics.acceptance().unwrap();
        if wanted.sampling.temperature == Some(0.0) {
            assert!(acceptance > 0.95, "{metrics:?}");
        }
        assert!(metrics.right_guesses > 2, "{metrics:?}");
    }
}

#[test]
fn a_model_of_another_family_cannot_draft() {
    let Some(path) = models::find(models::SMOLLM2) else { return };
    let options = LoadOptions { draft: models::find(models::GEMMA3), ..options() };
    let error = Engine::load(path, &options).unwrap_err();
    assert!(matches!(error, Error::Draft { .. }), "{error}");
    assert!(error.to_string().contains("same tokenizer"), "{error}");
}
