//! The same ids from `tokenizer.json` and from GGUF metadata, for every family with a vocabulary in
//! the registries.

use baton_text::Tokenizer;
use serde_json::Value;

use crate::corpus::{self, Numbers};
use crate::data;
use crate::gguf_form::{Form, metadata};

fn json(name: &str) -> Option<Vec<u8>> {
    let path = data::find(&format!("tokenizers/{name}/tokenizer.json"))?;
    Some(std::fs::read(path).unwrap())
}

/// Compares ours from JSON, ours from GGUF, and the `tokenizers` crate on the whole corpus.
fn compare(name: &str, form: &Form) {
    let Some(bytes) = json(name) else { return };
    let oracle = tokenizers::Tokenizer::from_bytes(&bytes).unwrap();
    let ours = Tokenizer::from_json_bytes(&bytes).unwrap();
    let value: Value = serde_json::from_slice(&bytes).unwrap();
    let gguf = Tokenizer::from_gguf(&metadata(&value, form)).unwrap();
    drop((value, bytes));
    assert_eq!(ours.vocab_size(), gguf.vocab_size());

    for line in corpus::lines() {
        let expected = oracle.encode_fast(line.as_str(), false).unwrap();
        let ids = ours.encode(&line, false).unwrap();
        assert_eq!(ids, expected.get_ids(), "{name}: {line:?}");
        for least in [ours.least_tokens(&line), gguf.least_tokens(&line)] {
            assert!(least <= ids.len(), "{name}: {least} > {}: {line:?}", ids.len());
        }
        assert_eq!(gguf.encode(&line, false).unwrap(), ids, "{name}, GGUF: {line:?}");
        let as_text = ours.encode_as_text(&line, false).unwrap();
        assert!(!as_text.iter().any(|&id| ours.is_control(id)), "{name}: {line:?} {as_text:?}");
        assert_eq!(gguf.encode_as_text(&line, false).unwrap(), as_text, "{name}, GGUF: {line:?}");

        let text = oracle.decode(&ids, false).unwrap();
        assert_eq!(ours.decode(&ids, false), text, "{name}: {ids:?}");
        assert_eq!(gguf.decode(&ids, false), text, "{name}, GGUF: {ids:?}");
        let text = oracle.decode(&ids, true).unwrap();
        assert_eq!(ours.decode(&ids, true), text, "{name}: {ids:?}");
    }
    random_sequences(name, &ours, &oracle);
}

/// Joined pieces are the text of all ids, for ids that no text would give; and where those are
/// text at all, the oracle says the same.
fn random_sequences(name: &str, ours: &Tokenizer, oracle: &tokenizers::Tokenizer) {
    let mut numbers = Numbers(88_172_645_463_325_252);
    for round in 0..10_000 {
        let length = numbers.below(12);
        // Small ids are single bytes in most vocabularies.
        let size = if round % 2 == 0 { 512 } else { ours.vocab_size() };
        let ids: Vec<u32> = (0..length).map(|_| numbers.below(size) as u32).collect();
        let all = ours.decode(&ids, true);
        let mut detokenizer = ours.detokenizer(true);
        let mut streamed: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        streamed += &detokenizer.finish();
        assert_eq!(streamed, all, "{name}: {ids:?}");
        // To the oracle some tokens that end an answer are text; here they are never shown.
        let ends = ids.iter().any(|id| ours.eog().contains(id));
        if !ends && !all.contains('\u{fffd}') {
            assert_eq!(oracle.decode(&ids, true).unwrap(), all, "{name}: {ids:?}");
        }
    }
}

fn byte_pairs(pre: &'static str) -> Form {
    Form { model: "gpt2", pre: Some(pre), add_space_prefix: None, unknown: None }
}

#[test]
fn llama3() {
    compare("llama3", &byte_pairs("llama-bpe"));
}

#[test]
fn qwen3() {
    compare("qwen3", &byte_pairs("qwen2"));
}

#[test]
fn gpt2() {
    compare("gpt2", &byte_pairs("gpt-2"));
}

#[test]
fn gpt4o() {
    compare("gpt4o", &byte_pairs("gpt-4o"));
}

#[test]
fn gpt_oss() {
    compare("gptoss", &byte_pairs("gpt-4o"));
}

#[test]
fn deepseek_v3() {
    compare("deepseek_v3", &byte_pairs("deepseek-v3"));
}

#[test]
fn mistral_nemo() {
    compare("mistral_nemo", &byte_pairs("tekken"));
}

#[test]
fn llama2() {
    let form = Form {
        model: "llama",
        pre: Some("default"),
        add_space_prefix: Some(true),
        unknown: Some(0),
    };
    compare("llama2", &form);
}

/// The tokenizer of Gemma 3 written as the newer form, with merges, that Gemma 4's files have.
#[test]
fn gemma_with_merges() {
    let form = Form { model: "gemma4", pre: None, add_space_prefix: None, unknown: Some(3) };
    compare("gemma3", &form);
}

#[test]
fn special_tokens_are_those_of_the_model() {
    let cases: [(&str, Option<&str>, &[&str], bool); 8] = [
        ("llama2", Some("<s>"), &["</s>"], true),
        ("llama3", Some("<|begin_of_text|>"), &["<|end_of_text|>", "<|eot_id|>"], false),
        ("qwen3", None, &["<|im_end|>", "<|endoftext|>"], false),
        ("gemma3", Some("<bos>"), &["<end_of_turn>", "<eos>"], true),
        ("gptoss", Some("<|startoftext|>"), &["<|return|>", "<|call|>", "<|endoftext|>"], false),
        ("deepseek_v3", Some("<｜begin▁of▁sentence｜>"), &["<｜end▁of▁sentence｜>"], true),
        ("mistral_nemo", Some("<s>"), &["</s>"], true),
        ("gpt2", Some("<|endoftext|>"), &["<|endoftext|>"], false),
    ];
    for (name, bos, ends, add_bos) in cases {
        let Some(path) = data::find(&format!("tokenizers/{name}/tokenizer.json")) else { return };
        let tokenizer = Tokenizer::from_json_file(path).unwrap();
        assert_eq!(tokenizer.bos().and_then(|id| tokenizer.token(id)).as_deref(), bos, "{name}");
        for end in ends {
            let id = tokenizer.id(end).unwrap();
            assert!(tokenizer.eog().contains(&id), "{name}: {end}");
            assert_eq!(tokenizer.decode(&[id], true), "", "{name}: {end} is shown");
        }
        assert_eq!(tokenizer.add_bos(), add_bos, "{name}");
        if let (true, Some(bos)) = (add_bos, tokenizer.bos()) {
            let once = tokenizer.encode("Hi", true).unwrap();
            let text = format!("{}Hi", tokenizer.token(bos).unwrap());
            let twice = tokenizer.encode(&text, true).unwrap();
            assert_eq!((once[0], twice[0]), (bos, bos), "{name}");
            assert_ne!(twice[1], bos, "{name}: BOS stands twice");
        }
    }
    let Some(path) = data::find("tokenizers/gptoss/tokenizer.json") else { return };
    let harmony = Tokenizer::from_json_file(path).unwrap();
    assert!(!harmony.eog().contains(&harmony.id("<|end|>").unwrap()));
}
