//! How packages of coreml-llm-cli's layout are called, and whether they go together.

use std::collections::BTreeMap;

use crate::foreign::signature::{Features, Signature};
use crate::foreign::{MOST, MOST_TOKENS, Sizes, bounded, only};
use crate::layout::names::llm_cli as names;
use crate::mil::{DataType, TensorType};
use crate::{Result, memory};

/// How the packages are called: chunks in their order, then what moves the caches on.
#[derive(Clone, Debug)]
pub(in crate::foreign) struct Plan {
    pub(super) hidden: usize,
    pub(super) window: usize,
    /// Functions of the chunks, with their tensors.
    pub(super) chunks: Vec<Chunk>,
    /// The function that moves caches on.
    pub(super) processor: String,
    /// The caches of a layer, and what is new of them.
    pub(super) cache: TensorType,
    pub(super) new: TensorType,
    pub(super) layers: usize,
    /// Results of the last chunk, in the order of the vocabulary.
    pub(super) logits: Vec<(String, TensorType)>,
}

/// A chunk.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) function: String,
    pub(super) inputs: BTreeMap<String, TensorType>,
    pub(super) outputs: BTreeMap<String, TensorType>,
    /// Its first layer, and how many it has.
    pub(super) first: usize,
    pub(super) layers: usize,
}

impl Plan {
    /// The plan for packages that go together.
    ///
    /// # Errors
    /// If they do not.
    pub fn of(signatures: &[Signature]) -> Result<Plan> {
        let [first, rest @ .., processor] = signatures else {
            unreachable!("there are names for all of them")
        };
        let (_, Features { inputs, outputs, .. }) = only(first, "a chunk")?;
        let &[_, window] = first.shape(inputs, names::INPUT_IDS, DataType::Int32)?;
        first.expect(inputs, names::FULL_SEQUENCE_LENGTH, DataType::Int32, [1])?;
        let known = [names::INPUT_IDS, names::FULL_SEQUENCE_LENGTH];
        if let Some(other) = inputs.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(first.wrong(format!("takes {other:?}, for which there is nothing")));
        }
        let &[_, hidden, ..] = first.shape::<4>(outputs, names::X, DataType::Float16)?;
        first.expect(outputs, names::X, DataType::Float16, [1, hidden, 1, window])?;
        let Some((last, layers)) = rest.split_last().filter(|(_, layers)| !layers.is_empty())
        else {
            return Err(first.wrong("has no chunks of layers and of the head behind it"));
        };
        let [old, _] = names::cache(0);
        let (_, of_layers) = only(&layers[0], "a chunk")?;
        let cache = layers[0].shape::<4>(&of_layers.inputs, &old, DataType::Float16)?;
        let &[_, heads, width, places] = cache;
        let half = |shape: &[usize]| TensorType::new(DataType::Float16, shape);
        let mut plan = Plan {
            hidden: bounded("a hidden state", hidden, MOST)?,
            window: bounded("a window", window, MOST)?,
            chunks: vec![Chunk::of(first, 0)?],
            processor: String::new(),
            cache: half(cache),
            new: half(&[1, heads, width, window]),
            layers: 0,
            logits: Vec::new(),
        };
        for (what, dim) in [("heads", heads), ("features", width), ("places of a cache", places)] {
            bounded(what, dim, MOST)?;
        }
        if !places.is_multiple_of(window) {
            let text = format!("has caches of {places} places, which are no windows of {window}");
            return Err(layers[0].wrong(text));
        }
        let shared = outputs;
        for package in layers {
            let chunk = Chunk::of(package, plan.layers)?;
            plan.check_layers(package, &chunk, shared)?;
            plan.layers += chunk.layers;
            plan.chunks.push(chunk);
        }
        plan.add_head(last)?;
        plan.add_processor(processor)?;
        bounded("layers", plan.layers, MOST)?;
        bounded("a vocabulary", plan.sizes().vocab, MOST_TOKENS)?;
        Ok(plan)
    }

    pub fn sizes(&self) -> Sizes {
        let vocab = self.logits.iter().map(|(_, ty)| ty.shape[2]).sum();
        let &[_, heads, width, places] = &self.cache.shape[..] else { unreachable!("checked") };
        let (hidden, context) = (self.hidden, places + self.window);
        Sizes { hidden, vocab, context, cache: [self.layers, heads, width] }
    }

    /// Bytes of the caches of so many sequences, with a pair to move them into, and of what chunks give, of numbers of
    /// `each` bytes.
    pub fn held_bytes(&self, sequences: u64, each: u64) -> u64 {
        let pairs = sequences.saturating_mul(self.layers as u64).saturating_add(1);
        let caches = memory::bytes(2 * each, &self.cache.shape).saturating_mul(pairs);
        let given = self.chunks.iter().flat_map(|chunk| chunk.outputs.values());
        given.map(|ty| memory::bytes(each, &ty.shape)).fold(caches, u64::saturating_add)
    }

    /// How many layers each chunk of layers has.
    pub fn layers_of_chunks(&self) -> Vec<usize> {
        let [_, layers @ .., _] = &self.chunks[..] else { unreachable!("checked") };
        layers.iter().map(|chunk| chunk.layers).collect()
    }

    /// That a chunk of layers takes nothing that nobody makes, and makes what the next one takes.
    fn check_layers(
        &self,
        package: &Signature,
        chunk: &Chunk,
        shared: &BTreeMap<String, TensorType>,
    ) -> Result<()> {
        let x = [1, self.hidden, 1, self.window];
        package.expect(&chunk.outputs, names::NEW_X, DataType::Float16, x)?;
        let caches: Vec<[String; 2]> = (0..chunk.layers).map(names::cache).collect();
        for (name, ty) in &chunk.inputs {
            let wanted = match caches.iter().flatten().any(|cache| cache == name) {
                true => Some(&self.cache),
                false => shared.get(name),
            };
            if wanted != Some(ty) {
                let text =
                    format!("takes {name:?} as {ty}, which the chunks before it do not make");
                return Err(package.wrong(text));
            }
        }
        for (i, old) in caches.iter().enumerate() {
            for (old, new) in old.iter().zip(names::new_cache(i)) {
                if !chunk.inputs.contains_key(old) || chunk.outputs.get(&new) != Some(&self.new) {
                    let text = format!(
                        "does not go on with {old:?} of {} by {new:?} of {}",
                        self.cache, self.new
                    );
                    return Err(package.wrong(text));
                }
            }
        }
        Ok(())
    }

    fn add_head(&mut self, package: &Signature) -> Result<()> {
        let chunk = Chunk::of(package, self.layers)?;
        let x = [1, self.hidden, 1, self.window];
        package.expect(&chunk.inputs, names::X, DataType::Float16, x)?;
        if chunk.inputs.len() > 1 {
            return Err(package.wrong("takes more than the hidden state, which a head does not"));
        }
        let n = chunk.outputs.keys().filter(|name| name.starts_with(names::LOGITS)).count();
        for i in 0..n.max(1) {
            let name = names::logits(i, n.max(1));
            let &[_, rows, tokens] = package.shape(&chunk.outputs, &name, DataType::Float16)?;
            if rows != self.window {
                let text =
                    format!("gives {name} of {rows} tokens, not of a window of {}", self.window);
                return Err(package.wrong(text));
            }
            bounded("a piece of the logits", tokens, MOST_TOKENS)?;
            self.logits.push((name.clone(), chunk.outputs[&name].clone()));
        }
        self.chunks.push(chunk);
        Ok(())
    }

    fn add_processor(&mut self, package: &Signature) -> Result<()> {
        let (name, Features { inputs, outputs, .. }) = only(package, "what moves caches on")?;
        for [old, new, updated] in names::CACHES {
            for (tensors, name, wanted) in [
                (inputs, old, &self.cache),
                (inputs, new, &self.new),
                (outputs, updated, &self.cache),
            ] {
                if tensors.get(name) != Some(wanted) {
                    return Err(
                        package.wrong(format!("has no {name:?} of {wanted}, as the layers have"))
                    );
                }
            }
        }
        self.processor = name.to_owned();
        Ok(())
    }
}

impl Chunk {
    fn of(package: &Signature, first: usize) -> Result<Chunk> {
        let (function, Features { inputs, outputs, .. }) = only(package, "a chunk")?;
        let has = |layer: &usize| inputs.contains_key(&names::cache(*layer)[0]);
        Ok(Chunk {
            function: function.to_owned(),
            layers: (0..).take_while(has).count(),
            inputs: inputs.clone(),
            outputs: outputs.clone(),
            first,
        })
    }
}
