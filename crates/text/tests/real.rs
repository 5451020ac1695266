//! Against real vocabularies and templates, which `scripts/test-data.sh` fetches.

#[path = "real/corpus.rs"]
mod corpus;
#[path = "real/data.rs"]
mod data;
#[path = "real/gguf_form.rs"]
mod gguf_form;
#[path = "real/models.rs"]
mod models;
#[path = "real/templates.rs"]
mod templates;
#[path = "real/tokenizers.rs"]
mod tokenizers;
