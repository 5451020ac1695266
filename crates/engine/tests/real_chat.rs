//! A long conversation with a real model and its own template.

#[path = "common/models.rs"]
mod models;

use baton_engine::{Engine, Event, GenerateOptions, LoadOptions, Sampling};

#[test]
fn twenty_turns_evaluate_only_what_is_new() {
    let Some(path) = models::find(models::SMOLLM2) else { return };
    let options = LoadOptions { context: Some(2048), ..LoadOptions::default() };
    let engine = Engine::load(path, &options).unwrap();
    let mut chat = engine.chat().unwrap();
    let mut known = 0;
    for turn in 0..20 {
        let sampling = Sampling { seed: Some(turn), temperature: Some(1.5), ..Sampling::default() };
        let options =
            GenerateOptions { sampling, max_tokens: Some(16), ..GenerateOptions::default() };
        let question =
            format!("Tell me something about the number {turn} — quickly, s'il te plaît!");
        let answer = chat.send(question, &options).unwrap();
        let prompt = answer.prompt().len();
        let mut generated = 0;
        for event in answer {
            match event.unwrap() {
                Event::Token(_) => generated += 1,
                Event::Done(summary) => {
                    let prefilled = summary.metrics.prefilled_tokens;
                    // The last token of an answer is evaluated only when something follows it.
                    let new = prompt - known + usize::from(turn > 0);
                    assert!(prefilled <= new, "turn {turn}: {prefilled} of {new} new ones");
                }
                _ => {}
            }
        }
        known = prompt + generated;
    }
    assert_eq!(chat.messages().len(), 40);
}
