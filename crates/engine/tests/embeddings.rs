//! From texts to vectors, on the small embedding models of the `models` crate.

use std::path::{Path, PathBuf};

use baton_engine::{CancelToken, EmbedOptions, Embedder, Engine, Error, LoadOptions, UnitKind};
use baton_models::testing::embedding_goldens;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/embeddings").join(name)
}

fn options(unit: UnitKind) -> LoadOptions {
    LoadOptions { unit, threads: Some(2), ..LoadOptions::default() }
}

fn load(name: &str) -> Embedder {
    Embedder::load(golden(name), &options(UnitKind::Cpu)).unwrap()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn texts_become_the_vectors_that_sentence_transformers_makes() {
    for golden in embedding_goldens() {
        for (unit, tolerance) in [(UnitKind::Cpu, 1e-3), (UnitKind::Reference, 1e-5)] {
            let embedder = Embedder::load(&golden.path, &options(unit)).unwrap();
            let texts: Vec<&str> = golden.texts.iter().map(|text| text.text.as_str()).collect();
            let found = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
            assert_eq!(found.len(), texts.len());
            for (found, expected) in found.iter().zip(&golden.texts) {
                let what = format!("{}, {unit:?}, {:?}", golden.name, expected.text);
                assert_eq!(found.tokens, expected.ids.len(), "{what}");
                assert!(!found.truncated);
                let (difference, _) = expected.compare(&found.vector);
                assert!(difference < tolerance, "{what}: {difference}");
            }
        }
    }
}

#[test]
fn a_text_has_one_vector_whatever_it_is_computed_with() {
    for name in ["minilm", "qwen3", "gemma"] {
        let embedder = load(name);
        let many: Vec<String> =
            (0..100).map(|i| format!("the fox {i} {}", "a ".repeat(i % 30))).collect();
        let together = embedder.embed(&many, &EmbedOptions::default()).unwrap();
        for (text, together) in many.iter().zip(&together).step_by(9) {
            let alone = &embedder.embed(&[text], &EmbedOptions::default()).unwrap()[0];
            let worst = difference(&alone.vector, &together.vector);
            assert!(worst < 1e-5, "{name}, {text:?}: {worst}");
        }
        assert!(embedder.embed::<&str>(&[], &EmbedOptions::default()).unwrap().is_empty());
    }
}

#[test]
fn a_text_too_long_is_an_error_unless_it_may_be_cut() {
    for name in ["minilm", "minilm/model.gguf", "gemma", "qwen3"] {
        let options = LoadOptions { context: Some(16), ..options(UnitKind::Cpu) };
        let embedder = Embedder::load(golden(name), &options).unwrap();
        let long = "the fox ".repeat(100);
        let texts = ["the fox", &long];
        let error = embedder.embed(&texts, &EmbedOptions::default()).unwrap_err();
        let Error::TextTooLong { index: 1, tokens, context: 16, .. } = error else {
            panic!("{name}: {error}");
        };
        assert!(tokens > 16 && error.to_string().contains("truncate"), "{error}");
        let cut = EmbedOptions { truncate: true, ..EmbedOptions::default() };
        let found = embedder.embed(&texts, &cut).unwrap();
        assert_eq!(found.iter().map(|e| e.truncated).collect::<Vec<_>>(), [false, true]);
        assert_eq!(found[1].tokens, 16, "{name}");
        // The same as of what is left of it: the model's own tokens stay around it.
        let mut rest = long.as_str();
        while embedder.embed(&[rest], &EmbedOptions::default()).is_err() {
            rest = &rest[..rest.len() - 1];
        }
        let rest = &embedder.embed(&[rest], &EmbedOptions::default()).unwrap()[0];
        assert!(difference(&rest.vector, &found[1].vector) < 1e-5, "{name}");
    }
}

#[test]
fn shorter_vectors_are_beginnings_of_length_1() {
    let embedder = load("gemma");
    let whole = &embedder.embed(&["a fox"], &EmbedOptions::default()).unwrap()[0].vector;
    assert_eq!((whole.len(), embedder.dimensions()), (32, 32));
    let of = |n| EmbedOptions { dimensions: Some(n), ..EmbedOptions::default() };
    let short = &embedder.embed(&["a fox"], &of(8)).unwrap()[0].vector;
    let length = whole[..8].iter().map(|x| x * x).sum::<f32>().sqrt();
    for (short, whole) in short.iter().zip(whole) {
        assert!((short - whole / length).abs() < 1e-6);
    }
    for n in [0, 33] {
        let error = embedder.embed(&["a fox"], &of(n)).unwrap_err();
        assert!(matches!(error, Error::Dimensions { most: 32, .. }), "{error}");
    }
}

#[test]
fn work_can_be_cancelled() {
    let cancel = CancelToken::new();
    cancel.cancel();
    let options = EmbedOptions { cancel, ..EmbedOptions::default() };
    assert!(matches!(load("bge").embed(&["a"], &options), Err(Error::Cancelled)));
}

#[test]
fn models_of_the_other_kind_are_named() {
    let error = Engine::load(golden("minilm"), &options(UnitKind::Cpu)).unwrap_err();
    assert!(matches!(error, Error::EmbeddingModel { .. }), "{error}");
    let llama = golden("../golden/llama3/model.gguf");
    let error = Embedder::load(llama, &options(UnitKind::Cpu)).unwrap_err();
    assert!(matches!(error, Error::NoEmbeddingModel { .. }), "{error}");
}

#[test]
fn the_context_is_what_the_model_was_trained_for_or_has_positions_for() {
    // 80 tokens in training, 96 positions.
    assert_eq!(load("minilm").context(), 80);
    let with = |n| LoadOptions { context: Some(n), ..options(UnitKind::Cpu) };
    assert_eq!(Embedder::load(golden("minilm"), &with(96)).unwrap().context(), 96);
    assert!(Embedder::load(golden("minilm"), &with(97)).is_err());
    assert!(Embedder::load(golden("minilm"), &with(3)).is_err());
    // 512 are claimed, 128 were trained.
    assert_eq!(load("nomic").context(), 128);
}
