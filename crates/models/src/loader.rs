//! Finds a model's tensors in a file, checks their shapes and hands them to a graph.

use std::collections::{HashMap, HashSet};

use baton_graph::{GraphBuilder, ValueId, WeightId};
use baton_weights::{Tensor, Weight, Weights};

use crate::arch::Family;
use crate::config::ModelConfig;
use crate::files::{Files, Found};
use crate::names::{self, Names, Slot};
use crate::source::Source;
use crate::{Error, Result};

/// A graph under construction and the weights behind it.
pub(crate) struct Loader<'a> {
    pub(crate) graph: GraphBuilder,
    files: Files<'a>,
    family: &'static Family,
    names: Names,
    weights: Weights,
    /// Tensors that had to be rearranged, by what the graph calls them.
    prepared: HashMap<String, Found>,
    /// Names of the file's tensors that something has read.
    used: HashSet<String>,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(name: &str, files: Files<'a>, family: &'static Family) -> Self {
        Loader {
            graph: GraphBuilder::new(name),
            files,
            family,
            names: family.names(files.source),
            weights: Weights::new(),
            prepared: HashMap::new(),
            used: HashSet::new(),
        }
    }

    pub(crate) fn source(&self) -> &'a Source {
        self.files.source
    }

    /// Name in the file of a slot's tensor, if it is there.
    pub(crate) fn find(&self, slot: Slot, layer: usize, suffix: &str) -> Option<String> {
        let stem = self.names.stem(slot, layer)?;
        let full = self.files.source.qualified(slot, &stem);
        let named = full.iter().map(|stem| format!("{stem}.{suffix}"));
        // Parameters that are no matrix of a layer, such as sinks, have names without a suffix.
        let bare = full.iter().filter(|_| suffix == "weight").cloned();
        named.chain(bare).find(|name| self.files.has(name))
    }

    /// A tensor of the file that is to be rearranged; it counts as used.
    pub(crate) fn take(&mut self, name: &str) -> Result<Tensor> {
        self.used.insert(name.to_owned());
        self.files.source.tensor(name)
    }

    /// As [`Loader::take`], for a tensor that is only passed on.
    fn pass(&mut self, name: &str) -> Result<Found> {
        self.used.insert(name.to_owned());
        self.files.find(name)
    }

    /// Puts a tensor made from others in the place of one of the file.
    pub(crate) fn prepare(&mut self, slot: Slot, layer: usize, suffix: &str, tensor: Tensor) {
        self.put(slot, layer, suffix, Found::Here(tensor));
    }

    fn put(&mut self, slot: Slot, layer: usize, suffix: &str, found: Found) {
        self.prepared.insert(format!("{}.{suffix}", names::canonical(slot, layer)), found);
    }

    /// The weight of a slot.
    pub(crate) fn weight(&mut self, slot: Slot, layer: usize, shape: &[usize]) -> Result<WeightId> {
        match self.optional(slot, layer, "weight", shape)? {
            Some(id) => Ok(id),
            None => Err(self.missing(slot, layer)),
        }
    }

    /// The offset of a slot, if the model has one there.
    pub(crate) fn bias(
        &mut self,
        slot: Slot,
        layer: usize,
        shape: &[usize],
    ) -> Result<Option<WeightId>> {
        self.optional(slot, layer, "bias", shape)
    }

    fn optional(
        &mut self,
        slot: Slot,
        layer: usize,
        suffix: &str,
        shape: &[usize],
    ) -> Result<Option<WeightId>> {
        let canonical = format!("{}.{suffix}", names::canonical(slot, layer));
        let found = match self.prepared.remove(&canonical) {
            Some(found) => found,
            None => {
                let Some(name) = self.find(slot, layer, suffix) else { return Ok(None) };
                self.pass(&name)?
            }
        };
        check_shape(&found, shape)?;
        if let Found::Here(tensor) = found {
            self.weights.insert(&canonical, Weight::One(tensor));
        }
        Ok(Some(self.graph.weight(&canonical, shape)))
    }

    /// The rows of a slot's matrix, if the model has one there.
    pub(crate) fn rows(&self, slot: Slot, layer: usize) -> Option<usize> {
        let shape = self.files.shape(&self.find(slot, layer, "weight")?)?;
        shape.first().copied()
    }

    /// A weight that does not come out of the table of names.
    pub(crate) fn given(
        &mut self,
        canonical: &str,
        shape: &[usize],
        tensor: Tensor,
    ) -> Result<WeightId> {
        let found = Found::Here(tensor.clone());
        check_shape(&found, shape)?;
        self.weights.insert(canonical, Weight::One(tensor));
        Ok(self.graph.weight(canonical, shape))
    }

    fn missing(&self, slot: Slot, layer: usize) -> Error {
        let stem = self.names.stem(slot, layer).unwrap_or_else(|| names::canonical(slot, layer));
        let mut qualified = self.files.source.qualified(slot, &stem);
        let name = format!("{}.weight", qualified.swap_remove(0));
        // The file may hold it in a form that is not read, and say which.
        match self.files.find(&name) {
            Err(error) => error,
            Ok(_) => baton_weights::Error::MissingTensor { name }.into(),
        }
    }

    /// Products of `x` with several matrices of `cols` columns, which the file may keep as one.
    fn projections<const N: usize>(
        &mut self,
        x: ValueId,
        layer: usize,
        slots: [(Slot, usize); N],
        fused: Slot,
        cols: usize,
    ) -> Result<[ValueId; N]> {
        let whole = match self.find(slots[0].0, layer, "weight") {
            Some(_) => None,
            None => self.find(fused, layer, "weight"),
        };
        if let Some(name) = whole {
            let whole = self.pass(&name)?;
            let rows: usize = slots.iter().map(|(_, rows)| rows).sum();
            check_shape(&whole, &[rows, cols])?;
            let mut start = 0;
            for (slot, rows) in slots {
                self.put(slot, layer, "weight", whole.slice_rows(start..start + rows));
                start += rows;
            }
        }
        let mut values = [x; N];
        for (value, (slot, rows)) in values.iter_mut().zip(slots) {
            *value = self.linear(x, slot, layer, rows, cols)?;
        }
        Ok(values)
    }

    /// Queries, keys and values of `x` in an attention layer.
    pub(crate) fn queries_keys_values(
        &mut self,
        x: ValueId,
        layer: usize,
        config: &ModelConfig,
    ) -> Result<[ValueId; 3]> {
        let &ModelConfig { heads, kv_heads, head_dim, hidden, .. } = config;
        let slots = [
            (Slot::AttnQ, heads * head_dim),
            (Slot::AttnK, kv_heads * head_dim),
            (Slot::AttnV, kv_heads * head_dim),
        ];
        self.projections(x, layer, slots, Slot::AttnQkv, hidden)
    }

    /// The two projections of `x` in a gated feed-forward layer.
    pub(crate) fn gate_and_up(
        &mut self,
        x: ValueId,
        layer: usize,
        config: &ModelConfig,
    ) -> Result<[ValueId; 2]> {
        let slots = [(Slot::FfnGate, config.ffn), (Slot::FfnUp, config.ffn)];
        self.projections(x, layer, slots, Slot::FfnGateUp, config.hidden)
    }

    /// Product of `x` with the matrix of a slot, and its offset if there is one.
    pub(crate) fn linear(
        &mut self,
        x: ValueId,
        slot: Slot,
        layer: usize,
        rows: usize,
        cols: usize,
    ) -> Result<ValueId> {
        let weight = self.weight(slot, layer, &[rows, cols])?;
        let bias = self.bias(slot, layer, &[rows])?;
        Ok(self.graph.linear(&names::canonical(slot, layer), x, weight, bias)?)
    }

    /// The matrices of all experts of a layer, `shape` being `(experts, out, in)`. Checkpoints
    /// keep each expert apart, as `…mlp.experts.N.gate_proj.weight`.
    pub(crate) fn experts(
        &mut self,
        slot: Slot,
        layer: usize,
        shape: [usize; 3],
    ) -> Result<WeightId> {
        if let Some(id) = self.optional(slot, layer, "weight", &shape)? {
            return Ok(id);
        }
        let kind = match slot {
            Slot::ExpertsGate => "gate_proj",
            Slot::ExpertsUp => "up_proj",
            _ => "down_proj",
        };
        let mut parts = Vec::new();
        for expert in 0..shape[0] {
            let stem = format!("layers.{layer}.mlp.experts.{expert}.{kind}");
            let name =
                format!("{}.weight", self.files.source.qualified(slot, &stem).swap_remove(0));
            if !self.files.has(&name) {
                return Err(match expert {
                    0 => self.missing(slot, layer),
                    _ => baton_weights::Error::MissingTensor { name }.into(),
                });
            }
            let found = self.pass(&name)?;
            check_shape(&found, &shape[1..])?;
            if let Found::Here(tensor) = found {
                parts.push(tensor);
            }
        }
        let canonical = format!("{}.weight", names::canonical(slot, layer));
        if parts.len() == shape[0] {
            self.weights.insert(&canonical, Weight::Stack(parts));
        }
        Ok(self.graph.weight(&canonical, &shape))
    }

    /// The offsets of all experts of a layer.
    pub(crate) fn expert_bias(
        &mut self,
        slot: Slot,
        layer: usize,
        shape: [usize; 2],
    ) -> Result<WeightId> {
        let name = || format!("{}.bias", names::canonical(slot, layer));
        let missing = || baton_weights::Error::MissingTensor { name: name() };
        self.bias(slot, layer, &shape)?.ok_or_else(|| missing().into())
    }

    /// The finished parts.
    ///
    /// A tensor of a layer that nothing has read means that the architecture here is not quite the
    /// model's: that is an error, for the answers would be wrong without a sign of it.
    pub(crate) fn finish(self, output: ValueId) -> Result<(baton_graph::Graph, Weights)> {
        let mut tensors = self.files.layer_tensors().into_iter();
        let unused = tensors.find(|name| !self.used.contains(*name));
        if let Some(name) = unused {
            let architecture = self.family.name;
            return Err(Error::UnusedTensor { name: name.to_owned(), architecture });
        }
        Ok((self.graph.finish(output)?, self.weights))
    }
}

fn check_shape(found: &Found, expected: &[usize]) -> Result<()> {
    if found.shape() == expected {
        return Ok(());
    }
    let (name, found) = (found.name().to_owned(), found.shape().to_vec());
    Err(Error::TensorShape { name, found, expected: expected.to_vec() })
}
