//! Everything about a model's texts: tokenizer, chat templates, sampling defaults.

use std::path::Path;

use baton_models::{Model, Source};
use baton_text::{ChatTemplates, Tokenizer};
use baton_weights::{GgufFile, read_regular};

use crate::{Error, Result, Sampling};

/// What turns text into a model's tokens and back, read from its files without its weights.
#[derive(Debug)]
pub struct ModelText {
    /// The tokenizer, which also knows what ends an answer.
    pub tokenizer: Tokenizer,
    /// The chat templates; base models have none.
    pub templates: ChatTemplates,
    /// The model's own sampling defaults.
    pub sampling: Sampling,
}

/// Tokenizers may have some tokens that their models do not know, as those of images.
const MORE_TOKENS: usize = 1024;

impl ModelText {
    /// Reads it from GGUF metadata, or from the files beside a checkpoint.
    ///
    /// # Errors
    /// If the tokenizer is missing, damaged, of an unknown kind or of another model, or a chat template is not
    /// valid.
    pub fn of(model: &Model) -> Result<Self> {
        let text = ModelText::from_source(model)?;
        let tokens = text.tokenizer.vocab_size();
        match model.packaged() {
            // Nothing else tells whose it is.
            Some(packaged) if tokens > packaged.sizes.vocab + MORE_TOKENS => {
                Err(Error::OtherTokenizer {
                    path: packaged.folder.clone(),
                    tokens,
                    vocab: packaged.sizes.vocab,
                })
            }
            _ => Ok(text),
        }
    }

    fn from_source(model: &Model) -> Result<Self> {
        match model.source() {
            Source::Gguf(file) => {
                let tokenizer = gguf_tokenizer(file)?;
                let templates = ChatTemplates::from_gguf(file.metadata(), &tokenizer)?;
                let sampling = Sampling::from_gguf(file.metadata());
                Ok(ModelText { tokenizer, templates, sampling })
            }
            Source::Checkpoint { folder, .. } => {
                let tokenizer = Tokenizer::from_json_file(folder.join("tokenizer.json"))?;
                let templates = ChatTemplates::from_folder(folder, &tokenizer)?;
                let sampling = generation_config(&folder.join("generation_config.json"))?;
                Ok(ModelText { tokenizer, templates, sampling })
            }
            _ => Err(Error::NoTokenizer),
        }
    }
}

/// The source of a model's chat template, exactly as its files have it.
pub fn template_source(model: &Model) -> Option<String> {
    let folder = match model.source() {
        Source::Gguf(file) => {
            let source = file.metadata().opt_str("tokenizer.chat_template").ok().flatten();
            return source.map(str::to_owned);
        }
        Source::Checkpoint { folder, .. } => folder,
        _ => return None,
    };
    let read = |name: &str| read_regular(&folder.join(name)).ok();
    if let Some(source) = read("chat_template.jinja").and_then(|text| String::from_utf8(text).ok())
    {
        return Some(source);
    }
    let config = read("tokenizer_config.json")?;
    let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
    let template = &config["chat_template"];
    let named = |name: &str| template.as_array()?.iter().find(|entry| entry["name"] == name);
    template.as_str().or_else(|| named("default")?["template"].as_str()).map(str::to_owned)
}

/// The tokenizer in the file; if there is none that is known, the `tokenizer.json` beside it.
fn gguf_tokenizer(file: &GgufFile) -> Result<Tokenizer> {
    use baton_text::Error::{Metadata, Unsupported};
    let beside = file.paths().next().map(|path| path.with_file_name("tokenizer.json"));
    match (Tokenizer::from_gguf(file.metadata()), beside.filter(|path| path.is_file())) {
        (Err(error @ (Metadata(_) | Unsupported { .. })), Some(path)) => {
            tracing::warn!("{error}; {} is used instead", path.display());
            Ok(Tokenizer::from_json_file(path)?)
        }
        (other, _) => Ok(other?),
    }
}

fn generation_config(path: &Path) -> Result<Sampling> {
    let bytes = match read_regular(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Sampling::default());
        }
        Err(source) => return Err(Error::Read { path: path.to_owned(), source }),
    };
    let config = serde_json::from_slice(&bytes)
        .map_err(|source| Error::Json { path: path.to_owned(), source })?;
    Ok(Sampling::from_generation_config(&config))
}
