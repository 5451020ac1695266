//! Weights as kernels want them.

use baton_graph::{ExecError, Graph, WeightId};
use baton_weights::{Tensor, Weights};

use super::unsupported;
use crate::matmul::{Matrix, MatrixError};

/// The weights of a graph, checked to be there in the right shapes.
pub(super) struct Resolved<'a> {
    graph: &'a Graph,
    weights: &'a Weights,
}

impl<'a> Resolved<'a> {
    pub(super) fn new(graph: &'a Graph, weights: &'a Weights) -> Result<Self, ExecError> {
        graph.check_weights(weights)?;
        Ok(Resolved { graph, weights })
    }

    fn name(&self, id: WeightId) -> &str {
        &self.graph.weights()[id.index()].name
    }

    pub(super) fn tensor(&self, id: WeightId) -> Result<&Tensor, ExecError> {
        Ok(self.weights.tensor(self.name(id))?)
    }

    pub(super) fn matrix(&self, id: WeightId) -> Result<Matrix, ExecError> {
        matrix(self.tensor(id)?.clone())
    }

    /// The matrices of a stack.
    pub(super) fn stack(&self, id: WeightId) -> Result<Vec<Matrix>, ExecError> {
        let weight = self.weights.get(self.name(id))?;
        (0..weight.shape()[0]).map(|i| matrix(weight.index(i))).collect()
    }

    /// All elements of a small weight as f32; nothing for none.
    pub(super) fn floats(&self, id: Option<WeightId>) -> Result<Vec<f32>, ExecError> {
        id.map_or(Ok(Vec::new()), |id| Ok(self.tensor(id)?.to_f32()))
    }

    pub(super) fn stored_bytes(&self) -> usize {
        let weights = self.graph.weights().iter();
        weights.filter_map(|spec| self.weights.get(&spec.name).ok()).map(|w| w.stored_bytes()).sum()
    }
}

fn matrix(tensor: Tensor) -> Result<Matrix, ExecError> {
    Matrix::new(tensor).map_err(|error| match error {
        MatrixError::Type { name, dtype } => unsupported(
            format!("weight {name:?} of type {dtype}"),
            "convert the model to a type such as Q4_K or Q8_0",
        ),
        other => ExecError::Invalid(other.to_string()),
    })
}
