//! Tiny models for tests: checkpoints with known logits, and models with known answers.
//!
//! The checkpoints lie in `crates/models/tests/golden`, made by the script there: random models of
//! every architecture, run by transformers in f32.

mod embeddings;
mod speed;
mod successors;
mod units;

use std::path::{Path, PathBuf};

use baton_weights::{GgufFile, GgufWriter, Metadata, Value};

pub use embeddings::{EmbeddedText, EmbeddingGolden, embedding_goldens};
pub use speed::Speed;
pub use successors::{CHATML, Successors};
pub use units::{golden_embeddings_agree, golden_models_agree};

/// One prompt of one golden model file.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name for messages, such as `gemma3/model.gguf, context 256`.
    pub name: String,
    /// What to open: a GGUF file or a checkpoint folder.
    pub path: PathBuf,
    /// Context to build for.
    pub context: usize,
    /// The prompt.
    pub ids: Vec<u32>,
    /// Positions in the prompt whose logits are known.
    pub rows: Vec<usize>,
    /// Logits of those rows.
    pub logits: Vec<Vec<f32>>,
}

impl Golden {
    /// Largest difference between the known logits and those of `all`, which holds a row for each
    /// token of the prompt.
    ///
    /// # Panics
    /// If a row is missing or has another length.
    pub fn max_difference(&self, all: &baton_graph::Logits) -> f32 {
        let mut worst = 0.0f32;
        for (&row, expected) in self.rows.iter().zip(&self.logits) {
            let found = all.row(row);
            assert_eq!(found.len(), expected.len(), "{}: length of a row", self.name);
            for (a, b) in found.iter().zip(expected) {
                // A NaN must not pass as small.
                let difference = (a - b).abs();
                worst = if difference <= worst { worst } else { difference };
                assert!(!difference.is_nan(), "{}: NaN", self.name);
            }
        }
        worst
    }

    /// Size of the largest known logit.
    pub fn largest(&self) -> f32 {
        self.logits.iter().flatten().fold(0.0, |most, logit| logit.abs().max(most))
    }
}

/// All golden files with all their prompts, in the order of their names.
///
/// # Panics
/// If the files are not there or malformed.
pub fn goldens() -> Vec<Golden> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(&root).expect("the golden folder is in the repository");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    folders.sort();
    folders
        .iter()
        .filter(|path| path.join("expected.json").exists())
        .flat_map(|path| read(path))
        .collect()
}

/// The GGUF file at `path` with some keys of its metadata replaced, or taken out by `None`.
///
/// # Panics
/// If the file cannot be read.
pub fn gguf_with(path: &Path, changes: &[(&str, Option<Value>)]) -> GgufFile {
    let file = GgufFile::open(path).expect("the file opens");
    let kept = |key: &str| changes.iter().all(|(changed, _)| *changed != key);
    let mut metadata: Metadata = file
        .metadata()
        .iter()
        .filter(|(key, _)| kept(key))
        .map(|(key, value)| (key, value.clone()))
        .collect();
    for (key, value) in changes {
        if let Some(value) = value {
            metadata.insert(*key, value.clone());
        }
    }
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|t| (t.name(), t.dtype().expect("a known type"), t.shape().to_vec()))
        .collect();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).expect("a header");
    for (name, ..) in &tensors {
        writer.tensor(file.tensor(name).expect("is there").data()).expect("fits");
    }
    GgufFile::from_bytes(writer.finish().expect("all written")).expect("reads back")
}

fn read(folder: &Path) -> Vec<Golden> {
    let text = std::fs::read(folder.join("expected.json")).expect("readable");
    let expected: serde_json::Value = serde_json::from_slice(&text).expect("valid JSON");
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        let list = value.as_array().expect("a list");
        list.iter().map(|n| n.as_f64().expect("a number")).collect()
    };
    let folder_name = folder.file_name().expect("a name").to_string_lossy();
    let mut goldens = Vec::new();
    for run in expected["runs"].as_array().expect("runs") {
        let context = run["context"].as_u64().expect("a context") as usize;
        for path in [folder.to_path_buf(), folder.join("model.gguf")] {
            if !path.exists() {
                continue;
            }
            let file = if path.is_dir() { "" } else { "/model.gguf" };
            goldens.push(Golden {
                name: format!("{folder_name}{file}, context {context}"),
                path,
                context,
                ids: numbers(&run["ids"]).into_iter().map(|n| n as u32).collect(),
                rows: numbers(&run["rows"]).into_iter().map(|n| n as usize).collect(),
                logits: run["logits"]
                    .as_array()
                    .expect("rows of logits")
                    .iter()
                    .map(|row| numbers(row).into_iter().map(|n| n as f32).collect())
                    .collect(),
            });
        }
    }
    goldens
}
