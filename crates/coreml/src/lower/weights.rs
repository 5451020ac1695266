//! A model's weights as constants of functions.

use std::collections::HashMap;
use std::io::{Seek, Write};
use std::ops::Range;

use baton_graph::{Graph, WeightId};
use baton_weights::{Tensor, Weights};
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::palette::{Palette, palettize};
use crate::blob::BlobWriter;
use crate::mil::{DataType, Value};
use crate::{Error, Problem, Result};

/// Elements that are converted at once.
const AT_ONCE: usize = 1 << 20;
/// The fewest elements that go to the weight file.
const LEAST_BLOB: usize = 10;

/// The weight of a convolution of a single point, `(rows, cols, 1, 1)`.
#[derive(Clone, Debug)]
pub(super) enum Weight {
    /// In half precision.
    Dense(Value),
    /// An index for each, and the tables.
    Palettized { indices: Value, tables: Value },
}

/// Writes weights on demand. What a weight has become is remembered, so that no function writes it again.
pub(super) struct Emitter<'a, 'b, W> {
    graph: &'a Graph,
    weights: &'a Weights,
    blobs: &'b mut BlobWriter<W>,
    /// Matrices by weight, rows and factor.
    matrices: HashMap<(WeightId, Range<usize>, u32), Weight>,
    palette: Option<Palette>,
}

impl<'a, 'b, W: Write + Seek> Emitter<'a, 'b, W> {
    /// # Errors
    /// If a weight of the graph is missing or has another shape.
    pub fn new(
        graph: &'a Graph,
        weights: &'a Weights,
        palette: Option<Palette>,
        blobs: &'b mut BlobWriter<W>,
    ) -> Result<Emitter<'a, 'b, W>> {
        for spec in graph.weights() {
            let found = weights.get(&spec.name)?.shape();
            if found != spec.shape {
                let text = format!("its shape is {found:?}, the graph wants {:?}", spec.shape);
                return Err(invalid(&spec.name, text));
            }
        }
        Ok(Emitter { graph, weights, blobs, matrices: HashMap::new(), palette })
    }

    fn tensor(&self, id: WeightId) -> Result<&'a Tensor> {
        Ok(self.weights.tensor(&self.graph.weights()[id.index()].name)?)
    }

    /// A vector as numbers.
    pub fn vector(&self, id: WeightId) -> Result<Vec<f32>> {
        Ok(self.tensor(id)?.to_f32())
    }

    /// Rows of a matrix times `factor`.
    pub fn matrix(&mut self, id: WeightId, rows: Range<usize>, factor: f32) -> Result<Weight> {
        let key = (id, rows.clone(), factor.to_bits());
        if let Some(weight) = self.matrices.get(&key) {
            return Ok(weight.clone());
        }
        let tensor = self.tensor(id)?;
        let name = &self.graph.weights()[id.index()].name;
        let cols = tensor.cols();
        let n = rows.len() * cols;
        let (mut bytes, mut plain) = (Vec::new(), Vec::new());
        let each = (AT_ONCE / cols).max(1);
        for start in rows.clone().step_by(each) {
            let part = tensor.slice_rows(start..rows.end.min(start + each));
            let mut values = part.to_f32();
            if factor != 1.0 {
                values.iter_mut().for_each(|v| *v *= factor);
            }
            let halves = halves(name, &values)?;
            match self.palette {
                None => bytes.extend(halves),
                Some(_) => plain.append(&mut values),
            }
        }
        // What was read stays in the file.
        tensor.release();
        let shape = [rows.len(), cols, 1, 1];
        // A table would be longer than what it stands for.
        let palette = self.palette.filter(|palette| n > 2 << palette.bits);
        let weight = match palette {
            None => {
                if !plain.is_empty() {
                    bytes = halves(name, &plain)?;
                }
                Weight::Dense(self.blobs.add(DataType::Float16, &shape, &bytes)?)
            }
            Some(palette) => {
                let found = palettize(&plain, rows.len(), palette);
                let indices = self.blobs.add(index_type(palette.bits), &shape, &found.indices)?;
                let tables = [found.groups, 1, 1, 1, 1 << palette.bits, 1];
                let tables = self.numbers(name, &tables, &found.tables)?;
                Weight::Palettized { indices, tables }
            }
        };
        self.matrices.insert(key, weight.clone());
        Ok(weight)
    }

    /// Numbers in a shape: in the program if they are few, else in the weight file.
    pub fn numbers(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Result<Value> {
        let bytes = halves(name, values)?;
        if values.len() < LEAST_BLOB {
            return Ok(Value::f16s(shape, values));
        }
        Ok(self.blobs.add(DataType::Float16, shape, &bytes)?)
    }
}

/// The type of indices of so many bits.
fn index_type(bits: u8) -> DataType {
    let name = format!("uint{bits}");
    DataType::from_name(&name).expect("tables have 1, 2, 3, 4, 6 or 8 bits")
}

/// Numbers in half precision, little-endian.
fn halves(name: &str, values: &[f32]) -> Result<Vec<u8>> {
    let too_large = |v: &&f32| v.is_finite() && v.abs() > f16::MAX.to_f32();
    if let Some(value) = values.iter().find(too_large) {
        return Err(invalid(name, format!("{value} exceeds half precision")));
    }
    let mut halves = vec![f16::ZERO; values.len()];
    halves.convert_from_f32_slice(values);
    Ok(halves.iter().flat_map(|half| half.to_le_bytes()).collect())
}

fn invalid(weight: &str, text: String) -> Error {
    Error::Invalid(vec![Problem { place: format!("weight {weight}"), text }])
}
