//! A weight matrix, ready to be multiplied with.

use std::fmt;

use baton_weights::{DType, Tensor};

use super::formats::{Row, with_format};

/// A weight matrix `[rows, cols]`, that is `[outputs, inputs]`, in its file's format and memory.
#[derive(Clone, Debug)]
pub struct Matrix {
    tensor: Tensor,
    rows: usize,
    cols: usize,
    /// Bytes of a row, and of its scales in MLX's format: divisions that are not to be repeated
    /// for every row.
    row_bytes: usize,
    scale_bytes: usize,
}

/// A tensor that cannot serve as a weight matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// It has not two dimensions.
    #[error("{name:?} has shape {shape:?}; a weight matrix has two dimensions")]
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
}

impl Matrix {
    /// A matrix over a tensor's bytes, which are shared, not copied.
    ///
    /// # Errors
    /// If the tensor has not two dimensions, or its type has no kernels.
    pub fn new(tensor: Tensor) -> Result<Matrix, MatrixError> {
        let &[rows, cols] = tensor.shape() else {
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
        Ok(Matrix { tensor, rows, cols, row_bytes, scale_bytes })
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
        self.tensor.stored_bytes()
    }

    /// The tensor that the matrix is made of.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

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

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Matrix { tensor, rows, cols, .. } = self;
        write!(f, "{:?} ({} {rows}×{cols})", tensor.name(), tensor.dtype())
    }
}
