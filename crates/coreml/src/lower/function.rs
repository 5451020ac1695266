//! One function of a graph: what the layouts make theirs of.

use std::collections::{BTreeMap, HashMap};
use std::io::{Seek, Write};

use baton_graph::{Graph, Node, Op, ValueId};
use baton_weights::Weights;

use super::weights::Emitter;
use super::{Anatomy, MilLowering, Part, unsupported};
use crate::Result;
use crate::blob::BlobWriter;
use crate::mil::{Arg, DataType, FunctionBuilder, TensorType, Value, Var};

/// A graph's value in a function: `factor` times what the graph says it is, in one piece but for a long
/// vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Lowered {
    pub pieces: Vec<Var>,
    pub factor: f32,
}

/// Where a function finds the keys and values of earlier tokens.
#[derive(Debug)]
pub(crate) enum Cache {
    /// There are none: its tokens are the first, or it has no attention.
    Empty,
    /// In tensors of all layers, `(layers, heads, places, features)`.
    Stacked([Var; 2]),
    /// In a tensor for each layer, `(heads, features, places)` behind a dimension of one.
    Columns(Vec<[Var; 2]>),
    /// In states, which the new ones are written to.
    Held(Held),
}

/// A cache in states of `(layers, heads, places, features)`.
#[derive(Debug)]
pub(crate) struct Held {
    /// The states of keys and of values, which may be the same one.
    pub states: [Var; 2],
    /// Where the keys and the values of the part's first layer are, along the first dimension.
    pub first: [usize; 2],
    /// The place of the first new token, int32 `(1)`.
    pub position: Var,
    /// Places that attention reads.
    pub places: usize,
}

/// How the rows of a head are cut into products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadCut {
    /// At most so many rows each.
    Rows(usize),
    /// So many pieces of the same number of rows, the first ones a row longer if it does not divide.
    Pieces(usize),
}

impl HeadCut {
    /// The rows of each piece.
    pub fn sizes(self, rows: usize) -> Vec<usize> {
        match self {
            HeadCut::Rows(most) => {
                let most = most.max(1);
                (0..rows).step_by(most).map(|start| most.min(rows - start)).collect()
            }
            HeadCut::Pieces(n) => {
                (0..n).map(|i| rows / n + usize::from(i < rows % n)).filter(|&n| n > 0).collect()
            }
        }
    }
}

/// A function that is being made.
pub(crate) struct FunctionLowering<'a, 'e, 'b, W> {
    pub options: &'a MilLowering,
    pub graph: &'a Graph,
    pub anatomy: &'e Anatomy,
    pub part: &'a Part,
    pub emitter: &'e mut Emitter<'a, 'b, W>,
    /// Columns of every value: new tokens, or rows of the head.
    pub columns: usize,
    pub head_cut: HeadCut,
    pub cache: Cache,
    /// Cosines and sines of each rotation that is there, `(1, 1, features of a head, columns)`.
    pub rotations: HashMap<usize, [Var; 2]>,
    /// The mask of each window that is there, `(1, 1, columns, places)`.
    pub masks: HashMap<Option<usize>, Var>,
    pub b: FunctionBuilder,
    pub(super) values: HashMap<ValueId, Lowered>,
    /// What a tensor was before it was reshaped.
    reshaped: HashMap<String, Var>,
    /// What all layers compute alike.
    pub(super) shared: HashMap<String, Var>,
    /// New keys and values by layer, in the form of the cache.
    pub cached: [BTreeMap<usize, Var>; 2],
}

/// The functions of one package: what they share.
pub(crate) struct PartLowering<'a, 'b, W> {
    options: &'a MilLowering,
    graph: &'a Graph,
    pub anatomy: Anatomy,
    part: &'a Part,
    pub emitter: Emitter<'a, 'b, W>,
}

impl<'a, 'b, W: Write + Seek> PartLowering<'a, 'b, W> {
    /// # Errors
    /// If the graph has no such functions, or a weight is missing or of another shape.
    pub fn new(
        options: &'a MilLowering,
        graph: &'a Graph,
        weights: &'a Weights,
        part: &'a Part,
        blobs: &'b mut BlobWriter<W>,
    ) -> Result<PartLowering<'a, 'b, W>> {
        let emitter = Emitter::new(graph, weights, options, blobs)?;
        Ok(PartLowering { options, graph, anatomy: Anatomy::of(graph)?, part, emitter })
    }

    /// A function of so many columns.
    pub fn function(&mut self, columns: usize) -> FunctionLowering<'a, '_, 'b, W> {
        FunctionLowering {
            options: self.options,
            graph: self.graph,
            anatomy: &self.anatomy,
            part: self.part,
            emitter: &mut self.emitter,
            columns,
            head_cut: HeadCut::Rows(self.options.head_piece),
            cache: Cache::Empty,
            rotations: HashMap::new(),
            masks: HashMap::new(),
            b: FunctionBuilder::new(),
            values: HashMap::new(),
            reshaped: HashMap::new(),
            shared: HashMap::new(),
            cached: Default::default(),
        }
    }
}

impl<'a, W: Write + Seek> FunctionLowering<'a, '_, '_, W> {
    /// The embeddings that its part reads, by position.
    pub fn embeddings(&self) -> Vec<usize> {
        let read = |i: &usize| {
            let output = self.anatomy.embeddings[*i].output;
            let first = self.part.enters.is_none();
            first || self.nodes().any(|node| node.inputs.contains(&output))
        };
        (0..self.anatomy.embeddings.len()).filter(read).collect()
    }

    /// The rotations of its part, by position.
    pub fn ropes(&self) -> Vec<usize> {
        let used = |i: &usize| {
            let rope = &self.anatomy.ropes[*i];
            self.nodes().any(|node| matches!(&node.op, Op::Rope(own) if own == rope))
        };
        (0..self.anatomy.ropes.len()).filter(used).collect()
    }

    /// The windows of attention in its part.
    pub fn windows(&self) -> Vec<Option<usize>> {
        let used = |window: &Option<usize>| {
            self.nodes().any(|node| matches!(&node.op, Op::Attention(a) if a.window == *window))
        };
        self.anatomy.windows.iter().copied().filter(used).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = &'a Node> + use<'a, W> {
        let graph: &'a Graph = self.graph;
        graph.nodes()[self.part.nodes.clone()].iter()
    }

    /// Makes `x`, `(1, features, 1, columns)`, the embedding of that position.
    pub fn embed(&mut self, i: usize, x: Var) {
        self.give(self.anatomy.embeddings[i].output, x);
    }

    /// Makes `x` a value of the hidden state's factor.
    fn give(&mut self, id: ValueId, x: Var) {
        let factor = self.residual_factor();
        self.values.insert(id, Lowered { pieces: vec![x], factor });
    }

    /// The features of the hidden state that an earlier part ends with, if this part goes on with one.
    pub fn incoming(&self) -> Option<usize> {
        self.part.enters.map(|value| self.graph.ty(value).features())
    }

    /// Makes `x` that hidden state, or the first embedding of a part that begins with one.
    pub fn enter(&mut self, x: Var) {
        match self.part.enters {
            Some(value) => self.give(value, x),
            None => self.embed(0, x),
        }
    }

    /// Adds the layers of its part. Yields the hidden state that they end with, `(1, features, 1,
    /// columns)`, times the residual factor.
    ///
    /// # Errors
    /// If an operation has no form in MIL.
    pub fn layers(&mut self) -> Result<Var> {
        for i in self.part.nodes.clone() {
            let node = &self.graph.nodes()[i];
            if !self.anatomy.head.contains(&i) && !matches!(node.op, Op::Embedding { .. }) {
                self.node(node)?;
            }
        }
        let hidden = self.whole(self.part.leaves)?;
        let wanted = self.residual_factor() / hidden.factor;
        self.times("hidden", &hidden.pieces[0], wanted)
    }

    /// Adds the head behind a hidden state. Yields the logits in pieces, one below the other.
    ///
    /// # Errors
    /// If an operation has no form in MIL.
    pub fn head(&mut self, hidden: Var) -> Result<Vec<Var>> {
        self.give(self.anatomy.cut, hidden);
        for &i in &self.anatomy.head {
            self.node(&self.graph.nodes()[i])?;
        }
        let logits = self.values[&self.graph.output()].clone();
        let plain = |(i, piece): (usize, &Var)| {
            self.times(&format!("logits_{i}"), piece, 1.0 / logits.factor)
        };
        logits.pieces.iter().enumerate().map(plain).collect()
    }

    /// Inputs for the rotations of its tokens, and for their masks over so many places.
    pub fn tables(&mut self, places: usize) {
        for i in self.ropes() {
            let shape = [1, 1, self.anatomy.ropes[i].head_dim, self.columns];
            let tables = Anatomy::rotation(i).map(|name| self.input(&name, &shape));
            self.rotations.insert(i, tables);
        }
        for window in self.windows() {
            let mask = self.input(&Anatomy::mask(window), &[1, 1, self.columns, places]);
            self.masks.insert(window, mask);
        }
    }

    /// An input of numbers in half precision.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> Var {
        self.b.input(name, TensorType::new(DataType::Float16, shape))
    }

    /// An input of integers.
    pub fn ints(&mut self, name: &str, shape: &[usize]) -> Var {
        self.b.input(name, TensorType::new(DataType::Int32, shape))
    }

    pub fn residual_factor(&self) -> f32 {
        self.options.residual_factor()
    }

    /// A value in one piece.
    pub fn whole(&self, id: ValueId) -> Result<Lowered> {
        let value = &self.values[&id];
        match value.pieces.len() {
            1 => Ok(value.clone()),
            _ => Err(unsupported("an operation behind a long vocabulary")),
        }
    }

    /// A value in one piece, as the graph says it is.
    pub fn plain(&mut self, name: &str, id: ValueId) -> Result<Var> {
        let value = self.whole(id)?;
        self.times(name, &value.pieces[0], 1.0 / value.factor)
    }

    /// `x` times a number, which is left out if it is 1.
    pub fn times(&mut self, name: &str, x: &Var, number: f32) -> Result<Var> {
        if number == 1.0 {
            return Ok(x.clone());
        }
        self.b.op(
            "mul",
            &format!("{name}_scaled"),
            &[("x", x.into()), ("y", Value::f16(number).into())],
        )
    }

    /// `x` as an operation's result of its own under a name, for outputs.
    pub fn named(&mut self, name: &str, x: &Var) -> Result<Var> {
        self.b.op("identity", name, &[("x", x.into())])
    }

    /// An operation of one operand and constants.
    pub fn unary(&mut self, kind: &str, name: &str, x: &Var, rest: &[(&str, Arg)]) -> Result<Var> {
        let mut args = vec![("x", Arg::from(x))];
        args.extend(rest.iter().cloned());
        self.b.op(kind, name, &args)
    }

    /// An operation of two operands.
    pub fn binary(&mut self, kind: &str, name: &str, x: &Var, y: &Var) -> Result<Var> {
        self.b.op(kind, name, &[("x", x.into()), ("y", y.into())])
    }

    /// `x` in another shape. One that comes from a reshape is reshaped from what that began with.
    pub fn reshape(&mut self, name: &str, x: &Var, shape: &[usize]) -> Result<Var> {
        let x = self.reshaped.get(x.name()).unwrap_or(x).clone();
        if x.shape() == shape {
            return Ok(x);
        }
        let out = self.unary("reshape", name, &x, &[("shape", Value::sizes(shape).into())])?;
        self.reshaped.insert(out.name().to_owned(), x);
        Ok(out)
    }

    /// `(a, b, c, d)` as `(a, b, d, c)`.
    pub fn swapped(&mut self, name: &str, x: &Var) -> Result<Var> {
        self.unary("transpose", name, x, &[("perm", Value::ints(&[0, 1, 3, 2]).into())])
    }

    /// Tensors beside each other.
    pub fn concat(&mut self, name: &str, values: &[Var], axis: i32) -> Result<Var> {
        self.b.op(
            "concat",
            name,
            &[("values", values.into()), ("axis", axis.into()), ("interleave", false.into())],
        )
    }

    /// The part of a tensor from `begin` to `end` in each dimension.
    pub fn slice(
        &mut self,
        name: &str,
        x: &Var,
        begin: &[usize; 4],
        end: &[usize; 4],
    ) -> Result<Var> {
        if begin == &[0; 4] && x.shape() == end {
            return Ok(x.clone());
        }
        let mask = || Arg::from(Value::bools(&[false; 4]));
        self.unary(
            "slice_by_index",
            name,
            x,
            &[
                ("begin", Value::sizes(begin).into()),
                ("end", Value::sizes(end).into()),
                ("stride", Value::ints(&[1; 4]).into()),
                ("begin_mask", mask()),
                ("end_mask", mask()),
                ("squeeze_mask", mask()),
            ],
        )
    }

    /// A product of the last two dimensions of two tensors.
    pub fn matmul(&mut self, name: &str, x: &Var, y: &Var, transpose_y: bool) -> Result<Var> {
        self.b.op(
            "matmul",
            name,
            &[
                ("x", x.into()),
                ("y", y.into()),
                ("transpose_x", false.into()),
                ("transpose_y", transpose_y.into()),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::HeadCut;

    #[test]
    fn rows_of_a_head_are_cut_into_pieces_of_a_length_or_of_a_number() {
        assert_eq!(HeadCut::Rows(40).sizes(97), [40, 40, 17]);
        assert_eq!(HeadCut::Rows(0).sizes(2), [1, 1]);
        assert_eq!(HeadCut::Pieces(4).sizes(96), [24; 4]);
        assert_eq!(HeadCut::Pieces(4).sizes(97), [25, 24, 24, 24]);
        assert!(HeadCut::Pieces(3).sizes(0).is_empty());
    }
}
