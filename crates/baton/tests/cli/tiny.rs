//! Models whose answers are known.

use std::path::Path;

use baton_models::testing::Successors;

/// The chat template of these models.
pub use baton_models::testing::CHATML as TEMPLATE;

/// What [`write_answering`] answers.
pub const ANSWER: &str = "Sky blue!";

/// A model that answers [`ANSWER`] to everything.
pub fn write_answering(path: &Path) {
    Successors::answering(ANSWER).write(path);
}

/// A model that writes lines with one `a` and does not end by itself.
pub fn write_endless(path: &Path) {
    Successors::endless().write(path);
}
