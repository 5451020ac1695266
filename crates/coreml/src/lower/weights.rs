//! A model's weights as constants of functions.

use std::collections::{BTreeMap, HashMap};
use std::io::{Seek, Write};
use std::ops::Range;

use baton_graph::{Graph, WeightId};
use baton_weights::{Tensor, Weights};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::forms::Form;
use super::integers::{self, Integers};
use super::palette::palettize;
use super::{Energies, MilLowering};
use crate::blob::BlobWriter;
use crate::mil::{DataType, Value};
use crate::{Error, Problem, Result};

/// Elements that are converted at once.
const AT_ONCE: usize = 1 << 18;
/// The fewest elements that go to the weight file.
const LEAST_BLOB: usize = 10;

/// The weight of a convolution of a single point, `(rows, cols, 1, 1)`.
#[derive(Clone, Debug)]
pub(super) enum Weight {
    /// In half precision.
    Dense(Value),
    /// An index for each, and the tables.
    Palettized { indices: Value, tables: Value },
    /// An integer for each, and the scales and offsets of blocks.
    Integers { codes: Value, scales: Value, offsets: Option<Value> },
}

/// Writes weights on demand. What a weight has become is remembered, so that no function writes it again.
pub(super) struct Emitter<'a, 'b, W> {
    graph: &'a Graph,
    weights: &'a Weights,
    blobs: &'b mut BlobWriter<W>,
    /// Matrices by weight, expert, rows and factor.
    matrices: HashMap<(WeightId, Option<usize>, Range<usize>, u32), Weight>,
    options: &'a MilLowering,
    /// Matrices of quantized sources that are written as they are, and those that are not, by type.
    kept: usize,
    anew: BTreeMap<String, usize>,
}

impl<'a, 'b, W: Write + Seek> Emitter<'a, 'b, W> {
    /// # Errors
    /// If a weight of the graph is missing or has another shape.
    pub fn new(
        graph: &'a Graph,
        weights: &'a Weights,
        options: &'a MilLowering,
        blobs: &'b mut BlobWriter<W>,
    ) -> Result<Emitter<'a, 'b, W>> {
        for spec in graph.weights() {
            let found = weights.get(&spec.name)?.shape();
            if found != spec.shape {
                let text = format!("its shape is {found:?}, the graph wants {:?}", spec.shape);
                return Err(invalid(&spec.name, text));
            }
        }
        let (matrices, anew) = (HashMap::new(), BTreeMap::new());
        Ok(Emitter { graph, weights, blobs, matrices, options, kept: 0, anew })
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
        let (name, tensor) = (&self.graph.weights()[id.index()].name, self.tensor(id)?);
        let form = self.options.forms.of(name);
        self.part((id, None, rows, factor.to_bits()), name, tensor, form)
    }

    /// The matrix of one of many experts times `factor`.
    pub fn expert(&mut self, id: WeightId, expert: usize, factor: f32) -> Result<Weight> {
        let name = &self.graph.weights()[id.index()].name;
        let tensor = self.weights.get(name)?.index(expert);
        let form = self.options.forms.of(name);
        self.part((id, Some(expert), 0..tensor.rows(), factor.to_bits()), name, &tensor, form)
    }

    /// A matrix that is never quantized.
    pub fn router(&mut self, id: WeightId) -> Result<Weight> {
        let (name, tensor) = (&self.graph.weights()[id.index()].name, self.tensor(id)?);
        self.part((id, None, 0..tensor.rows(), 1f32.to_bits()), name, tensor, Form::Half)
    }

    /// Some rows of a tensor times a factor in a form.
    fn part(
        &mut self,
        key: (WeightId, Option<usize>, Range<usize>, u32),
        name: &str,
        tensor: &Tensor,
        form: Form,
    ) -> Result<Weight> {
        if let Some(weight) = self.matrices.get(&key) {
            return Ok(weight.clone());
        }
        let (rows, factor) = (key.2.clone(), f32::from_bits(key.3));
        let shape = [rows.len(), tensor.cols(), 1, 1];
        let form = form.of_size(rows.len() * tensor.cols());
        let options = self.options;
        let columns = || column_weights(&options.energies, name, tensor.cols());
        let weight = match form {
            Form::Half => {
                let bytes: Vec<u8> = halves(name, tensor, rows.clone(), factor)?
                    .iter()
                    .flat_map(|half| half.to_le_bytes())
                    .collect();
                Weight::Dense(self.blobs.add(DataType::Float16, &shape, &bytes)?)
            }
            Form::Palette(palette) => {
                let values = finite_halves(name, tensor, rows.clone(), factor)?;
                let found = palettize(&values, &columns(), palette);
                self.count(tensor, false);
                let indices = self.blobs.add(index_type(palette.bits), &shape, &found.indices)?;
                let tables = [found.groups, 1, 1, 1, 1 << palette.bits, 1];
                let tables = self.numbers(name, &tables, &found.tables)?;
                Weight::Palettized { indices, tables }
            }
            Form::Integer(integer) => {
                let part = tensor.slice_rows(rows.clone());
                let kept = integers::keep(&part, integer, factor);
                self.count(tensor, kept.is_some());
                let Integers { dtype, codes, scales, offsets } = match kept {
                    Some(kept) => kept,
                    None => {
                        let values = finite_halves(name, tensor, rows.clone(), factor)?;
                        integers::quantize(&values, &columns(), integer)
                    }
                };
                let codes = self.blobs.add(dtype, &shape, &codes)?;
                let blocks = [rows.len(), scales.len() / rows.len(), 1, 1];
                let offsets = offsets.map(|offsets| self.numbers(name, &blocks, &offsets));
                let offsets = offsets.transpose()?;
                Weight::Integers { codes, scales: self.numbers(name, &blocks, &scales)?, offsets }
            }
        };
        // What was read stays in the file.
        tensor.release();
        self.matrices.insert(key, weight.clone());
        Ok(weight)
    }

    /// Counts a matrix whose source is quantized.
    fn count(&mut self, tensor: &Tensor, kept: bool) {
        match kept {
            true => self.kept += 1,
            false if tensor.dtype().is_float() => {}
            false => *self.anew.entry(tensor.dtype().to_string()).or_default() += 1,
        }
    }

    /// What has become of matrices that were quantized before, if there are any that are quantized now.
    pub fn note(&self) -> Option<String> {
        let kept = (self.kept > 0).then(|| format!("{} as in the source", self.kept));
        let anew = self.anew.iter().map(|(dtype, n)| format!("{n} anew from decoded {dtype}"));
        let parts: Vec<String> = kept.into_iter().chain(anew).collect();
        (!parts.is_empty()).then(|| format!("quantized matrices: {}", parts.join(", ")))
    }

    /// Numbers in a shape: in the program if they are few, else in the weight file.
    pub fn numbers(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Result<Value> {
        check(name, values)?;
        if values.len() < LEAST_BLOB {
            return Ok(Value::f16s(shape, values));
        }
        let bytes: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        Ok(self.blobs.add(DataType::Float16, shape, &bytes)?)
    }
}

/// The type of indices of so many bits.
fn index_type(bits: u8) -> DataType {
    let name = format!("uint{bits}");
    DataType::from_name(&name).expect("tables have 1, 2, 3, 4, 6 or 8 bits")
}

/// What an error in each column of a weight counts: the energy of the feature that it is multiplied with,
/// about 1. Features that a short text does not show count a little, too.
pub(super) fn column_weights(energies: &Energies, name: &str, cols: usize) -> Vec<f32> {
    const LEAST: f32 = 0.01;
    let Some(energy) = energies.get(name).filter(|energy| energy.len() == cols) else {
        return vec![1.0; cols];
    };
    let mean = energy.iter().sum::<f32>() / cols as f32;
    match mean.is_finite() && mean > 0.0 {
        true => energy.iter().map(|e| e / mean + LEAST).collect(),
        false => vec![1.0; cols],
    }
}

/// Rows of a matrix times `factor` in half precision.
fn halves(name: &str, tensor: &Tensor, rows: Range<usize>, factor: f32) -> Result<Vec<f16>> {
    let cols = tensor.cols();
    let mut halves = vec![f16::ZERO; rows.len() * cols];
    let each = (AT_ONCE / cols).max(1);
    halves.par_chunks_mut(each * cols).enumerate().try_for_each(|(i, halves)| {
        let start = rows.start + i * each;
        let mut values = tensor.slice_rows(start..start + halves.len() / cols).to_f32();
        if factor != 1.0 {
            values.iter_mut().for_each(|v| *v *= factor);
        }
        check(name, &values)?;
        halves.convert_from_f32_slice(&values);
        Ok::<(), Error>(())
    })?;
    Ok(halves)
}

/// As [`halves`], of a matrix that is to be quantized.
pub(super) fn finite_halves(
    name: &str,
    tensor: &Tensor,
    rows: Range<usize>,
    factor: f32,
) -> Result<Vec<f16>> {
    let halves = halves(name, tensor, rows, factor)?;
    match halves.iter().find(|half| !half.is_finite()) {
        Some(half) => {
            Err(invalid(name, format!("{half} cannot be quantized; compile with 16 bits")))
        }
        None => Ok(halves),
    }
}

/// That finite numbers do not exceed half precision.
fn check(name: &str, values: &[f32]) -> Result<()> {
    let too_large = |v: &&f32| v.is_finite() && v.abs() > f16::MAX.to_f32();
    match values.iter().find(too_large) {
        Some(value) => Err(invalid(name, format!("{value} exceeds half precision"))),
        None => Ok(()),
    }
}

fn invalid(weight: &str, text: String) -> Error {
    Error::Invalid(vec![Problem { place: format!("weight {weight}"), text }])
}
