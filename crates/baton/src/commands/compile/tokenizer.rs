//! The files beside the packages by which texts become tokens.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind};
use std::path::Path;

use anyhow::Context;
use baton_engine::template_source;
use baton_models::{Model, Source};
use baton_weights::{DType, GgufWriter};

/// What checkpoints have of them.
const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];
/// The metadata of a GGUF file, which holds the tokenizer, without tensors.
const METADATA: &str = "tokenizer.gguf";
const TEMPLATE: &str = "chat_template.jinja";

/// Copies the tokenizer, the configuration and the chat template of a model into a folder.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy(model: &Model, folder: &Path) -> anyhow::Result<()> {
    let writing = |name: &str| format!("cannot write {name} beside the package");
    match model.source() {
        Source::Gguf(file) => {
            let path = folder.join(METADATA);
            let out = File::create(&path).with_context(|| writing(METADATA))?;
            let none: [(&str, DType, Vec<usize>); 0] = [];
            GgufWriter::new(BufWriter::new(out), file.metadata(), &none)?.finish()?;
        }
        Source::Checkpoint { folder: from, .. } => {
            for name in FILES {
                match fs::copy(from.join(name), folder.join(name)) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    other => drop(other.with_context(|| writing(name))?),
                }
            }
        }
        _ => {}
    }
    if let Some(template) = template_source(model) {
        fs::write(folder.join(TEMPLATE), template).with_context(|| writing(TEMPLATE))?;
    }
    Ok(())
}
