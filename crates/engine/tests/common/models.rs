//! Real models, where they are: the folder `models` in the one that BATON_TEST_DATA names.

#![allow(dead_code)]

use std::path::PathBuf;

pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
pub const MINILM: &str = "all-MiniLM-L6-v2";

/// The path of a model, or none, which the test says, if BATON_TEST_DATA is not set.
///
/// # Panics
/// If it is set and the model is not there.
pub fn find(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("BATON_TEST_DATA") else {
        println!("skipped: BATON_TEST_DATA is not set, so {name} is not there");
        return None;
    };
    let path = PathBuf::from(folder).join("models").join(name);
    assert!(path.exists(), "{} is missing; run scripts/test-data.sh", path.display());
    Some(path)
}
