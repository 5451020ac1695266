//! Models that are nothing but a shape: random weights in memory, of the types that a published
//! file of that model would have. They answer nonsense at the speed of the real one.
//!
//! ```text
//! shapes.toml   the shapes
//! layout        the tensors of a shape, and the metadata of its file
//! recipe        which type each tensor has
//! fill          random blocks of a type
//! ```

mod fill;
mod layout;
mod recipe;

use std::collections::BTreeMap;
use std::str::FromStr;

use baton_weights::{DType, GgufFile, Tensor};
use bytes::Bytes;
use serde::Deserialize;

use crate::{Model, Result, Source};
use layout::{Layout, Planned};
use recipe::{RECIPES, Recipe};

const SHAPES: &str = include_str!("shape/shapes.toml");

/// A shape and the recipe for its types, as `--shape` names them: `llama-3.1-8b:q4_k_m`.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    name: String,
    shape: Shape,
    recipe: &'static Recipe,
}

/// The numbers of a model's config.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    architecture: String,
    layers: usize,
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    context: usize,
    rope_theta: f32,
    window: Option<usize>,
    tied: bool,
    experts: Option<Experts>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Experts {
    count: usize,
    used: usize,
    ffn: usize,
}

/// What a shape needs of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The weights, as the kernels keep them.
    pub weights: u64,
    /// The random bytes that they are made from.
    pub source: u64,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, recipe) = text.split_once(':').unwrap_or((text, "q4_k_m"));
        let mut shapes = shapes();
        let Some(shape) = shapes.remove(&name.to_lowercase()) else {
            let names: Vec<String> = shapes.into_keys().collect();
            return Err(format!("no shape is called {name:?}; there are {}", names.join(", ")));
        };
        let Some(recipe) = RECIPES.iter().find(|r| r.name == recipe.to_lowercase()) else {
            let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
            return Err(format!("no type is called {recipe:?}; there are {}", names.join(", ")));
        };
        Ok(Wanted { name: name.to_lowercase(), shape, recipe })
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.recipe.name)
    }
}

impl Wanted {
    /// What it needs of memory.
    pub fn need(&self) -> Need {
        let tensors = Layout::of(&self.shape, self.recipe).tensors;
        let weights = tensors.iter().map(Planned::bytes).sum();
        let source = pools(&tensors).values().map(|&bytes| bytes as u64).sum();
        Need { weights, source }
    }

    /// Makes it.
    ///
    /// # Errors
    /// If the shape is none of a model that can be built.
    pub fn make(&self) -> Result<Model> {
        let Layout { metadata, tensors } = Layout::of(&self.shape, self.recipe);
        let mut random = Random(self.shape.layers as u64);
        let mut sources: BTreeMap<String, Bytes> = BTreeMap::new();
        for (dtype, bytes) in pools(&tensors) {
            let blocks = fill::blocks(dtype_of(&tensors, &dtype), bytes, &mut random);
            sources.insert(dtype, blocks.into());
        }
        let made: std::result::Result<Vec<Tensor>, baton_weights::Error> = tensors
            .iter()
            .map(|planned| {
                let bytes = planned.bytes() as usize;
                let data = match sources.get(&planned.dtype.to_string()) {
                    Some(source) if planned.shares() => source.slice(..bytes),
                    // Kernels read floats where they lie, so that each needs memory of its own.
                    _ => fill::blocks(planned.dtype, bytes, &mut random).into(),
                };
                Tensor::new(planned.name.as_str(), planned.dtype, &planned.shape, data)
            })
            .collect();
        let file = GgufFile::from_tensors(metadata, made?)?;
        Model::from_source(Source::Gguf(file))
    }
}

/// SplitMix64: plenty for tokens and weights that only have to look like some.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// For each type whose tensors share their bytes, as many as the largest of them needs. The kernels
/// sort quantized weights anew into memory of their own, so that sharing does not make them faster.
fn pools(tensors: &[Planned]) -> BTreeMap<String, usize> {
    let mut pools = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.shares()) {
        let most = pools.entry(tensor.dtype.to_string()).or_insert(0);
        *most = tensor.bytes().max(*most as u64) as usize;
    }
    pools
}

fn dtype_of(tensors: &[Planned], name: &str) -> DType {
    let mut types = tensors.iter().map(|tensor| tensor.dtype);
    types.find(|dtype| dtype.to_string() == name).unwrap_or(DType::F32)
}

fn shapes() -> BTreeMap<String, Shape> {
    toml::from_str(SHAPES).expect("the table of shapes is part of this program and tested")
}

#[cfg(test)]
mod tests;
