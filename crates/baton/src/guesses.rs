//! What is guessed of the tokens to come, and by whom.

use std::path::PathBuf;

use baton_engine::Speculate;
use baton_hub::Store;

use crate::failure::usage;
use crate::models;

/// The part of a command line that is about guesses.
#[derive(Debug, clap::Args)]
pub struct Guesses {
    /// A smaller model with the same tokenizer, which guesses what the model will write
    #[arg(long, visible_alias = "draft-model", alias = "model-draft", value_name = "MODEL")]
    draft: Option<String>,
    /// Where guesses of the next tokens come from: auto, off, lookup (the text so far) or draft. They
    /// change no answer, and stop where they do not make it faster
    #[arg(long, value_name = "HOW", default_value_t)]
    speculate: Speculate,
}

impl Guesses {
    /// Checks what was said.
    ///
    /// # Errors
    /// If it makes no sense together.
    pub fn check(&self) -> anyhow::Result<()> {
        let how = self.speculate;
        match (&self.draft, how) {
            (None, Speculate::Draft) => Err(usage("--speculate draft needs --draft MODEL")),
            (Some(_), Speculate::Off | Speculate::Lookup) => {
                Err(usage(format_args!("--draft is of no use with --speculate {how}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether there is to be a draft model.
    pub fn has_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// Where guesses come from.
    pub fn speculate(&self) -> Speculate {
        self.speculate
    }

    /// The draft model's files; fetches them if they are not here.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn draft(&self, store: &Store) -> anyhow::Result<Option<PathBuf>> {
        let Some(name) = &self.draft else { return Ok(None) };
        let reference = models::resolve(store, name)?;
        Ok(Some(models::get(store, &reference)?.path))
    }
}
