//! What there is of a model's tensors, here or elsewhere.

use std::ops::Range;

use baton_weights::Tensor;

use crate::Result;
use crate::outline::Outline;
use crate::source::{Source, TensorSummary};

/// A model's files with the outline of what they lack, if they lack anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    pub(crate) source: &'a Source,
    pub(crate) outline: Option<&'a Outline>,
}

/// A tensor, or the shape of one that is elsewhere.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    Here(Tensor),
    Elsewhere { name: String, shape: Vec<usize> },
}

impl Files<'_> {
    /// True if the model has a tensor of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.source.has(name) || self.outline.is_some_and(|outline| outline.get(name).is_some())
    }

    /// Shape of the tensor of that name, if there is one.
    pub(crate) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let outlined = || Some(self.outline?.get(name)?.shape.clone());
        self.source.shape(name).or_else(outlined)
    }

    /// The tensor of that name, or what is known of it.
    pub(crate) fn find(&self, name: &str) -> Result<Found> {
        match self.outline.and_then(|outline| outline.get(name)) {
            Some(TensorSummary { name, shape, .. }) if !self.source.has(name) => {
                Ok(Found::Elsewhere { name: name.clone(), shape: shape.clone() })
            }
            _ => Ok(Found::Here(self.source.tensor(name)?)),
        }
    }

    /// Names of the tensors that belong to layers of the language model.
    pub(crate) fn layer_tensors(&self) -> Vec<&str> {
        let starts = self.source.layer_stems();
        // Old files carry the angles of the rotation, which follow from the config.
        let is_table =
            |name: &str| ["rotary_emb", "attn_rot_embd"].iter().any(|t| name.contains(t));
        let in_layer = |name: &str| starts.iter().any(|start| name.starts_with(start));
        let names = match self.outline {
            Some(outline) => outline.tensors.iter().map(|t| t.name.as_str()).collect(),
            None => self.source.names(),
        };
        names.into_iter().filter(|name| in_layer(name) && !is_table(name)).collect()
    }
}

impl Found {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Found::Here(tensor) => tensor.shape(),
            Found::Elsewhere { shape, .. } => shape,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Found::Here(tensor) => tensor.name(),
            Found::Elsewhere { name, .. } => name,
        }
    }

    /// Some rows of a matrix.
    pub(crate) fn slice_rows(&self, rows: Range<usize>) -> Found {
        match self {
            Found::Here(tensor) => Found::Here(tensor.slice_rows(rows)),
            Found::Elsewhere { name, shape } => {
                let mut shape = shape.clone();
                shape[0] = rows.len();
                Found::Elsewhere { name: name.clone(), shape }
            }
        }
    }
}
