//! What holding an answer to a grammar costs with a vocabulary:
//! `cargo run --release -p baton-engine --example masks -- TOKENIZER.json|MODEL.gguf`

use std::collections::HashSet;
use std::error::Error;
use std::time::{Duration, Instant};

use baton_engine::{Constraint, Grammar, GrammarCompiler, ModelText};
use baton_models::Model;
use baton_text::Tokenizer;
use serde_json::json;

const JSON: &str = r#"{"title": "A walk in the park, and what came of it", "pages": 128, "tags": ["novel", "Österreich", "日本"], "author": {"name": "Ada Example", "born": 1815.5}, "note": "She said: \"nobody reads this\", and went on.\nThen it rained for a while, and the lights of the town went out one by one."}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: masks TOKENIZER.json|MODEL.gguf")?;
    let tokenizer = match path.ends_with(".json") {
        true => Tokenizer::from_json_file(&path)?,
        false => ModelText::of(&Model::open(&path)?)?.tokenizer,
    };
    let ends: HashSet<u32> = tokenizer.eog().iter().copied().collect();
    let started = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer, &ends)?;
    println!("{} tokens; compiler made in {:.1?}", tokenizer.vocab_size(), started.elapsed());
    let text = json!({ "type": "string" });
    let book = json!({
        "type": "object",
        "properties": {
            "title": { "type": "string", "maxLength": 100 },
            "pages": { "type": "integer", "minimum": 1, "maximum": 10_000 },
            "tags": { "type": "array", "items": text, "maxItems": 10 },
            "author": { "type": "object", "properties": { "name": text, "born": { "type": "number" } } },
            "note": text,
        },
        "required": ["title", "pages", "tags", "author", "note"],
        "additionalProperties": false,
    });
    let grammars = [
        ("JSON object", Grammar::JsonObject),
        ("JSON schema", Grammar::JsonSchema(book)),
        ("regex (.|\\n)*", Grammar::Regex("(.|\\n)*".into())),
    ];
    let ids = tokenizer.encode_as_text(JSON, false)?;
    for (name, grammar) in grammars {
        let started = Instant::now();
        let constraint = compiler.compile(&grammar, None)?;
        let compiled = started.elapsed();
        let times = follow(constraint, &ids)?;
        let mean = times.iter().sum::<Duration>() / times.len().max(1) as u32;
        let most = times.iter().max().copied().unwrap_or_default();
        let median = times[times.len() / 2];
        println!(
            "{name:15} compiled in {compiled:.1?}; {} tokens, each {mean:.1?} (median {median:.1?}, most {most:.1?})",
            times.len()
        );
    }
    Ok(())
}

/// The times that the tokens took, ascending.
fn follow(mut constraint: Constraint, ids: &[u32]) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut times = Vec::new();
    for &id in ids {
        let started = Instant::now();
        // A tokenizer may put a space before a text, which no grammar begins with.
        if !constraint.mask()?.allows(id) && times.is_empty() {
            continue;
        }
        constraint.accept(id)?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}
