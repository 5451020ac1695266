//! `meta.yaml`: what Anemll's programs must know of a folder.

use std::path::Path;

use super::Anemll;
use crate::Result;
use crate::layout::names::COMPILED;
use crate::layout::names::anemll::{VERSION, meta as fields};
use crate::layout::{Piece, Task};
use crate::lower::{Anatomy, HeadCut};

impl Anemll {
    /// The text of the file [`META`](crate::layout::names::anemll::META) for the packages of a model.
    /// Packages are named as they are called once they are compiled.
    ///
    /// # Errors
    /// If the model cannot be laid out so.
    ///
    /// # Panics
    /// If the pieces are those of another layout.
    pub fn meta(
        &self,
        task: Task<'_>,
        pieces: &[Piece],
        name: &str,
        licence: Option<&str>,
    ) -> Result<String> {
        let [embeddings, chunks @ .., head] = pieces else {
            panic!("it has embeddings and a head");
        };
        let (context, batch, prefix) = (self.context, self.batch, &self.prefix);
        let lut = Anemll::lut(task.lowering).map_or("none".to_owned(), |bits| bits.to_string());
        let vocab = task.graph.vocab();
        let logits = self.logit_pieces(vocab);
        let compiled =
            |piece: &Piece| Path::new(&piece.file).with_extension(COMPILED).display().to_string();
        let mut parameters: Vec<(&str, String)> = vec![
            (fields::CONTEXT_LENGTH, context.to_string()),
            (fields::BATCH_SIZE, batch.to_string()),
            (fields::LUTS[0], "none".to_owned()),
            (fields::LUTS[1], lut.clone()),
            (fields::LUTS[2], lut),
            (fields::NUM_CHUNKS, chunks.len().to_string()),
            (fields::MODEL_PREFIX, prefix.to_string()),
            (fields::FILES[0], compiled(embeddings)),
            (fields::FILES[1], compiled(head)),
            (fields::FILES[2], chunks.first().map(compiled).unwrap_or_default()),
            (fields::SPLIT_LM_HEAD, logits.to_string()),
            (fields::VOCAB_SIZE, vocab.to_string()),
            (fields::LM_HEAD_CHUNK_SIZES, format!("{:?}", HeadCut::Pieces(logits).sizes(vocab))),
            (fields::PREFILL_DYNAMIC_SLICE, true.to_string()),
        ];
        if Anatomy::of(task.graph)?.windows.iter().any(Option::is_some) {
            // Nothing rotates, since layers with a window share the cache of the others.
            parameters.push((fields::SLIDING_WINDOW, context.to_string()));
            parameters.push((fields::SINGLE_CACHE, true.to_string()));
        }
        let parameters: String =
            parameters.iter().map(|(key, value)| format!("    {key}: {value}\n")).collect();
        let text = |text: &str| serde_json::Value::from(text).to_string();
        Ok(format!(
            "model_info:\n  name: {}\n  version: {}\n  description: {}\n  license: {}\n  author: Baton\n  \
             framework: Core ML\n  language: Rust\n  architecture: {}\n  parameters:\n{parameters}",
            text(&format!("{prefix}-ctx{context}")),
            VERSION,
            text(&format!("{name}: context {context}, batch {batch}")),
            text(licence.unwrap_or("unknown")),
            text(&self.architecture),
        ))
    }
}
