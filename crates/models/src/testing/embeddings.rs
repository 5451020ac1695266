//! Tiny embedding models with known vectors, in `crates/models/tests/embeddings`, made by the script
//! there: run by sentence-transformers in f32, from text to vector.

use std::path::{Path, PathBuf};

/// One golden embedding model file.
#[derive(Clone, Debug)]
pub struct EmbeddingGolden {
    /// Name for messages, such as `gemma/model.gguf`.
    pub name: String,
    /// What to open: a GGUF file or a checkpoint folder.
    pub path: PathBuf,
    /// The texts.
    pub texts: Vec<EmbeddedText>,
}

/// A text and what becomes of it.
#[derive(Clone, Debug)]
pub struct EmbeddedText {
    /// The text.
    pub text: String,
    /// Its tokens, the model's own included.
    pub ids: Vec<u32>,
    /// Its vector, of length 1.
    pub vector: Vec<f32>,
}

impl EmbeddedText {
    /// Largest difference between the elements of the known vector and `found`, and the cosine of
    /// their angle.
    ///
    /// # Panics
    /// If `found` has another length or holds a NaN.
    pub fn compare(&self, found: &[f32]) -> (f32, f32) {
        assert_eq!(found.len(), self.vector.len(), "{:?}: length of a vector", self.text);
        let pairs = || self.vector.iter().zip(found);
        let worst = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let cosine = pairs().map(|(a, b)| a * b).sum::<f32>();
        assert!(!cosine.is_nan(), "{:?}: NaN", self.text);
        (worst, cosine)
    }
}

/// All golden embedding models in both forms, in the order of their names.
///
/// # Panics
/// If the files are not there or malformed.
pub fn embedding_goldens() -> Vec<EmbeddingGolden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embeddings");
    let entries = std::fs::read_dir(&root).expect("the golden folder is in the repository");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    folders.sort();
    folders.retain(|path| path.join("expected.json").exists());
    let of_folder = |folder: &PathBuf| {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let texts = texts(folder);
        let golden =
            |name: String, path: PathBuf| EmbeddingGolden { name, path, texts: texts.clone() };
        [
            golden(name.clone(), folder.clone()),
            golden(format!("{name}/model.gguf"), folder.join("model.gguf")),
        ]
    };
    folders.iter().flat_map(of_folder).collect()
}

fn texts(folder: &Path) -> Vec<EmbeddedText> {
    let json = std::fs::read(folder.join("expected.json")).expect("readable");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("valid JSON");
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        let list = value.as_array().expect("a list");
        list.iter().map(|n| n.as_f64().expect("a number")).collect()
    };
    let text = |entry: &serde_json::Value| EmbeddedText {
        text: entry["text"].as_str().expect("a text").to_owned(),
        ids: numbers(&entry["ids"]).into_iter().map(|n| n as u32).collect(),
        vector: numbers(&entry["vector"]).into_iter().map(|n| n as f32).collect(),
    };
    json["texts"].as_array().expect("texts").iter().map(text).collect()
}
