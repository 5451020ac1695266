//! The tokenizers inside two published GGUF files.

use std::path::Path;

use baton_text::{ChatTemplates, Message, RenderOptions, Tokenizer};
use baton_weights::GgufFile;
use serde_json::Value;

use crate::{corpus, data};

fn gguf(name: &str) -> Option<(GgufFile, Tokenizer)> {
    let file = GgufFile::open(data::find(&format!("models/{name}"))?).unwrap();
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    Some((file, tokenizer))
}

/// Prompts with the ids that llama.cpp 0.3.36's Python binding gives.
fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/prompts.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn smollm2_prompts_are_tokenized_as_by_llama_cpp() {
    let Some((file, tokenizer)) = gguf("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let golden = &golden()["smollm2"];
    let templates = ChatTemplates::from_gguf(file.metadata(), &tokenizer).unwrap();
    let messages = [Message::user("Why is the sky blue?")];
    let prompt =
        templates.choose(false).unwrap().render(&messages, &RenderOptions::for_answer()).unwrap();
    assert_eq!(prompt, golden["prompt"].as_str().unwrap());
    assert_eq!(tokenizer.encode(&prompt, false).unwrap(), ids(&golden["prompt_ids"]));
    let answer = ids(&golden["answer_ids"]);
    assert_eq!(tokenizer.decode(&answer, true), golden["answer"].as_str().unwrap());
    assert!(!tokenizer.add_bos());
    let end = tokenizer.id("<|im_end|>").unwrap();
    assert!(tokenizer.eog().contains(&end) && tokenizer.is_control(end));
}

#[test]
fn gemma3_prompts_are_tokenized_as_by_llama_cpp() {
    let Some((file, tokenizer)) = gguf("gemma-3-270m-q4_k_m.gguf") else { return };
    let golden = &golden()["gemma3"];
    let prompt = golden["prompt"].as_str().unwrap();
    assert_eq!(tokenizer.encode(prompt, true).unwrap(), ids(&golden["prompt_ids"]));
    // The answer goes on after the prompt: its first space counts.
    let mut detokenizer = tokenizer.detokenizer(true).keep_leading_space();
    let answer: String =
        ids(&golden["answer_ids"]).into_iter().map(|id| detokenizer.push(id)).collect();
    assert_eq!(answer, golden["answer"].as_str().unwrap());
    let ends = ["<eos>", "<end_of_turn>"].map(|end| tokenizer.id(end).unwrap());
    assert!(ends.iter().all(|end| tokenizer.eog().contains(end)));
    // To this vocabulary an HTML tag is text.
    let tag = tokenizer.id("</s>").unwrap();
    assert!(!tokenizer.eog().contains(&tag));
    // A base model: there is no template, and that is said.
    let templates = ChatTemplates::from_gguf(file.metadata(), &tokenizer).unwrap();
    assert!(matches!(templates.choose(false), Err(baton_text::Error::NoTemplate)));
}

/// Scores, without a list of merges, against the list of the same model's `tokenizer.json`.
#[test]
fn gemma3_scores_give_the_ids_of_its_merges() {
    let Some((_, gguf)) = gguf("gemma-3-270m-q4_k_m.gguf") else { return };
    let Some(path) = data::find("tokenizers/gemma3/tokenizer.json") else { return };
    let json = Tokenizer::from_json_file(path).unwrap();
    for line in corpus::lines() {
        // A ▁ of the text itself joins with spaces beside it in the JSON, where tokens of spaces
        // are spelled with it; this GGUF file spells them with spaces.
        if line.contains('▁') {
            continue;
        }
        let ids = json.encode(&line, true).unwrap();
        assert_eq!(gguf.encode(&line, true).unwrap(), ids, "{line:?}");
        assert_eq!(gguf.decode(&ids, false), json.decode(&ids, false), "{line:?}");
    }
}
