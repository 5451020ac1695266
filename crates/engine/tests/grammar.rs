//! Answers held to a grammar, from prompt to text.

mod common;
#[path = "common/models.rs"]
mod models;

use baton_engine::{
    ChatTemplate, Engine, Error, FinishReason, GenerateOptions, Grammar, LoadOptions, Prompt,
    Reasoning, Sampling,
};
use serde::Deserialize;
use serde_json::{Value, json};

use common::{Answer, collect, greedy, limits, text_engine, wild};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cat {
    name: String,
    lives: u8,
    colour: Colour,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code)]
enum Colour {
    Black,
    Grey,
}

fn cat() -> Grammar {
    Grammar::JsonSchema(json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "lives": { "type": "integer", "minimum": 0, "maximum": 9 },
            "colour": { "enum": ["black", "grey"] },
        },
        "required": ["name", "lives", "colour"],
        "additionalProperties": false,
    }))
}

fn check_cat(text: &str) {
    let cat: Cat = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(cat.name.chars().count() <= 12 && cat.lives <= 9, "{text}");
    let _ = cat.colour;
}

fn answer(engine: &Engine, options: &GenerateOptions) -> Answer {
    collect(engine.session().generate("in the beginning", options).unwrap())
}

#[test]
fn every_answer_fits_its_schema_at_any_temperature() {
    let engine = text_engine(limits(512));
    for seed in 0..12 {
        for temperature in [0.0, 1.0, 20.0] {
            let mut options = wild(400);
            options.sampling.seed = Some(seed);
            options.sampling.temperature = Some(temperature);
            options.grammar = Some(cat());
            let answer = answer(&engine, &options);
            assert_eq!(answer.summary.reason, FinishReason::EndOfGeneration, "{}", answer.text);
            check_cat(&answer.text);
            if temperature == 0.0 && seed > 0 {
                break;
            }
        }
    }
}

#[test]
fn filters_and_penalties_choose_among_what_is_allowed() {
    let engine = text_engine(limits(512));
    let sampling = Sampling {
        top_k: Some(3),
        top_p: Some(0.5),
        min_p: Some(0.2),
        repeat_penalty: Some(1.5),
        frequency_penalty: Some(1.0),
        logit_bias: [(0, 50.0), (common::END, 50.0)].into(),
        seed: Some(3),
        logprobs: Some(2),
        ..Sampling::default()
    };
    let grammar = Some(Grammar::Regex("(ab|cd){5,10}".into()));
    let answer = answer(&engine, &GenerateOptions { sampling, grammar, ..greedy(100) });
    assert_eq!(answer.summary.reason, FinishReason::EndOfGeneration);
    let pairs: Vec<&[u8]> = answer.text.as_bytes().chunks(2).collect();
    assert!((5..=10).contains(&pairs.len()), "{}", answer.text);
    assert!(pairs.iter().all(|pair| *pair == b"ab" || *pair == b"cd"), "{}", answer.text);
}

#[test]
fn an_answer_ends_by_itself_when_nothing_could_follow() {
    let engine = text_engine(limits(64));
    for ignore_end in [false, true] {
        for grammar in [
            Grammar::Regex("the th in a".into()),
            Grammar::Lark("start: \"the \" rest\nrest: \"th in\" \" a\"".into()),
            Grammar::JsonSchema(json!({ "const": "the th in a" })),
        ] {
            let answer = answer(
                &engine,
                &GenerateOptions { grammar: Some(grammar), ignore_end, ..greedy(60) },
            );
            assert_eq!(answer.text.trim_matches('"'), "the th in a");
            assert_eq!(answer.summary.reason, FinishReason::EndOfGeneration);
        }
    }
}

#[test]
fn limits_and_stop_strings_still_end_an_answer() {
    let engine = text_engine(limits(64));
    let grammar = Some(Grammar::Regex("abcdefgh".into()));
    let short = answer(&engine, &GenerateOptions { grammar: grammar.clone(), ..greedy(3) });
    assert_eq!((short.text.as_str(), short.summary.reason), ("abc", FinishReason::Length));
    let stop = vec!["ef".into()];
    let stopped = answer(&engine, &GenerateOptions { grammar, stop, ..greedy(30) });
    assert_eq!(stopped.text, "abcd");
    assert_eq!(stopped.summary.reason, FinishReason::Stop("ef".into()));
}

#[test]
fn a_grammar_that_cannot_be_obeyed_is_refused_before_anything_is_computed() {
    let engine = text_engine(limits(64));
    let mut session = engine.session();
    let grammar = Some(Grammar::JsonSchema(json!({ "type": "strnig" })));
    let error = session.generate("in", &GenerateOptions { grammar, ..greedy(5) }).err().unwrap();
    assert!(matches!(error, Error::Grammar { .. }), "{error}");
    assert!(session.tokens().unwrap().is_empty());
    let grammar = Some(Grammar::JsonObject);
    let options = GenerateOptions { grammar, ..greedy(5) };
    let prompt = Prompt::Tokens(vec![1, 2]);
    let error = common::engine(limits(64)).session().generate(prompt, &options).err().unwrap();
    assert!(matches!(error, Error::NoTokenizer), "{error}");
}

#[test]
fn the_reasoning_before_an_answer_is_free() {
    let engine = text_engine(limits(256));
    let mut begun = 0;
    for seed in 0..12 {
        // One byte after which the grammar counts comes up by chance.
        let mut options = wild(250);
        options.sampling.seed = Some(seed);
        options.grammar = Some(Grammar::Regex("yes|no".into()));
        options.reasoning = Some(Reasoning { open: None, close: vec!["e".into()] });
        let answer = answer(&engine, &options);
        match answer.text.split_once('e') {
            Some((_, rest)) if answer.summary.reason == FinishReason::EndOfGeneration => {
                assert!(["yes", "no"].contains(&rest.trim_start()), "{}", answer.text);
                begun += 1;
            }
            _ => assert_eq!(answer.summary.reason, FinishReason::Length, "{}", answer.text),
        }
    }
    assert!(begun > 3, "{begun}");
}

fn smollm2() -> Option<Engine> {
    let path = models::find(models::SMOLLM2)?;
    let options = LoadOptions { context: Some(512), ..LoadOptions::default() };
    Some(Engine::load(path, &options).unwrap())
}

#[test]
fn smollm2_describes_a_cat() {
    let Some(engine) = smollm2() else { return };
    for (seed, temperature) in [(0, 0.0), (1, 1.0), (2, 1.5)] {
        let mut chat = engine.chat().unwrap();
        let sampling =
            Sampling { temperature: Some(temperature), seed: Some(seed), ..Sampling::default() };
        let options = GenerateOptions { sampling, grammar: Some(cat()), ..greedy(120) };
        let question = "Describe a cat as JSON, with name, lives and colour.";
        let answer = collect(chat.send(question, &options).unwrap());
        assert_eq!(answer.summary.reason, FinishReason::EndOfGeneration, "{}", answer.text);
        check_cat(&answer.text);
    }
    let mut chat = engine.chat().unwrap();
    let options = GenerateOptions { grammar: Some(Grammar::JsonObject), ..greedy(200) };
    let answer = collect(chat.send("List three fruits as a JSON object.", &options).unwrap());
    if answer.summary.reason == FinishReason::EndOfGeneration {
        assert!(serde_json::from_str::<Value>(&answer.text).unwrap().is_object());
    }
}

#[test]
fn in_a_chat_a_grammar_counts_where_the_template_ends_the_reasoning() {
    let engine = text_engine(limits(256));
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n\n</think>\n\n";
    let template = ChatTemplate::new(source, None, None).unwrap();
    let mut chat = engine.chat_with_template(template).unwrap();
    for seed in 0..5 {
        let mut options = wild(100);
        options.sampling.seed = Some(seed);
        options.grammar = Some(Grammar::Regex("yes|no".into()));
        let answer = collect(chat.send("in", &options).unwrap());
        assert!(["yes", "no"].contains(&answer.text.as_str()), "{}", answer.text);
    }
    // Here the reasoning has begun, and by chance it never ends.
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}{# </think> #}<think>";
    let template = ChatTemplate::new(source, None, None).unwrap();
    let mut chat = engine.chat_with_template(template).unwrap();
    let grammar = Some(Grammar::Regex("yes|no".into()));
    let answer = collect(chat.send("in", &GenerateOptions { grammar, ..wild(50) }).unwrap());
    assert_eq!(answer.summary.reason, FinishReason::Length);
    assert_eq!(answer.tokens.len(), 50);
}
