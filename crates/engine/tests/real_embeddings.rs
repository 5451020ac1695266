//! A real embedding model, from text to vector, against sentence-transformers.
//! `golden/embeddings.py` has made the file.

#[path = "common/models.rs"]
mod models;

use baton_engine::{EmbedOptions, Embedder, LoadOptions, UnitKind};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    tokens: usize,
    vector: Vec<f32>,
}

#[test]
fn minilm_is_exact() {
    let Some(path) = models::find(models::MINILM) else { return };
    let golden: Golden = serde_json::from_str(include_str!("golden/minilm.json")).unwrap();
    let texts: Vec<&str> = golden.texts.iter().map(|text| text.text.as_str()).collect();
    for unit in [UnitKind::Cpu, UnitKind::Reference] {
        let options = LoadOptions { unit, ..LoadOptions::default() };
        let embedder = Embedder::load(&path, &options).unwrap();
        assert_eq!((embedder.dimensions(), embedder.context()), (384, 256));
        let found = embedder.embed(&texts, &EmbedOptions::default()).unwrap();
        for (found, expected) in found.iter().zip(&golden.texts) {
            assert_eq!(found.tokens, expected.tokens, "{:?}", expected.text);
            let pairs = || found.vector.iter().zip(&expected.vector);
            let worst = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let cosine: f32 = pairs().map(|(a, b)| a * b).sum();
            println!("{unit:?}: {worst:.1e}, cosine {cosine} of {:?}", expected.text);
            assert!(worst < 1e-5 && cosine > 0.9999, "{unit:?}, {:?}: {worst}", expected.text);
        }
        // What it is for: the sentence about the sky is nearest to the question about it.
        let to_question = |i: usize| -> f32 {
            found[0].vector.iter().zip(&found[i].vector).map(|(a, b)| a * b).sum()
        };
        assert!(to_question(1) > 0.35 && to_question(2) < 0.1);
    }
}
