//! A view of one tensor: name, type, shape and bytes.

use bytes::Bytes;

use crate::{DType, Error, Result};

/// One tensor as it lies in a file. Cloning and slicing share the bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    data: Bytes,
    affine: Option<Affine>,
}

/// Scales and biases of an MLX affine tensor, one pair per group, row-major like the tensor.
#[derive(Clone, Debug)]
pub struct Affine {
    /// Type of both: F32, F16 or BF16.
    pub dtype: DType,
    /// The scales.
    pub scales: Bytes,
    /// The biases.
    pub biases: Bytes,
}

impl Tensor {
    /// A tensor over `data`. `shape` is row-major, outermost dimension first; blocks run along the
    /// last dimension.
    ///
    /// # Errors
    /// If a dimension is 0, the last one is no whole number of blocks, the element count overflows,
    /// or `data` has not exactly the bytes that type and shape need. Also for [`DType::Affine`],
    /// which [`Tensor::with_affine`] is for.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        shape: &[usize],
        data: Bytes,
    ) -> Result<Self> {
        if let DType::Affine { .. } = dtype {
            let problem = format!("{dtype} needs scales and biases");
            return Err(Error::Tensor { name: name.into(), problem });
        }
        Self::unchecked_affine(name.into(), dtype, shape, data)
    }

    fn unchecked_affine(name: String, dtype: DType, shape: &[usize], data: Bytes) -> Result<Self> {
        let expected = match byte_len(dtype, shape) {
            Ok(n) => n,
            Err(problem) => return Err(Error::Tensor { name, problem }),
        };
        if data.len() != expected {
            let problem = format!("{dtype} {shape:?} needs {expected} bytes, found {}", data.len());
            return Err(Error::Tensor { name, problem });
        }
        Ok(Tensor { name, dtype, shape: shape.to_vec(), data, affine: None })
    }

    /// A tensor in MLX's affine format.
    ///
    /// # Errors
    /// As [`Tensor::new`]; also if `dtype` is no [`DType::Affine`] that MLX has, or scales and
    /// biases have not one element per group.
    pub fn with_affine(
        name: impl Into<String>,
        dtype: DType,
        shape: &[usize],
        data: Bytes,
        affine: Affine,
    ) -> Result<Self> {
        let name = name.into();
        if !matches!(dtype, DType::Affine { .. }) {
            let problem = format!("{dtype} has no separate scales and biases");
            return Err(Error::Tensor { name, problem });
        }
        let mut tensor = Self::unchecked_affine(name, dtype, shape, data)?;
        let groups = tensor.elements() / dtype.block_len();
        let expected = groups * affine.dtype.block_bytes();
        let fits = affine.dtype.is_float()
            && affine.scales.len() == expected
            && affine.biases.len() == expected;
        if !fits {
            let problem = format!("needs {groups} scales and biases of {}", affine.dtype);
            return Err(Error::Tensor { name: tensor.name, problem });
        }
        tensor.affine = Some(affine);
        Ok(tensor)
    }

    /// A tensor of single-precision values, for tests and computed tables.
    ///
    /// # Panics
    /// If `values` has not as many elements as `shape` says.
    pub fn from_f32(name: impl Into<String>, shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "values do not fill the shape");
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (dtype, shape) = (DType::F32, shape.to_vec());
        Tensor { name: name.into(), dtype, shape, data: data.into(), affine: None }
    }

    /// The tensor's name in its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How elements are encoded.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Row-major shape, outermost dimension first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Length of the last dimension, along which blocks run; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// The encoded bytes, row after row.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Scales and biases of a [`DType::Affine`] tensor.
    pub fn affine(&self) -> Option<&Affine> {
        self.affine.as_ref()
    }

    /// Bytes of one row in [`Tensor::data`].
    pub fn row_bytes(&self) -> usize {
        self.cols() / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// All bytes of the tensor in its file, scales and biases included.
    pub fn stored_bytes(&self) -> usize {
        self.data.len() + self.affine.as_ref().map_or(0, |a| a.scales.len() + a.biases.len())
    }

    /// The rows `start..end` of a matrix, sharing its bytes.
    ///
    /// # Panics
    /// If the tensor has not two dimensions or the range is out of bounds.
    pub fn slice_rows(&self, rows: std::ops::Range<usize>) -> Tensor {
        assert_eq!(self.shape.len(), 2, "slice_rows wants a matrix");
        let shape = vec![rows.len(), self.shape[1]];
        self.view(rows, shape)
    }

    /// Element `i` along the first dimension: a tensor with one dimension less, sharing its bytes.
    ///
    /// # Panics
    /// If the tensor has fewer than two dimensions or `i` is out of bounds.
    pub fn index(&self, i: usize) -> Tensor {
        assert!(self.shape.len() >= 2 && i < self.shape[0], "index {i} of {:?}", self.shape);
        let shape = self.shape[1..].to_vec();
        let rows_each: usize = shape[..shape.len() - 1].iter().product();
        self.view(i * rows_each..(i + 1) * rows_each, shape)
    }

    fn view(&self, rows: std::ops::Range<usize>, shape: Vec<usize>) -> Tensor {
        let part =
            |bytes: &Bytes, per_row: usize| bytes.slice(rows.start * per_row..rows.end * per_row);
        let affine = self.affine.as_ref().map(|a| {
            let per_row = self.cols() / self.dtype.block_len() * a.dtype.block_bytes();
            let (scales, biases) = (part(&a.scales, per_row), part(&a.biases, per_row));
            Affine { dtype: a.dtype, scales, biases }
        });
        let data = part(&self.data, self.row_bytes());
        Tensor { name: self.name.clone(), dtype: self.dtype, shape, data, affine }
    }
}

/// Bytes that a tensor of this type and shape occupies, or what is wrong with the two.
pub(crate) fn byte_len(dtype: DType, shape: &[usize]) -> std::result::Result<usize, String> {
    if let DType::Affine { bits, group_size } = dtype
        && !(matches!(bits, 2..=6 | 8) && matches!(group_size, 32 | 64 | 128))
    {
        return Err(format!("MLX has no {bits}-bit affine format with groups of {group_size}"));
    }
    if shape.contains(&0) {
        return Err(format!("shape {shape:?} has a dimension of 0"));
    }
    let cols = shape.last().copied().unwrap_or(1);
    if cols % dtype.block_len() != 0 {
        return Err(format!("rows of {cols} are no multiple of {dtype}'s {}", dtype.block_len()));
    }
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .and_then(|n| (n / dtype.block_len()).checked_mul(dtype.block_bytes()))
        .ok_or_else(|| format!("shape {shape:?} overflows"))
}
