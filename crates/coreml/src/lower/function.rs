//! One function of a graph.

use std::collections::{BTreeMap, HashMap};
use std::io::{Seek, Write};

use baton_graph::{Graph, Node, Op, ValueId};

use super::weights::Emitter;
use super::{Anatomy, MilLowering, Part, unsupported};
use crate::Result;
use crate::mil::{Arg, DataType, Function, FunctionBuilder, TensorType, Value, Var};

/// The input of a chunk that goes on with what an earlier one has come to.
pub(crate) const INCOMING: &str = "incoming";

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Prefill { tokens: usize, history: usize },
    Decode { context: usize },
    Head { rows: usize },
}

/// A graph's value in a function: `factor` times what the graph says it is, in one piece but for a long
/// vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Lowered {
    pub pieces: Vec<Var>,
    pub factor: f32,
}

/// A function that is being made.
pub(super) struct FunctionLowering<'a, 'e, 'b, W> {
    pub options: &'a MilLowering,
    pub graph: &'a Graph,
    pub anatomy: &'a Anatomy,
    pub part: &'a Part,
    pub emitter: &'e mut Emitter<'a, 'b, W>,
    pub kind: Kind,
    pub b: FunctionBuilder,
    pub values: HashMap<ValueId, Lowered>,
    /// What a tensor was before it was reshaped.
    reshaped: HashMap<String, Var>,
    /// Inputs by name, and what all layers compute of them alike.
    pub inputs: HashMap<String, Var>,
    /// New keys and values by layer, `(1, heads, tokens, features)`.
    pub cached: [BTreeMap<usize, Var>; 2],
}

impl<'a, 'e, 'b, W: Write + Seek> FunctionLowering<'a, 'e, 'b, W> {
    pub fn new(
        options: &'a MilLowering,
        graph: &'a Graph,
        anatomy: &'a Anatomy,
        part: &'a Part,
        emitter: &'e mut Emitter<'a, 'b, W>,
        kind: Kind,
    ) -> Self {
        FunctionLowering {
            options,
            graph,
            anatomy,
            part,
            emitter,
            kind,
            b: FunctionBuilder::new(),
            values: HashMap::new(),
            reshaped: HashMap::new(),
            inputs: HashMap::new(),
            cached: Default::default(),
        }
    }

    /// Columns of every value: new tokens, or rows of the head.
    pub fn columns(&self) -> usize {
        match self.kind {
            Kind::Prefill { tokens, .. } => tokens,
            Kind::Decode { .. } => 1,
            Kind::Head { rows } => rows,
        }
    }

    pub fn run(self) -> Result<Function> {
        match self.kind {
            Kind::Head { .. } => self.head(),
            _ => self.layers(),
        }
    }

    fn head(mut self) -> Result<Function> {
        let (hidden, columns) = (self.anatomy.hidden, self.columns());
        let x = self.input("hidden", &[1, hidden, 1, columns]);
        let factor = self.residual_factor();
        self.values.insert(self.anatomy.cut, Lowered { pieces: vec![x], factor });
        for &i in &self.anatomy.head {
            self.node(&self.graph.nodes()[i])?;
        }
        let logits = self.values[&self.graph.output()].clone();
        let mut outputs = Vec::new();
        for (i, piece) in logits.pieces.iter().enumerate() {
            let name = format!("logits_{i}");
            let piece = self.times(&name, piece, 1.0 / logits.factor)?;
            outputs.push(self.named(&name, &piece)?);
        }
        Ok(self.b.finish(&outputs))
    }

    fn layers(mut self) -> Result<Function> {
        self.make_inputs()?;
        for i in self.part.nodes.clone() {
            let node = &self.graph.nodes()[i];
            if !self.anatomy.head.contains(&i) && !matches!(node.op, Op::Embedding { .. }) {
                self.node(node)?;
            }
        }
        let hidden = self.whole(self.part.leaves)?;
        let wanted = self.residual_factor() / hidden.factor;
        let hidden = self.times("hidden", &hidden.pieces[0], wanted)?;
        let mut outputs = vec![self.named("hidden", &hidden)?];
        if let Kind::Prefill { .. } = self.kind {
            for (name, i) in [("keys", 0), ("values", 1)] {
                let layers: Vec<Var> = self.cached[i].values().cloned().collect();
                outputs.extend(match &layers[..] {
                    [] => None,
                    [only] => Some(self.named(name, only)?),
                    _ => Some(self.concat(name, &layers, 0)?),
                });
            }
        }
        Ok(self.b.finish(&outputs))
    }

    fn make_inputs(&mut self) -> Result<()> {
        let columns = self.columns();
        let factor = self.residual_factor();
        let nodes = &self.graph.nodes()[self.part.nodes.clone()];
        for (i, embedding) in self.anatomy.embeddings.iter().enumerate() {
            let first = self.part.enters.is_none();
            if !first && !nodes.iter().any(|node| node.inputs.contains(&embedding.output)) {
                continue;
            }
            let features = self.graph.ty(embedding.output).features();
            let x = self.input(&Anatomy::embedded(i), &[1, features, 1, columns]);
            self.values.insert(embedding.output, Lowered { pieces: vec![x], factor });
        }
        if let Some(value) = self.part.enters {
            let features = self.graph.ty(value).features();
            let x = self.input(INCOMING, &[1, features, 1, columns]);
            self.values.insert(value, Lowered { pieces: vec![x], factor });
        }
        for (i, rope) in self.anatomy.ropes.iter().enumerate() {
            if nodes.iter().any(|node| matches!(&node.op, Op::Rope(own) if own == rope)) {
                for name in Anatomy::rotation(i) {
                    self.input(&name, &[1, 1, rope.head_dim, columns]);
                }
            }
        }
        let Some([_, heads, width]) = self.anatomy.cache else { return Ok(()) };
        let layers = self.part.layers.len();
        let places = match self.kind {
            Kind::Prefill { tokens, history } => history + tokens,
            _ => self.state_shape()[2],
        };
        for &window in &self.anatomy.windows {
            let has = |node: &Node| matches!(&node.op, Op::Attention(a) if a.window == window);
            if !nodes.iter().any(has) {
                continue;
            }
            self.input(&Anatomy::mask(window), &[1, 1, columns, places]);
        }
        match self.kind {
            Kind::Prefill { history: 0, .. } | Kind::Head { .. } => {}
            Kind::Prefill { history, .. } => {
                for name in ["past_keys", "past_values"] {
                    self.input(name, &[layers, heads, history, width]);
                }
            }
            Kind::Decode { .. } => {
                let position = TensorType::new(DataType::Int32, &[1]);
                let position = self.b.input("position", position);
                self.inputs.insert("position".into(), position);
                let ty = TensorType::new(DataType::Float16, &self.state_shape());
                for name in ["key_cache", "value_cache"] {
                    let state = self.b.state(name, ty.clone());
                    self.inputs.insert(name.into(), state);
                }
            }
        }
        Ok(())
    }

    /// The shape of each state, `(layers, heads, places, features)`.
    pub fn state_shape(&self) -> [usize; 4] {
        let [_, heads, width] = self.anatomy.cache.unwrap_or([1, 1, 1]);
        let layers = self.part.layers.len().max(1);
        let context = match self.kind {
            Kind::Decode { context } => context,
            _ => 1,
        };
        match self.options.pad_states {
            true => {
                let [layers, heads, context] =
                    [layers, heads, context].map(usize::next_power_of_two);
                [layers, heads, context, width.next_multiple_of(32)]
            }
            false => [layers, heads, context, width],
        }
    }

    fn input(&mut self, name: &str, shape: &[usize]) -> Var {
        let var = self.b.input(name, TensorType::new(DataType::Float16, shape));
        self.inputs.insert(name.to_owned(), var.clone());
        var
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
    fn named(&mut self, name: &str, x: &Var) -> Result<Var> {
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
