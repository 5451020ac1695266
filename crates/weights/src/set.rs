//! The weights of one model under the names its graph uses.

use std::collections::HashMap;

use crate::{Error, Result, Tensor};

/// What stands behind one weight name of a graph.
#[derive(Clone, Debug)]
pub enum Weight {
    /// One tensor, of any number of dimensions.
    One(Tensor),
    /// Equal-shaped tensors that together stand for one with a further outermost dimension, as
    /// when a checkpoint stores each expert apart.
    Stack(Vec<Tensor>),
}

impl Weight {
    /// Shape, with the stack as outermost dimension.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Weight::One(t) => t.shape().to_vec(),
            Weight::Stack(parts) => {
                let inner = parts.first().map_or(&[][..], |t| t.shape());
                std::iter::once(parts.len()).chain(inner.iter().copied()).collect()
            }
        }
    }

    /// Element `i` along the outermost dimension, without copying.
    ///
    /// # Panics
    /// If `i` is out of bounds.
    pub fn index(&self, i: usize) -> Tensor {
        match self {
            Weight::One(t) => t.index(i),
            Weight::Stack(parts) => parts[i].clone(),
        }
    }

    /// Bytes in the file.
    pub fn stored_bytes(&self) -> usize {
        match self {
            Weight::One(t) => t.stored_bytes(),
            Weight::Stack(parts) => parts.iter().map(Tensor::stored_bytes).sum(),
        }
    }
}

/// All weights of a model, by the names that its graph uses.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    by_name: HashMap<String, Weight>,
}

impl Weights {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a weight; an older one of that name is replaced.
    pub fn insert(&mut self, name: impl Into<String>, weight: Weight) {
        self.by_name.insert(name.into(), weight);
    }

    /// The weight of that name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] if there is none.
    pub fn get(&self, name: &str) -> Result<&Weight> {
        self.by_name.get(name).ok_or_else(|| Error::MissingTensor { name: name.to_owned() })
    }

    /// The weight of that name as a single tensor.
    ///
    /// # Errors
    /// If there is none, or it is a stack.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        match self.get(name)? {
            Weight::One(t) => Ok(t),
            Weight::Stack(_) => {
                let problem = "is a stack where one tensor is wanted".to_owned();
                Err(Error::Tensor { name: name.to_owned(), problem })
            }
        }
    }

    /// All weights, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Weight)> {
        self.by_name.iter().map(|(name, weight)| (name.as_str(), weight))
    }

    /// Bytes of all weights in their files.
    pub fn stored_bytes(&self) -> usize {
        self.by_name.values().map(Weight::stored_bytes).sum()
    }

    /// The part of [`Weights::stored_bytes`] that is quantized.
    pub fn quantized_bytes(&self) -> usize {
        let tensors = self.by_name.values().flat_map(|weight| match weight {
            Weight::One(tensor) => std::slice::from_ref(tensor),
            Weight::Stack(parts) => parts,
        });
        tensors.filter(|t| !t.dtype().is_float()).map(Tensor::stored_bytes).sum()
    }
}
