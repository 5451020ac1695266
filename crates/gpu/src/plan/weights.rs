//! Weights by their place in a graph.

use baton_graph::{ExecError, Graph, WeightId};
use baton_weights::{Tensor, Weight, Weights};

/// The weights of a graph, checked to be there in the right shapes.
pub(crate) struct Resolved<'a> {
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

    pub(crate) fn weight(&self, id: WeightId) -> Result<&Weight, ExecError> {
        Ok(self.weights.get(self.name(id))?)
    }

    pub(crate) fn tensor(&self, id: WeightId) -> Result<&Tensor, ExecError> {
        Ok(self.weights.tensor(self.name(id))?)
    }

    pub(crate) fn optional(&self, id: Option<WeightId>) -> Result<Option<Tensor>, ExecError> {
        id.map(|id| self.tensor(id).cloned()).transpose()
    }

    /// All elements of a small weight as f32; nothing for none.
    pub(crate) fn floats(&self, id: Option<WeightId>) -> Result<Vec<f32>, ExecError> {
        id.map_or(Ok(Vec::new()), |id| Ok(self.tensor(id)?.to_f32()))
    }

    pub(super) fn stored_bytes(&self) -> usize {
        let weights = self.graph.weights().iter();
        weights.filter_map(|spec| self.weights.get(&spec.name).ok()).map(|w| w.stored_bytes()).sum()
    }
}
