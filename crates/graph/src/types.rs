//! Identifiers, dimensions and types of graph values.

use std::fmt;

/// A value of a graph: an input or the result of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

/// A weight that a graph refers to by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub(crate) u32);

/// A piece of state that outlives a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub(crate) u32);

impl ValueId {
    /// Position in [`Graph::values`](crate::Graph::values).
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl WeightId {
    /// Position in [`Graph::weights`](crate::Graph::weights).
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StateId {
    /// Position in [`Graph::states`](crate::Graph::states).
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One dimension of a value or a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number known when the graph is built.
    Fixed(usize),
    /// New tokens of all sequences in the batch, one after the other.
    Tokens,
    /// The tokens among them whose output somebody asked for.
    Rows,
    /// Tokens that a sequence holds in its cache, the new ones included.
    Context,
}

/// What the elements of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// Real numbers; each unit chooses the precision it computes in.
    Real,
    /// Token ids.
    Token,
}

/// Element type and shape of a value; the last dimension is contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// What the elements are.
    pub elem: Elem,
    /// The dimensions, outermost first.
    pub shape: Vec<Dim>,
}

impl Type {
    /// Real values of shape `(rows, features)`.
    pub fn real(rows: Dim, features: usize) -> Self {
        Type { elem: Elem::Real, shape: vec![rows, Dim::Fixed(features)] }
    }

    /// Length of the last dimension where it is fixed, else 0.
    pub fn features(&self) -> usize {
        match self.shape.last() {
            Some(Dim::Fixed(n)) if self.shape.len() > 1 => *n,
            _ => 0,
        }
    }

    /// The outermost dimension.
    pub fn rows(&self) -> Dim {
        self.shape[0]
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Tokens => f.write_str("T"),
            Dim::Rows => f.write_str("R"),
            Dim::Context => f.write_str("C"),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.elem == Elem::Real { "real" } else { "token" })?;
        let dims: Vec<String> = self.shape.iter().map(Dim::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}
