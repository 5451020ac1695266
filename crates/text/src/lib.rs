//! Text on one side, token ids on the other.
//!
//! A [`Tokenizer`] comes from a `tokenizer.json` or from the metadata of a GGUF file and gives the
//! same ids either way. A [`ChatTemplate`] turns a conversation into the prompt the model was
//! trained on. On the way back a [`Detokenizer`] turns ids into text as they are generated, an
//! [`OutputParser`] splits it into reasoning, answer and tool calls, and [`StopStrings`] ends the
//! answer where the user asked. This crate knows nothing of models or of the units that run them.

#![forbid(unsafe_code)]

mod detokenizer;
mod error;
mod guard;
mod needle;
mod output;
mod stop;
mod template;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use needle::Needle;
pub use output::{OutputFormat, OutputParser, ParserOptions, Piece};
pub use stop::{Emit, StopStrings};
pub use template::{ChatTemplate, ChatTemplates, Content, Message, RenderOptions, TEMPLATE_THREAD};
pub use tokenizer::Tokenizer;
