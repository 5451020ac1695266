//! How packages of Anemll's layout are called, and whether they are what their folder says.

use std::path::Path;

use crate::foreign::meta::Meta;
use crate::foreign::order::REMEDY;
use crate::foreign::signature::{Features, Signature};
use crate::foreign::{MOST, MOST_TOKENS, Sizes, bounded, bounded_tensor, only, package_mut};
use crate::layout::names::anemll::{self as names, META};
use crate::mil::{DataType, TensorType};
use crate::runtime::Source;
use crate::{Error, Result, memory};

/// How the packages are called: embeddings first, chunks in their order, the head last.
#[derive(Clone, Debug)]
pub(in crate::foreign) struct Plan {
    pub(super) hidden: usize,
    pub(super) context: usize,
    pub(super) batch: usize,
    pub(super) chunks: usize,
    /// Tokens that the embeddings look up at once, and their function.
    pub(super) looked_up: usize,
    pub(super) embeddings: String,
    /// The state that chunks share.
    pub(super) cache: TensorType,
    /// Rows of hidden states that the last chunk gives of a batch.
    pub(super) last_rows: usize,
    pub(super) head: String,
    pub(super) logits: Vec<(String, TensorType)>,
    /// Whether batches may begin at any position, or at multiples of their size alone.
    pub(super) anywhere: bool,
}

/// The tensors of layers, other than the hidden state.
const LAYER_INPUTS: [&str; 3] = [names::POSITION_IDS, names::CAUSAL_MASK, names::CURRENT_POS];

impl Plan {
    /// The plan for packages that are as the description of their folder says.
    ///
    /// # Errors
    /// If one is not.
    pub fn of(folder: &Path, meta: &Meta, signatures: &[Signature]) -> Result<Plan> {
        let [embeddings, chunks @ .., head] = signatures else {
            unreachable!("there are names for all of them")
        };
        let first = chunks.first().expect("one at least");
        let infer = first.function(names::INFER)?;
        let &[_, _, hidden] =
            first.shape(&infer.inputs, names::HIDDEN_STATES, DataType::Float16)?;
        let &[.., context] =
            first.shape::<4>(&infer.inputs, names::CAUSAL_MASK, DataType::Float16)?;
        let prefill = first.function(names::PREFILL)?;
        let &[batch] = first.shape(&prefill.inputs, names::POSITION_IDS, DataType::Int32)?;
        // Of several caches none has this name.
        let cache = first.shape::<4>(&infer.states, names::KV_CACHE, DataType::Float16)?;
        let mut plan = Plan {
            hidden: bounded("a hidden state", hidden, MOST)?,
            context: bounded("a context", context, MOST)?,
            batch: bounded("a batch", batch, MOST)?,
            chunks: chunks.len(),
            looked_up: 1,
            embeddings: String::new(),
            cache: TensorType::new(DataType::Float16, cache),
            last_rows: 1,
            head: String::new(),
            logits: Vec::new(),
            anywhere: meta.anywhere,
        };
        for &dim in cache {
            bounded("a dimension of the cache", dim, MOST)?;
        }
        if !cache[0].is_multiple_of(2) || cache[2] < context {
            let text = format!("has a cache {cache:?} that does not hold {context} places");
            return Err(first.wrong(text));
        }
        bounded_tensor("the mask", &[batch, context])?;
        for (i, chunk) in chunks.iter().enumerate() {
            plan.check_chunk(chunk, i + 1 == chunks.len())?;
        }
        plan.add_embeddings(embeddings)?;
        plan.add_head(head)?;
        plan.check(folder, meta)?;
        Ok(plan)
    }

    pub fn sizes(&self) -> Sizes {
        let &[layers, heads, _, width] = &self.cache.shape[..] else { unreachable!("checked") };
        let vocab = self.logits.iter().map(|(_, ty)| rows(ty)).sum();
        Sizes {
            hidden: self.hidden,
            vocab,
            context: self.context,
            cache: [layers / 2, heads, width],
        }
    }

    /// Bytes of the states of so many sequences, and of the arrays that grow with the context, the batch and the
    /// vocabulary, of numbers of `each` bytes.
    pub fn held_bytes(&self, sequences: u64, each: u64) -> u64 {
        let rows = self.batch + 1;
        let arrays = [[rows, self.context], [2 * rows, self.hidden], [1, self.sizes().vocab]];
        let arrays = arrays.iter().map(|shape| memory::bytes(each, shape));
        let states = memory::bytes(each, &self.cache.shape).saturating_mul(sequences);
        arrays.fold(states, u64::saturating_add)
    }

    /// That a chunk's functions have the tensors of one of layers, and no others.
    fn check_chunk(&mut self, chunk: &Signature, is_last: bool) -> Result<()> {
        let half = DataType::Float16;
        for (name, tokens) in [(names::INFER, 1), (names::PREFILL, self.batch)] {
            let Features { inputs, outputs, states, .. } = chunk.function(name)?;
            chunk.expect(inputs, names::HIDDEN_STATES, half, [1, tokens, self.hidden])?;
            chunk.expect(inputs, names::POSITION_IDS, DataType::Int32, [tokens])?;
            chunk.expect(inputs, names::CURRENT_POS, DataType::Int32, [1])?;
            chunk.expect(inputs, names::CAUSAL_MASK, half, [1, 1, tokens, self.context])?;
            let known = |input: &&String| {
                *input == names::HIDDEN_STATES || LAYER_INPUTS.contains(&input.as_str())
            };
            if let Some(other) = inputs.keys().find(|input| !known(input)) {
                return Err(unsupported(chunk, name, "an input", other));
            }
            let cache: [usize; 4] = self.cache.shape[..].try_into().expect("four dimensions");
            chunk.expect(states, names::KV_CACHE, half, cache)?;
            if let Some(other) = states.keys().find(|state| *state != names::KV_CACHE) {
                return Err(unsupported(chunk, name, "a state", other));
            }
            let &[_, rows, features] = chunk.shape(outputs, names::OUTPUT_HIDDEN_STATES, half)?;
            if features != self.hidden || rows != tokens && !(is_last && rows == 1) {
                let text = format!(
                    "gives {} of shape [1, {rows}, {features}] in {name:?}, not [1, {tokens}, {}]",
                    names::OUTPUT_HIDDEN_STATES,
                    self.hidden
                );
                return Err(chunk.wrong(text));
            }
            if is_last && tokens > 1 {
                self.last_rows = rows;
            }
        }
        Ok(())
    }

    fn add_embeddings(&mut self, package: &Signature) -> Result<()> {
        let (name, features) = only(package, "a package of embeddings")?;
        let &[_, own] = package.shape(&features.inputs, names::INPUT_IDS, DataType::Int32)?;
        let several = features.shapes.get(names::INPUT_IDS);
        let has = |n: usize| own == n || several.is_some_and(|s| s.iter().any(|s| *s == [1, n]));
        let n = [self.batch, 1].into_iter().find(|&n| has(n)).unwrap_or(own);
        self.looked_up = bounded("tokens to look up", n, MOST)?;
        bounded_tensor("what is looked up", &[n, self.hidden])?;
        let found = features.outputs.get(names::HIDDEN_STATES);
        // Of an output whose shape varies, what was compiled does not say it.
        let fits = |ty: &TensorType| {
            ty.dtype == DataType::Float16
                && (ty.shape.is_empty() || ty.shape.last() == Some(&self.hidden))
        };
        if !found.is_some_and(fits) || features.inputs.len() > 1 {
            let text = format!(
                "does not make {} of {} features of {} alone",
                names::HIDDEN_STATES,
                self.hidden,
                names::INPUT_IDS
            );
            return Err(package.wrong(text));
        }
        self.embeddings = name.to_owned();
        Ok(())
    }

    fn add_head(&mut self, package: &Signature) -> Result<()> {
        let (name, Features { inputs, outputs, .. }) = only(package, "a head")?;
        package.expect(inputs, names::HIDDEN_STATES, DataType::Float16, [1, 1, self.hidden])?;
        if outputs.keys().any(|output| output.starts_with("argmax")) {
            return Err(Error::Unsupported {
                what: format!("{}, which gives the likeliest tokens and no logits,", package.file),
                instead: "convert the model without --argmax".to_owned(),
            });
        }
        for i in 1..=outputs.len() {
            let output = names::logits(i);
            let &[_, one, n] = package.shape(outputs, &output, DataType::Float16)?;
            if one != 1 {
                return Err(package.wrong(format!("gives {output} of {one} tokens, not of one")));
            }
            bounded("a piece of the logits", n, MOST_TOKENS)?;
            self.logits.push((output.clone(), outputs[&output].clone()));
        }
        bounded("a vocabulary", self.sizes().vocab, MOST_TOKENS)?;
        self.head = name.to_owned();
        Ok(())
    }

    /// That the packages are what the description says.
    fn check(&self, folder: &Path, meta: &Meta) -> Result<()> {
        let vocab = self.sizes().vocab;
        for (what, said, found) in [
            ("a context", meta.context, self.context),
            ("batches", meta.batch, self.batch),
            ("pieces of logits", meta.logits.unwrap_or(self.logits.len()), self.logits.len()),
            ("a vocabulary", meta.vocab.unwrap_or(vocab), vocab),
        ] {
            if said != found {
                let problem =
                    format!("says {what} of {said}, but its packages have {found}; {REMEDY}");
                return Err(Error::Folder { path: folder.join(META), problem });
            }
        }
        let sizes: Vec<usize> = self.logits.iter().map(|(_, ty)| rows(ty)).collect();
        if meta.logit_sizes.as_ref().is_some_and(|said| *said != sizes) {
            let problem =
                format!("says other sizes of the logits' pieces than its head has; {REMEDY}");
            return Err(Error::Folder { path: folder.join(META), problem });
        }
        Ok(())
    }
}

fn unsupported(package: &Signature, function: &str, what: &str, name: &str) -> Error {
    Error::Unsupported {
        what: format!("{what} {name:?} of {function:?} in {}", package.file),
        instead: "convert the model with one cache (--single-cache) and without an update mask"
            .to_owned(),
    }
}

/// Rows of a piece of the logits.
fn rows(ty: &TensorType) -> usize {
    ty.shape.last().copied().unwrap_or(0)
}

/// Gives the embeddings the one shape that they are called with.
///
/// # Errors
/// If they cannot have it.
pub(in crate::foreign) fn fix(plan: &Plan, sources: &mut [Source]) -> Result<()> {
    if let Some(package) = package_mut(sources, 0) {
        let shape = [1, plan.looked_up];
        *package = package.with_shape(&plan.embeddings, names::INPUT_IDS, &shape)?;
    }
    Ok(())
}
