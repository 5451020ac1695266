//! A graph: nodes in execution order over typed values.

use baton_weights::Weights;

use crate::{
    Attention, Dim, ExecError, GraphError, KvType, Limits, Lookup, Op, Scope, Type, ValueId, infer,
};

/// A value: the token input or the result of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name, unique in the graph; a node's result has the node's name.
    pub name: String,
    /// Element type and shape.
    pub ty: Type,
}

/// One operation applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name such as `blk.3.attn_q`.
    pub name: String,
    /// What is computed.
    pub op: Op,
    /// The operands, in the order that the operation documents.
    pub inputs: Vec<ValueId>,
    /// The result.
    pub output: ValueId,
}

/// A weight that the graph refers to.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// Name in the model's [`Weights`](baton_weights::Weights).
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
}

/// State that a sequence carries from one forward pass to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateSpec {
    /// Keys and values of one attention layer, each `(kv_heads, Context, head_dim)`, keys after
    /// rotation.
    Kv {
        /// Key-value heads.
        kv_heads: usize,
        /// Features of one head.
        head_dim: usize,
        /// Positions that are ever read again, if bounded.
        window: Option<usize>,
    },
}

impl StateSpec {
    /// Shape of each of its tensors.
    pub fn shape(&self) -> [Dim; 3] {
        match self {
            StateSpec::Kv { kv_heads, head_dim, .. } => {
                [Dim::Fixed(*kv_heads), Dim::Context, Dim::Fixed(*head_dim)]
            }
        }
    }
}

/// A model's computation for one forward pass over a ragged batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: Vec<Value>,
    pub(crate) weights: Vec<WeightSpec>,
    pub(crate) states: Vec<StateSpec>,
    pub(crate) tokens: ValueId,
    pub(crate) output: ValueId,
}

impl Graph {
    /// The model's name, for dumps.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Identifies the model whose KV cache this graph writes; see [`KvBlock`](crate::KvBlock).
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// The nodes, in an order in which every operand comes before its use.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All values.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// All weights.
    pub fn weights(&self) -> &[WeightSpec] {
        &self.weights
    }

    /// All state of one sequence.
    pub fn states(&self) -> &[StateSpec] {
        &self.states
    }

    /// The token input, `token[T]`.
    pub fn tokens(&self) -> ValueId {
        self.tokens
    }

    /// The result: logits, `real[T, vocab]`, or `real[R, vocab]` once rows are selected. In
    /// embedding models vectors, `real[R, width]`.
    pub fn output(&self) -> ValueId {
        self.output
    }

    /// Length of a row of the output.
    pub fn vocab(&self) -> usize {
        self.ty(self.output).features()
    }

    /// Rows of the embedding table, which bound the token ids.
    pub fn input_vocab(&self) -> usize {
        let rows = |op: &Op| match op {
            Op::Embedding { table, lookup: Lookup::Token, .. } => {
                Some(self.weights[table.index()].shape[0])
            }
            _ => None,
        };
        self.nodes.iter().filter_map(|node| rows(&node.op)).min().unwrap_or(usize::MAX)
    }

    /// Whether tokens see what comes after them: a span must then be a whole text, and sequences
    /// cannot be continued.
    pub fn needs_whole_texts(&self) -> bool {
        let both_ways = |op: &Op| matches!(op, Op::Attention(Attention { scope: Scope::Text, .. }));
        self.nodes.iter().any(|node| both_ways(&node.op))
    }

    /// Most positions of a sequence, where they are embedded by a matrix.
    pub fn positions(&self) -> Option<usize> {
        let rows = |op: &Op| match op {
            Op::Embedding { table, lookup: Lookup::Position, .. } => {
                Some(self.weights[table.index()].shape[0])
            }
            _ => None,
        };
        self.nodes.iter().filter_map(|node| rows(&node.op)).min()
    }

    /// Checks what every unit must check before it compiles the graph for `limits`.
    ///
    /// # Errors
    /// If the context is longer than there are positions.
    pub fn check_limits(&self, limits: &Limits) -> Result<(), ExecError> {
        match self.positions().filter(|&positions| limits.context > positions) {
            None => Ok(()),
            Some(positions) => Err(ExecError::Invalid(format!(
                "a context of {} tokens; the model has embeddings for {positions} positions",
                limits.context
            ))),
        }
    }

    /// Checks what every unit must check of a model's weights: that all are there in their shapes.
    ///
    /// # Errors
    /// The first that is missing or has another shape, or none at all.
    pub fn check_weights(&self, weights: &Weights) -> Result<(), ExecError> {
        for spec in &self.weights {
            let found = weights.get(&spec.name)?.shape();
            if found != spec.shape {
                let (name, expected) = (spec.name.clone(), spec.shape.clone());
                return Err(ExecError::WeightShape { name, found, expected });
            }
            if found.contains(&0) {
                let text = format!("weight {:?} has a dimension of 0: {found:?}", spec.name);
                return Err(ExecError::Invalid(text));
            }
        }
        Ok(())
    }

    /// A value's type.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.values[value.index()].ty
    }

    /// Bytes of keys and values, kept as `kind`, that one token occupies over all layers.
    pub fn kv_bytes_per_token(&self, kind: KvType) -> usize {
        self.states
            .iter()
            .map(|&StateSpec::Kv { kv_heads, head_dim, .. }| 2 * kv_heads * kind.bytes(head_dim))
            .sum()
    }

    /// Replaces the nodes: values nobody names any more are dropped, all types are inferred again.
    ///
    /// # Errors
    /// If an operand does not come before its use or types do not fit; the graph is then unusable.
    pub(crate) fn rebuild(&mut self, nodes: Vec<Node>) -> Result<(), GraphError> {
        let mut renamed: Vec<Option<ValueId>> = vec![None; self.values.len()];
        let mut values = vec![self.values[self.tokens.index()].clone()];
        renamed[self.tokens.index()] = Some(ValueId(0));
        self.nodes.clear();
        for mut node in nodes {
            for input in &mut node.inputs {
                *input = renamed[input.index()]
                    .ok_or_else(|| GraphError::new(&node.name, "uses a value before it exists"))?;
            }
            let types: Vec<&Type> = node.inputs.iter().map(|i| &values[i.index()].ty).collect();
            let ty = infer::result_type(&node.name, &node.op, &types, &self.weights, &self.states)?;
            let id = ValueId(values.len() as u32);
            renamed[node.output.index()] = Some(id);
            node.output = id;
            values.push(Value { name: node.name.clone(), ty });
            self.nodes.push(node);
        }
        self.output = renamed[self.output.index()]
            .ok_or_else(|| GraphError::new("output", "is no longer computed"))?;
        self.tokens = ValueId(0);
        self.values = values;
        Ok(())
    }

    /// A fresh value for a node that a pass adds; its type is filled in by [`Graph::rebuild`].
    pub(crate) fn new_value(&mut self, name: &str) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        let ty = Type::real(Dim::Tokens, 0);
        self.values.push(Value { name: name.to_owned(), ty });
        id
    }

    /// For each value the nodes (by position) that read it.
    pub(crate) fn uses(&self) -> Vec<Vec<usize>> {
        let mut uses = vec![Vec::new(); self.values.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for input in &node.inputs {
                uses[input.index()].push(at);
            }
        }
        uses
    }

    /// For each value the node (by position) that computes it.
    pub(crate) fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            producers[node.output.index()] = Some(at);
        }
        producers
    }
}
