//! The files beside the packages: by which texts become tokens, and tokens become embeddings.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind};
use std::path::Path;

use anyhow::Context;
use baton_engine::template_source;
use baton_models::{Model, OUTLINE_FILE, Source};

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
/// The same with the tensors that tokens are looked up in, and such tensors of a checkpoint.
const EMBEDDINGS: [&str; 2] = ["embeddings.gguf", "embeddings.safetensors"];
const TEMPLATE: &str = "chat_template.jinja";

/// Copies the tokenizer, the configuration and the chat template of a model into a folder; with
/// `embeddings` also what its packages' caller looks tokens up in, and an outline of the model, so that the
/// folder stands for it.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy(model: &Model, folder: &Path, embeddings: bool) -> anyhow::Result<()> {
    let writing = |name: &str| format!("cannot write {name} beside the package");
    let names = if embeddings { model.looked_up()? } else { Vec::new() };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let file = match (model.source(), embeddings) {
        (Source::Gguf(_), false) => Some(METADATA),
        (Source::Gguf(_), true) => Some(EMBEDDINGS[0]),
        (_, true) => Some(EMBEDDINGS[1]),
        _ => None,
    };
    if let Source::Checkpoint { folder: from, .. } = model.source() {
        for name in FILES {
            match fs::copy(from.join(name), folder.join(name)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => drop(other.with_context(|| writing(name))?),
            }
        }
    }
    if let Some(name) = file {
        let out = File::create(folder.join(name)).with_context(|| writing(name))?;
        model.source().write_some(&names, BufWriter::new(out)).with_context(|| writing(name))?;
    }
    if embeddings {
        fs::write(folder.join(OUTLINE_FILE), model.outline())
            .with_context(|| writing(OUTLINE_FILE))?;
    }
    if let Some(template) = template_source(model) {
        fs::write(folder.join(TEMPLATE), template).with_context(|| writing(TEMPLATE))?;
    }
    Ok(())
}
