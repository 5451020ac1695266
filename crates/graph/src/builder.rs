//! Building a graph node by node, with shapes checked at each step.

use std::collections::HashMap;

use crate::{
    Activation, Attention, Dim, Elem, Gate, Graph, GraphError, Linear, LinearPart, Lookup, Moe,
    Node, Op, Pooling, RmsNorm, Rope, StateId, StateSpec, Type, Value, ValueId, WeightId,
    WeightSpec, infer,
};

/// Builds a [`Graph`]. Every method checks its operands and names the node in its error.
///
/// ```
/// use baton_graph::GraphBuilder;
///
/// let mut b = GraphBuilder::new("tiny");
/// let table = b.weight("embed", &[100, 16]);
/// let hidden = b.embedding("embed", table, 1.0)?;
/// let logits = b.linear("head", hidden, table, None)?;
/// let graph = b.finish(logits)?;
/// assert_eq!(graph.vocab(), 100);
/// # Ok::<(), baton_graph::GraphError>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    name: String,
    fingerprint: [u8; 32],
    nodes: Vec<Node>,
    values: Vec<Value>,
    weights: Vec<WeightSpec>,
    weight_ids: HashMap<String, WeightId>,
    states: Vec<StateSpec>,
}

impl GraphBuilder {
    /// An empty graph with its token input.
    pub fn new(name: impl Into<String>) -> Self {
        let ty = Type { elem: Elem::Token, shape: vec![Dim::Tokens] };
        GraphBuilder {
            name: name.into(),
            fingerprint: [0; 32],
            nodes: Vec::new(),
            values: vec![Value { name: "tokens".into(), ty }],
            weights: Vec::new(),
            weight_ids: HashMap::new(),
            states: Vec::new(),
        }
    }

    /// Sets the model's fingerprint, see [`Graph::fingerprint`].
    pub fn fingerprint(&mut self, fingerprint: [u8; 32]) {
        self.fingerprint = fingerprint;
    }

    /// The token input.
    pub fn tokens(&self) -> ValueId {
        ValueId(0)
    }

    /// Type of a value built so far.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.values[value.index()].ty
    }

    /// Refers to a weight. The same name gives the same id, so that tied weights stay one.
    ///
    /// # Panics
    /// If the name was used with another shape before.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> WeightId {
        if let Some(&id) = self.weight_ids.get(name) {
            assert_eq!(self.weights[id.index()].shape, shape, "weight {name} has two shapes");
            return id;
        }
        let id = WeightId(self.weights.len() as u32);
        self.weights.push(WeightSpec { name: name.to_owned(), shape: shape.to_vec() });
        self.weight_ids.insert(name.to_owned(), id);
        id
    }

    /// Adds the KV cache of one layer.
    pub fn kv_state(&mut self, kv_heads: usize, head_dim: usize, window: Option<usize>) -> StateId {
        let id = StateId(self.states.len() as u32);
        self.states.push(StateSpec::Kv { kv_heads, head_dim, window });
        id
    }

    /// Adds any operation.
    ///
    /// # Errors
    /// If the operands do not fit it.
    pub fn push(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let types: Vec<&Type> = inputs.iter().map(|i| &self.values[i.index()].ty).collect();
        let ty = infer::result_type(name, &op, &types, &self.weights, &self.states)?;
        let output = ValueId(self.values.len() as u32);
        self.values.push(Value { name: name.to_owned(), ty });
        self.nodes.push(Node { name: name.to_owned(), op, inputs: inputs.to_vec(), output });
        Ok(output)
    }

    /// [`Op::Embedding`] of the tokens' ids.
    ///
    /// # Errors
    /// As [`GraphBuilder::push`]; so for all that follow.
    pub fn embedding(
        &mut self,
        name: &str,
        table: WeightId,
        scale: f32,
    ) -> Result<ValueId, GraphError> {
        self.push(name, Op::Embedding { table, scale, lookup: Lookup::Token }, &[ValueId(0)])
    }

    /// [`Op::Embedding`] of the tokens by something else than their ids.
    pub fn lookup(
        &mut self,
        name: &str,
        table: WeightId,
        lookup: Lookup,
    ) -> Result<ValueId, GraphError> {
        self.push(name, Op::Embedding { table, scale: 1.0, lookup }, &[ValueId(0)])
    }

    /// [`Op::LayerNorm`].
    pub fn layer_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        eps: f32,
    ) -> Result<ValueId, GraphError> {
        self.push(name, Op::LayerNorm { weight, bias, eps }, &[x])
    }

    /// [`Op::Pool`].
    pub fn pool(&mut self, name: &str, x: ValueId, how: Pooling) -> Result<ValueId, GraphError> {
        self.push(name, Op::Pool(how), &[x])
    }

    /// Rows of length 1: a root-mean-square norm without gain, and a factor. A row of zeros stays.
    pub fn normalize(&mut self, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let group = self.ty(x).features();
        let norm = RmsNorm { weight: None, weight_offset: 0.0, eps: f32::MIN_POSITIVE, group };
        let x = self.rms_norm(&format!("{name}.rms"), x, norm)?;
        self.scale(name, x, (group as f32).powf(-0.5))
    }

    /// [`Op::RmsNorm`].
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: ValueId,
        norm: RmsNorm,
    ) -> Result<ValueId, GraphError> {
        self.push(name, Op::RmsNorm(norm), &[x])
    }

    /// [`Op::Linear`] with one matrix.
    pub fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Result<ValueId, GraphError> {
        let linear = Linear { parts: vec![LinearPart { weight, bias }] };
        self.push(name, Op::Linear(linear), &[x])
    }

    /// [`Op::Rope`].
    pub fn rope(&mut self, name: &str, x: ValueId, rope: Rope) -> Result<ValueId, GraphError> {
        self.push(name, Op::Rope(rope), &[x])
    }

    /// [`Op::Attention`].
    pub fn attention(
        &mut self,
        name: &str,
        [q, k, v]: [ValueId; 3],
        attention: Attention,
    ) -> Result<ValueId, GraphError> {
        self.push(name, Op::Attention(attention), &[q, k, v])
    }

    /// [`Op::Add`].
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.push(name, Op::Add, &[a, b])
    }

    /// [`Op::Mul`].
    pub fn mul(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.push(name, Op::Mul, &[a, b])
    }

    /// [`Op::Scale`].
    pub fn scale(&mut self, name: &str, x: ValueId, by: f32) -> Result<ValueId, GraphError> {
        self.push(name, Op::Scale(by), &[x])
    }

    /// [`Op::Activation`].
    pub fn activation(
        &mut self,
        name: &str,
        x: ValueId,
        activation: Activation,
    ) -> Result<ValueId, GraphError> {
        self.push(name, Op::Activation(activation), &[x])
    }

    /// [`Op::GatedActivation`] of separate gate and up.
    pub fn gated(
        &mut self,
        name: &str,
        gate: ValueId,
        up: ValueId,
        kind: Gate,
    ) -> Result<ValueId, GraphError> {
        self.push(name, Op::GatedActivation(kind), &[gate, up])
    }

    /// [`Op::Softcap`].
    pub fn softcap(&mut self, name: &str, x: ValueId, cap: f32) -> Result<ValueId, GraphError> {
        self.push(name, Op::Softcap(cap), &[x])
    }

    /// [`Op::Moe`].
    pub fn moe(&mut self, name: &str, x: ValueId, moe: Moe) -> Result<ValueId, GraphError> {
        self.push(name, Op::Moe(moe), &[x])
    }

    /// The finished graph, whose result is `output`.
    ///
    /// # Errors
    /// If the output is neither `real[T, n]` nor `real[R, n]`, or a node's name occurs twice.
    pub fn finish(self, output: ValueId) -> Result<Graph, GraphError> {
        let ty = self.ty(output);
        if !matches!(ty.rows(), Dim::Tokens | Dim::Rows) || ty.features() == 0 {
            return Err(GraphError::new("output", format!("is {ty}, not rows of features")));
        }
        let mut names: Vec<&str> = self.nodes.iter().map(|n| n.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(GraphError::new(pair[0], "the name occurs twice"));
        }
        Ok(Graph {
            name: self.name,
            fingerprint: self.fingerprint,
            nodes: self.nodes,
            values: self.values,
            weights: self.weights,
            states: self.states,
            tokens: ValueId(0),
            output,
        })
    }
}
