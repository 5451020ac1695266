//! The reference interpreter: runs a graph node by node in f32, slow and obviously right.
//!
//! It defines what every unit must compute. Weights are dequantized as they are read, the KV cache
//! is a plain list per sequence, and nothing is fused, paged, or rounded below f32.

mod attention;
mod linear;
mod moe;
mod pointwise;

use std::collections::HashMap;
use std::ops::Range;

use baton_weights::Weights;
use half::f16;

use crate::{
    Batch, Dim, ExecError, Executor, Graph, KvBlock, KvType, Limits, Logits, Lookup, Node, Op,
    Rows, SeqId, StateSpec, Unit, Usage, ValueId, WeightId,
};

/// What is shown of a run: each node with its operands and its result, row-major, in the order of the
/// graph. The tokens themselves are left out of the operands.
pub type Observer<'a> = dyn FnMut(&Node, &[&[f32]], &[f32]) + 'a;

/// The unit that interprets graphs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Unit for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        Ok(Box::new(Interpreter::new(graph, weights, limits)?))
    }
}

/// Rows of f32, `(rows, cols)`.
#[derive(Clone, Debug, Default)]
struct Matrix {
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    fn zeros(rows: usize, cols: usize) -> Self {
        Matrix { cols, data: vec![0.0; rows * cols] }
    }

    fn rows(&self) -> usize {
        self.data.len() / self.cols.max(1)
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    fn map(&self, f: impl Fn(f32) -> f32) -> Matrix {
        Matrix { cols: self.cols, data: self.data.iter().map(|&x| f(x)).collect() }
    }
}

/// Keys and values of one layer and sequence, a row of `kv_heads * head_dim` for each token.
#[derive(Clone, Debug)]
struct LayerCache {
    keys: Matrix,
    values: Matrix,
}

/// What is held of one sequence.
#[derive(Clone, Debug)]
struct Sequence {
    len: usize,
    /// Of each state of the graph.
    layers: Vec<LayerCache>,
}

/// A new token.
#[derive(Clone, Copy, Debug)]
struct Place {
    token: u32,
    seq: SeqId,
    /// Its position in the sequence.
    position: usize,
    /// The rows of its span: the first, and the one behind the last.
    rows: (usize, usize),
}

/// A graph with its weights and the caches of its sequences.
#[derive(Debug)]
pub struct Interpreter {
    graph: Graph,
    weights: Weights,
    limits: Limits,
    sequences: HashMap<SeqId, Sequence>,
}

impl Interpreter {
    /// Prepares a graph. Weights stay as they are until they are read.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the graph says.
    pub fn new(graph: &Graph, weights: &Weights, limits: Limits) -> Result<Self, ExecError> {
        graph.check_weights(weights)?;
        graph.check_limits(&limits)?;
        let (graph, weights) = (graph.clone(), weights.clone());
        Ok(Interpreter { graph, weights, limits, sequences: HashMap::new() })
    }

    fn weight_name(&self, id: WeightId) -> &str {
        &self.graph.weights()[id.index()].name
    }

    /// A weight as f32, in row-major order.
    fn weight(&self, id: WeightId) -> Result<Vec<f32>, ExecError> {
        Ok(self.weights.tensor(self.weight_name(id))?.to_f32())
    }

    fn new_sequence(&self) -> Sequence {
        let layer = |StateSpec::Kv { kv_heads, head_dim, .. }: &StateSpec| LayerCache {
            keys: Matrix::zeros(0, kv_heads * head_dim),
            values: Matrix::zeros(0, kv_heads * head_dim),
        };
        Sequence { len: 0, layers: self.graph.states().iter().map(layer).collect() }
    }

    fn run(&mut self, batch: &Batch, observe: &mut Observer<'_>) -> Result<Logits, ExecError> {
        let mut places = Vec::new();
        for span in &batch.spans {
            let (seq, start, row) = (span.seq, self.len(span.seq), places.len());
            let rows = (row, row + span.tokens.len());
            let place = |(&token, position)| Place { token, seq, position, rows };
            places.extend(span.tokens.iter().zip(start..).map(place));
            let empty = self.new_sequence();
            self.sequences.entry(seq).or_insert(empty);
        }
        let (rows, origins): (Vec<usize>, Vec<_>) = batch.wanted_rows().into_iter().unzip();
        let mut values: Vec<Option<Matrix>> = vec![None; self.graph.values().len()];
        let mut last_use = vec![0; values.len()];
        for (i, node) in self.graph.nodes().iter().enumerate() {
            node.inputs.iter().for_each(|input| last_use[input.index()] = i);
        }
        last_use[self.graph.output().index()] = usize::MAX;
        for (i, node) in self.graph.nodes().to_vec().into_iter().enumerate() {
            let result = {
                let input = |i: usize| read(&values, node.inputs[i]);
                match &node.op {
                    Op::Embedding { table, scale, lookup } => {
                        self.embedding(*table, *scale, *lookup, &places)?
                    }
                    Op::Attention(attention) => {
                        self.attention(attention, [input(0), input(1), input(2)], &places)?
                    }
                    Op::SelectRows => pointwise::select(input(0), &rows),
                    Op::Pool(how) => {
                        let spans = rows.iter().map(|&row| places[row].rows);
                        pointwise::pool(*how, input(0), spans)
                    }
                    Op::Rope(rope) => pointwise::rope(rope, input(0), &places),
                    Op::RmsNorm(norm) => {
                        let gain = norm.weight.map(|w| self.weight(w)).transpose()?;
                        pointwise::rms_norm(norm, gain.as_deref(), input(0))
                    }
                    Op::LayerNorm { weight, bias, eps } => {
                        let gain = self.weight(*weight)?;
                        let bias = bias.map(|b| self.weight(b)).transpose()?;
                        pointwise::layer_norm(&gain, bias.as_deref(), *eps, input(0))
                    }
                    Op::Linear(linear) => self.linear(linear, input(0))?,
                    Op::Slice { offset, len } => pointwise::slice(input(0), *offset, *len),
                    Op::Add => pointwise::zip(input(0), input(1), |a, b| a + b),
                    Op::Mul => pointwise::zip(input(0), input(1), |a, b| a * b),
                    Op::Scale(by) => input(0).map(|x| x * by),
                    Op::Softcap(cap) => input(0).map(|x| cap * (x / cap).tanh()),
                    Op::Activation(kind) => input(0).map(|x| pointwise::activate(*kind, x)),
                    Op::GatedActivation(gate) if node.inputs.len() == 2 => {
                        pointwise::zip(input(0), input(1), |g, u| pointwise::gate(*gate, g, u))
                    }
                    Op::GatedActivation(gate) => {
                        let half = input(0).cols / 2;
                        let halves = [0, half].map(|at| pointwise::slice(input(0), at, half));
                        pointwise::zip(&halves[0], &halves[1], |g, u| pointwise::gate(*gate, g, u))
                    }
                    Op::Moe(moe) => self.moe(moe, input(0))?,
                }
            };
            let operands = node.inputs.iter().filter_map(|id| values[id.index()].as_ref());
            let operands: Vec<&[f32]> = operands.map(|matrix| &matrix.data[..]).collect();
            observe(&node, &operands, &result.data);
            for id in node.inputs.iter().map(|id| id.index()).filter(|&id| last_use[id] == i) {
                values[id] = None;
            }
            values[node.output.index()] = Some(result);
        }
        for span in &batch.spans {
            let held = self.sequences.get_mut(&span.seq).expect("made above");
            held.len += span.tokens.len();
        }
        let output = values[self.graph.output().index()].take().expect("the output is computed");
        let vocab = output.cols;
        let output = match self.graph.ty(self.graph.output()).rows() {
            Dim::Tokens => pointwise::select(&output, &rows),
            _ => output,
        };
        Ok(Logits { vocab, rows: origins, values: output.data, ..Logits::default() })
    }

    fn embedding(
        &self,
        table: WeightId,
        scale: f32,
        lookup: Lookup,
        places: &[Place],
    ) -> Result<Matrix, ExecError> {
        let table = self.weights.tensor(self.weight_name(table))?;
        let mut out = Matrix::zeros(places.len(), table.cols());
        for (i, place) in places.iter().enumerate() {
            let row = match lookup {
                Lookup::Token => place.token as usize,
                Lookup::Position => place.position,
                Lookup::Row(row) => row,
            };
            table.dequantize_row(row, out.row_mut(i));
            out.row_mut(i).iter_mut().for_each(|x| *x *= scale);
        }
        Ok(out)
    }

    /// Checks that the storage has room for so many tokens more.
    fn check_room(&self, new: usize) -> Result<(), ExecError> {
        let free = self.limits.kv_tokens.saturating_sub(self.usage().kv_tokens);
        match new.checked_sub(free) {
            None | Some(0) => Ok(()),
            Some(needed) => Err(ExecError::OutOfPages { needed, free, page_tokens: 1 }),
        }
    }
}

fn read(values: &[Option<Matrix>], id: ValueId) -> &Matrix {
    values[id.index()].as_ref().expect("operands come before their use")
}

impl Interpreter {
    fn checked_run(
        &mut self,
        batch: &Batch,
        observe: &mut Observer<'_>,
    ) -> Result<Logits, ExecError> {
        batch.check(self.graph.input_vocab(), &self.limits)?;
        if self.graph.needs_whole_texts() {
            batch.check_whole(|seq| self.len(seq))?;
        }
        for span in &batch.spans {
            let (seq, len, new) = (span.seq, self.len(span.seq), span.tokens.len());
            let context = self.limits.context;
            if len + new > context {
                return Err(ExecError::ContextFull { seq, len, new, context });
            }
        }
        self.check_room(batch.tokens())?;
        self.run(batch, observe)
    }
}

impl Executor for Interpreter {
    fn forward(&mut self, batch: &Batch) -> Result<Logits, ExecError> {
        self.checked_run(batch, &mut |_, _, _| {})
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len(&self, seq: SeqId) -> usize {
        self.sequences.get(&seq).map_or(0, |sequence| sequence.len)
    }

    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        let held = self.len(seq);
        if len > held {
            let text = format!("sequence {seq} holds {held} tokens, not {len}");
            return Err(ExecError::Invalid(text));
        }
        if let Some(sequence) = self.sequences.get_mut(&seq) {
            sequence.len = len;
            for layer in &mut sequence.layers {
                layer.keys.data.truncate(len * layer.keys.cols);
                layer.values.data.truncate(len * layer.values.cols);
            }
        }
        Ok(())
    }

    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        let held = self.len(from);
        if len > held || from == to {
            let text = format!("cannot copy {len} tokens of {from}, which holds {held}, to {to}");
            return Err(ExecError::Invalid(text));
        }
        match self.sequences.get(&from).cloned() {
            Some(sequence) => self.sequences.insert(to, sequence),
            None => self.sequences.remove(&to),
        };
        self.truncate(to, len)
    }

    fn free(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }

    fn export_kv(&self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError> {
        let mut block = KvBlock::for_range(&self.graph, seq, self.len(seq), &range)?;
        let Some(sequence) = self.sequences.get(&seq) else { return Ok(block) };
        let dim = block.head_dim;
        for (layer, cached) in sequence.layers.iter().enumerate() {
            for head in 0..block.kv_heads {
                for (token, position) in range.clone().enumerate() {
                    let at = block.offset(layer, head, token);
                    for i in 0..dim {
                        let from = head * dim + i;
                        block.keys[at + i] = f16::from_f32(cached.keys.row(position)[from]);
                        block.values[at + i] = f16::from_f32(cached.values.row(position)[from]);
                    }
                }
            }
        }
        Ok(block)
    }

    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        block.check(&self.graph)?;
        let len = self.len(seq);
        KvBlock::check_position(at, len)?;
        let (new, context) = (block.tokens, self.limits.context);
        if len + new > context {
            return Err(ExecError::ContextFull { seq, len, new, context });
        }
        self.check_room(new)?;
        let fresh = self.new_sequence();
        let sequence = self.sequences.entry(seq).or_insert(fresh);
        sequence.len += new;
        for (layer, cached) in sequence.layers.iter_mut().enumerate() {
            for token in 0..block.tokens {
                for head in 0..block.kv_heads {
                    let at = block.offset(layer, head, token);
                    let wide = |part: &[f16]| -> Vec<f32> {
                        part[at..at + block.head_dim].iter().map(|x| x.to_f32()).collect()
                    };
                    cached.keys.data.extend(wide(&block.keys));
                    cached.values.data.extend(wide(&block.values));
                }
            }
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        let kv_tokens = self.sequences.values().map(|sequence| sequence.len).sum();
        let per_token = 2 * self.graph.kv_bytes_per_token(KvType::F16);
        Usage {
            weight_bytes: self.weights.stored_bytes(),
            kv_bytes: kv_tokens * per_token,
            scratch_bytes: 0,
            kv_tokens,
            kv_capacity: self.limits.kv_tokens,
        }
    }
}

/// Logits of every token of `tokens` as one sequence: the answer that a test compares with.
///
/// # Errors
/// As [`Executor::forward`].
pub fn logits(graph: &Graph, weights: &Weights, tokens: &[u32]) -> Result<Logits, ExecError> {
    observed(graph, weights, tokens, &mut |_, _, _| {})
}

/// As [`logits`], and shows what each node computes.
///
/// # Errors
/// As [`Executor::forward`].
pub fn observed(
    graph: &Graph,
    weights: &Weights,
    tokens: &[u32],
    observe: &mut Observer<'_>,
) -> Result<Logits, ExecError> {
    let n = tokens.len();
    let limits = Limits { context: n, kv_tokens: n, batch_tokens: n };
    let batch = Batch::one(SeqId(0), tokens.to_vec(), Rows::All);
    Interpreter::new(graph, weights, limits)?.checked_run(&batch, observe)
}

#[cfg(test)]
mod tests;
