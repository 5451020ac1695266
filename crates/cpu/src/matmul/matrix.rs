//! A weight matrix, ready to be multiplied with.

use std::fmt;
use std::io;
use std::sync::Arc;

use baton_weights::{DType, Tensor};

use super::formats::{Row, with_format};
use super::identity;
use super::packed::{Layout, Packed, Shape, arrange};
use crate::cache::{PackedCache, Saving};
use crate::pages;
use crate::pool::Pool;

/// A weight matrix `[rows, cols]`, that is `[outputs, inputs]`, in its file's format: floats in the
/// file's own memory, quantized weights sorted anew for the machine's kernels.
#[derive(Clone, Debug)]
pub struct Matrix {
    tensor: Tensor,
    rows: usize,
    cols: usize,
    /// Bytes of a row, and of its scales in MLX's format: divisions that are not to be repeated
    /// for every row.
    row_bytes: usize,
    scale_bytes: usize,
    /// What kernels read of quantized weights.
    packed: Option<Packed>,
}

/// A tensor that cannot serve as a weight matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// It has not two dimensions, or one of them is 0.
    #[error("{name:?} has shape {shape:?}; a weight matrix has two dimensions, neither 0")]
    Shape {
        /// The tensor's name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// There are no kernels for its type.
    #[error(
        "{name:?} is {dtype}, for which the CPU unit has no kernels; convert the file to a type such as Q4_K or Q8_0"
    )]
    Type {
        /// The tensor's name.
        name: String,
        /// Its type, as text.
        dtype: String,
    },
    /// There is no memory for its packed form.
    #[error("no memory for the weights: {problem}")]
    Memory {
        /// What the system said.
        problem: String,
    },
}

impl Matrix {
    /// A matrix over a tensor's bytes, which are shared, not copied. Before it can be multiplied
    /// with it must be [packed](pack).
    ///
    /// # Errors
    /// If the tensor has not two dimensions or is empty, or its type has no kernels.
    pub fn new(tensor: Tensor) -> Result<Matrix, MatrixError> {
        let &[rows @ 1..=usize::MAX, cols @ 1..=usize::MAX] = tensor.shape() else {
            let (name, shape) = (tensor.name().to_owned(), tensor.shape().to_vec());
            return Err(MatrixError::Shape { name, shape });
        };
        let dtype = tensor.dtype();
        let known = with_format!(dtype, F => { let _ = std::marker::PhantomData::<F>; true },
            else dtype.is_float());
        if !known {
            let (name, dtype) = (tensor.name().to_owned(), tensor.dtype().to_string());
            return Err(MatrixError::Type { name, dtype });
        }
        let row_bytes = tensor.row_bytes();
        let scale_bytes = tensor
            .affine()
            .map_or(0, |affine| cols / dtype.block_len() * affine.dtype.block_bytes());
        Ok(Matrix { tensor, rows, cols, row_bytes, scale_bytes, packed: None })
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The type of the weights.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Whether the weights are plain floats, which multiply activations that are not quantized.
    pub fn is_float(&self) -> bool {
        self.dtype().is_float()
    }

    /// Bytes that one product with the matrix reads.
    pub fn stored_bytes(&self) -> usize {
        self.packed.as_ref().map_or_else(|| self.tensor.stored_bytes(), |packed| packed.bytes())
    }

    /// The tensor that the matrix is made of.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The panels of quantized weights.
    pub(super) fn packed(&self) -> &Packed {
        self.packed.as_ref().expect("quantized weights are packed before use")
    }

    /// Row `i` as it lies in the file.
    pub(super) fn row(&self, i: usize) -> Row<'_> {
        let data = &self.tensor.data()[i * self.row_bytes..(i + 1) * self.row_bytes];
        let group = self.dtype().block_len();
        match self.tensor.affine() {
            Some(affine) => {
                let part = i * self.scale_bytes..(i + 1) * self.scale_bytes;
                let (scales, biases) = (&affine.scales[part.clone()], &affine.biases[part]);
                Row { data, scales, biases, scale_type: affine.dtype, group }
            }
            None => Row { data, scales: &[], biases: &[], scale_type: DType::F32, group },
        }
    }
}

/// Sorts the weights of quantized matrices anew, for the pool's instruction set, in memory of their
/// own. Matrices of floats, and what is packed already, stay as they are.
///
/// # Errors
/// If there is no memory for them; then nothing has changed.
pub fn pack(pool: &Pool, matrices: Vec<&mut Matrix>) -> Result<(), MatrixError> {
    pack_cached(pool, matrices, None).map(drop)
}

/// As [`pack`], but what is in the cache is taken from there, and what is not is brought there.
pub(crate) fn pack_cached(
    pool: &Pool,
    matrices: Vec<&mut Matrix>,
    cache: Option<&PackedCache>,
) -> Result<Option<Saving>, MatrixError> {
    let wanted = |m: &&mut Matrix| !m.is_float() && m.packed.is_none();
    let matrices: Vec<&mut Matrix> = matrices.into_iter().filter(wanted).collect();
    let Some(first) = matrices.first() else { return Ok(None) };
    let source = first.tensor.origin().map(|origin| origin.path.clone());
    let layout = Layout::of(pool.isa());
    let shape = |m: &Matrix| {
        with_format!(m.dtype(), F => Shape::new::<F>(layout, m.rows, m.cols, m.row(0)),
            else unreachable!("only quantized matrices are packed"))
    };
    let shapes: Vec<Shape> = matrices.iter().map(|m| shape(m)).collect();
    let out_of_memory = |e: io::Error| MatrixError::Memory { problem: e.to_string() };
    let (starts, len) = arrange(&shapes).map_err(out_of_memory)?;
    let kept = cache.and_then(|cache| Some((cache, identity::key(layout, &matrices)?)));
    let found = kept.as_ref().and_then(|(cache, key)| cache.open(pool, key, len));
    let is_new = found.is_none();
    let memory = match found {
        Some(memory) => memory,
        None => {
            let mut memory = pages::zeroed(len).map_err(out_of_memory)?;
            for ((matrix, shape), &start) in matrices.iter().zip(&shapes).zip(&starts) {
                let out = &mut memory[start..start + shape.bytes()];
                let (rows, cols) = (matrix.rows, matrix.cols);
                // What the kernels read is in memory of its own then.
                let done = |rows| matrix.tensor.slice_rows(rows).release();
                with_format!(matrix.dtype(), F => {
                    shape.pack::<F>(pool, rows, cols, |i| matrix.row(i), done, out);
                }, else unreachable!("only quantized matrices are packed"));
            }
            Arc::new(memory.make_read_only().map_err(out_of_memory)?)
        }
    };
    for ((matrix, shape), start) in matrices.into_iter().zip(shapes).zip(starts) {
        matrix.packed = Some(Packed::new(Arc::clone(&memory), start, shape));
    }
    let saving = kept.zip(source).filter(|_| is_new);
    Ok(saving.map(|((cache, key), source)| cache.save(key, &source, memory, len)))
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Matrix { tensor, rows, cols, .. } = self;
        write!(f, "{:?} ({} {rows}×{cols})", tensor.name(), tensor.dtype())
    }
}
