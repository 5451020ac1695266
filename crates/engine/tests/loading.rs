//! From files to an executor, on the small checkpoints of the `models` crate.

use std::path::{Path, PathBuf};

use baton_engine::{Engine, Error, LoadOptions, UnitKind, Windows, compare, compile_model};
use baton_models::Model;

fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

fn options(unit: UnitKind) -> LoadOptions {
    LoadOptions { unit, context: Some(64), threads: Some(2), ..LoadOptions::default() }
}

#[test]
fn a_model_computes_the_same_from_either_file_on_either_unit() {
    for name in ["llama3/model.gguf", "llama3", "gemma3", "qwen3-moe"] {
        let model = Model::open(checkpoint(name)).unwrap();
        let vocab = model.config().vocab;
        let tokens: Vec<u32> = (0..48).map(|i| (i * 7 % vocab) as u32).collect();
        let load = |unit| compile_model(&model, &options(unit)).unwrap().executor;
        let (mut cpu, mut reference) = (load(UnitKind::Cpu), load(UnitKind::Reference));
        let windows = Windows { len: 64, first: None };
        let result = compare(&mut *cpu, &mut *reference, &tokens, windows).unwrap();
        assert!(result.mean_kl < 1e-3, "{name}: {result:?}");
        assert!(result.top1_agreement > 0.95, "{name}: {result:?}");
    }
}

#[test]
fn options_that_make_no_sense_are_named() {
    let model = Model::open(checkpoint("llama3")).unwrap();
    let fails = |change: fn(&mut LoadOptions)| {
        let mut options = options(UnitKind::Cpu);
        change(&mut options);
        compile_model(&model, &options).err().expect("it must fail").to_string()
    };
    assert!(fails(|o| o.context = Some(1)).contains("context"));
    assert!(fails(|o| o.batch_tokens = 0).contains("batch_tokens"));
    assert!(fails(|o| o.disabled_passes = vec!["no_such_pass".into()]).contains("no_such_pass"));
    let huge = fails(|o| o.kv_tokens = Some(usize::MAX));
    assert!(huge.contains("KV cache"), "{huge}");
}

#[test]
fn passes_can_be_switched_off() {
    let model = Model::open(checkpoint("llama3")).unwrap();
    let names = baton_graph::passes::ALL.iter().map(|pass| pass.name.to_owned());
    let plain = LoadOptions { disabled_passes: names.collect(), ..options(UnitKind::Cpu) };
    let mut plain = compile_model(&model, &plain).unwrap().executor;
    let mut fused = compile_model(&model, &options(UnitKind::Cpu)).unwrap().executor;
    let windows = Windows { len: 64, first: None };
    let tokens: Vec<u32> = (0..30).collect();
    let result = compare(&mut *plain, &mut *fused, &tokens, windows).unwrap();
    assert!(result.mean_kl < 1e-4, "{result:?}");
}

#[test]
fn a_missing_model_and_one_without_a_tokenizer_are_errors() {
    let missing = Engine::load(checkpoint("none"), &options(UnitKind::Cpu)).unwrap_err();
    assert!(matches!(missing, Error::Model(_)), "{missing}");
    let silent = Engine::load(checkpoint("llama3"), &options(UnitKind::Cpu)).unwrap_err();
    assert!(matches!(silent, Error::Text(_)), "{silent}");
    let silent =
        Engine::load(checkpoint("llama3/model.gguf"), &options(UnitKind::Cpu)).unwrap_err();
    assert!(silent.to_string().contains("tokenizer"), "{silent}");
}

#[test]
fn the_default_context_is_the_models_where_memory_allows() {
    let model = Model::open(checkpoint("llama3")).unwrap();
    let options = LoadOptions { context: None, ..options(UnitKind::Cpu) };
    let compiled = compile_model(&model, &options).unwrap();
    let expected = model.config().context_length.min(8192);
    assert_eq!(compiled.executor.limits().context, expected);
}
