//! Embedding models: from texts to vectors.
//!
//! An [`Embedder`] is to an embedding model what an [`Engine`](crate::Engine) is to one that answers.
//! It keeps nothing between calls. Vectors have length 1, so that the dot product of two is the
//! cosine of their angle.

mod batches;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use baton_graph::{Batch, Executor, Limits, Rows, SeqId, Span, Usage};
use baton_models::Model;
use baton_text::Tokenizer;

use crate::load::{Compiled, compile_model};
use crate::model_text::ModelText;
use crate::open::open_model;
use crate::{CancelToken, Error, LoadOptions, MemoryPlan, Result};
use batches::batches;
pub(crate) use batches::limits;

/// A model that makes vectors of texts, ready to do so.
///
/// Clones are the same embedder. Any number of threads may use it; the compute unit works for one of
/// them at a time, and changes hands between batches.
#[derive(Clone)]
pub struct Embedder {
    shared: Arc<Shared>,
}

struct Shared {
    /// Holds no sequence while nobody has the lock.
    executor: Mutex<Box<dyn Executor>>,
    limits: Limits,
    traits: EmbedderTraits,
}

/// What an embedder knows of its model besides how to compute it.
#[derive(Debug)]
pub struct EmbedderTraits {
    /// Its name.
    pub name: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Elements of a vector.
    pub dimensions: usize,
    /// How long loading took.
    pub load_time: Duration,
    /// What it was expected to need of memory.
    pub memory: MemoryPlan,
}

/// How vectors are wanted.
#[derive(Clone, Debug, Default)]
pub struct EmbedOptions {
    /// Elements of a vector, from 1 to [`EmbedderTraits::dimensions`]: the first so many, brought to
    /// length 1 again. Only models trained for it (Matryoshka) lose little by that.
    pub dimensions: Option<usize>,
    /// Whether a text that is too long is cut at its end; else it is an error.
    pub truncate: bool,
    /// Stops the work before its next batch.
    pub cancel: CancelToken,
}

/// The vector of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Its elements; its length is 1.
    pub vector: Vec<f32>,
    /// Tokens that were read, the model's own included.
    pub tokens: usize,
    /// Whether the text was longer and was cut.
    pub truncated: bool,
}

/// A text as the model reads it.
struct Tokens {
    ids: Vec<u32>,
    truncated: bool,
}

impl Embedder {
    /// Loads a model: a GGUF file, or a folder as sentence-transformers writes it.
    ///
    /// # Errors
    /// If the files are missing, damaged or of an unknown kind, are no embedding model, an option
    /// makes no sense, or memory is short.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Embedder> {
        let started = Instant::now();
        let model = open_model(path)?;
        Self::from_model(&model, options, started)
    }

    /// As [`Embedder::load`], for a model whose files are open already. `started` is when loading
    /// began, for the metrics.
    ///
    /// # Errors
    /// As [`Embedder::load`].
    pub fn from_model(model: &Model, options: &LoadOptions, started: Instant) -> Result<Embedder> {
        let Some(head) = &model.config().embedding else {
            return Err(Error::NoEmbeddingModel { name: model.name().to_owned() });
        };
        if model.architecture() == "Gemma 3" && head.dense.is_empty() {
            tracing::warn!(
                "{} lacks the layers that EmbeddingGemma has behind its pooling, as some GGUF files \
                 do; its vectors cannot be compared with those of the whole model",
                model.name()
            );
        }
        let tokenizer = ModelText::of(model)?.tokenizer;
        let Compiled { executor, memory, .. } = compile_model(model, options)?;
        let traits = EmbedderTraits {
            name: model.name().to_owned(),
            tokenizer,
            dimensions: head.width(model.config().hidden),
            load_time: started.elapsed(),
            memory,
        };
        tracing::debug!(limits = ?executor.limits(), %memory, time = ?traits.load_time, "loaded");
        Ok(Self::new(executor, traits))
    }

    /// An embedder over any executor that gives one row of `traits.dimensions` features for a text.
    pub fn new(executor: Box<dyn Executor>, traits: EmbedderTraits) -> Self {
        let limits = *executor.limits();
        Embedder { shared: Arc::new(Shared { executor: Mutex::new(executor), limits, traits }) }
    }

    /// What is known of the model.
    pub fn traits(&self) -> &EmbedderTraits {
        &self.shared.traits
    }

    /// Elements of a vector, where no other number is asked for.
    pub fn dimensions(&self) -> usize {
        self.traits().dimensions
    }

    /// Most tokens of a text, the model's own included.
    pub fn context(&self) -> usize {
        self.shared.limits.context
    }

    /// Memory that the executor holds.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn usage(&self) -> Result<Usage> {
        Ok(self.shared.executor.lock().map_err(|_| Error::Poisoned)?.usage())
    }

    /// The vectors of `texts`, in their order. In the texts the names of control tokens are ordinary
    /// text.
    ///
    /// # Errors
    /// If a text is too long and must not be cut, or has no tokens, an option makes no sense, the
    /// work is cancelled, or the model fails. Texts are looked at before anything is computed.
    pub fn embed<T: AsRef<str>>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
    ) -> Result<Vec<Embedding>> {
        let most = self.dimensions();
        let wanted = options.dimensions.unwrap_or(most);
        if wanted == 0 || wanted > most {
            return Err(Error::Dimensions { wanted, most });
        }
        let read = |(index, text): (usize, &T)| self.read(index, text.as_ref(), options);
        let texts = texts.iter().enumerate().map(read).collect::<Result<Vec<Tokens>>>()?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let mut embeddings = Vec::with_capacity(texts.len());
        for batch in batches(&lengths, &self.shared.limits) {
            if options.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let texts = &texts[batch];
            let vectors = self.forward(texts)?;
            for (text, row) in texts.iter().zip(vectors.chunks_exact(most)) {
                embeddings.push(Embedding {
                    vector: shortened(row, wanted)?,
                    tokens: text.ids.len(),
                    truncated: text.truncated,
                });
            }
        }
        Ok(embeddings)
    }

    /// The tokens of text number `index`.
    fn read(&self, index: usize, text: &str, options: &EmbedOptions) -> Result<Tokens> {
        let context = self.context();
        let tokenizer = &self.traits().tokenizer;
        let too_long = |tokens, counted| Error::TextTooLong { index, tokens, counted, context };
        if !options.truncate && text.len() > context {
            // Known without spending time on a text of any length.
            let least = tokenizer.least_tokens(text);
            if least > context {
                return Err(too_long(least, false));
            }
        }
        let mut ids = tokenizer.encode_as_text(text, true)?;
        if ids.is_empty() {
            return Err(Error::EmptyText { index });
        }
        let tokens = ids.len();
        if options.truncate {
            tokenizer.truncate(&mut ids, context);
        }
        match ids.len() <= context {
            true => Ok(Tokens { truncated: ids.len() < tokens, ids }),
            false => Err(too_long(tokens, true)),
        }
    }

    /// The rows that the model gives for some texts, one after the other.
    fn forward(&self, texts: &[Tokens]) -> Result<Vec<f32>> {
        let span = |(text, seq): (&Tokens, u32)| Span {
            seq: SeqId(seq),
            tokens: text.ids.clone(),
            rows: Rows::Last,
        };
        let batch = Batch { spans: texts.iter().zip(0..).map(span).collect() };
        let mut executor = self.shared.executor.lock().map_err(|_| Error::Poisoned)?;
        let result = executor.forward(&batch);
        batch.spans.iter().for_each(|span| executor.free(span.seq));
        Ok(result?.values)
    }
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { limits, traits, .. } = &*self.shared;
        f.debug_struct("Embedder").field("limits", limits).field("traits", traits).finish()
    }
}

/// The first `wanted` elements of a vector of length 1, brought to that length again.
fn shortened(row: &[f32], wanted: usize) -> Result<Vec<f32>> {
    if row.iter().any(|x| !x.is_finite()) {
        return Err(Error::BadVector);
    }
    let mut vector = row[..wanted].to_vec();
    if wanted < row.len() {
        let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
    }
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_vector_has_length_1_again() {
        let row = [0.48, 0.64, 0.6];
        assert_eq!(shortened(&row, 3).unwrap(), row);
        let two = shortened(&row, 2).unwrap();
        assert!((two[0] - 0.6).abs() < 1e-6 && (two[1] - 0.8).abs() < 1e-6, "{two:?}");
        assert_eq!(shortened(&[0.0, 1.0], 1).unwrap(), [0.0]);
        assert!(matches!(shortened(&[f32::NAN, 1.0], 1), Err(Error::BadVector)));
    }
}
