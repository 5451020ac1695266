//! A view of one tensor: name, type, shape and bytes.

use bytes::Bytes;

use crate::mmap::{MappedFile, Origin};
use crate::{DType, Error, Result};

/// One tensor as it lies in a file. Cloning and slicing share the bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    data: Bytes,
    affine: Option<Affine>,
    /// The file that the bytes are mapped from, if they are.
    file: Option<MappedFile>,
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
        Self::of_shape(name.into(), dtype, shape, data)
    }

    /// A tensor that still lacks its scales if it is affine.
    fn of_shape(name: String, dtype: DType, shape: &[usize], data: Bytes) -> Result<Self> {
        let expected = match byte_len(dtype, shape) {
            Ok(n) => n,
            Err(problem) => return Err(Error::Tensor { name, problem }),
        };
        if data.len() != expected {
            let problem = format!("{dtype} {shape:?} needs {expected} bytes, found {}", data.len());
            return Err(Error::Tensor { name, problem });
        }
        Ok(Tensor { name, dtype, shape: shape.to_vec(), data, affine: None, file: None })
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
        let mut tensor = Self::of_shape(name, dtype, shape, data)?;
        let groups = tensor.elements() / dtype.block_len();
        let has_all = |bytes: &Bytes| bytes.len() / affine.dtype.block_bytes() == groups;
        let whole = |bytes: &Bytes| bytes.len().is_multiple_of(affine.dtype.block_bytes());
        if !affine.dtype.is_float()
            || ![&affine.scales, &affine.biases].iter().all(|b| has_all(b) && whole(b))
        {
            let problem = format!(
                "needs {groups} scales and biases of a float type, found {} and {} bytes of {}",
                affine.scales.len(),
                affine.biases.len(),
                affine.dtype
            );
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
        Tensor { name: name.into(), dtype, shape, data: data.into(), affine: None, file: None }
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

    /// The encoded bytes, shared.
    pub(crate) fn bytes(&self) -> Bytes {
        self.data.clone()
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

    /// Of a tensor whose bytes are mapped from a file: lets the system take back their memory, for a
    /// caller that has made its own copy of them. They can be read as before, from the file.
    pub fn release(&self) {
        let Some(file) = &self.file else { return };
        file.release(&self.data);
        if let Some(affine) = &self.affine {
            file.release(&affine.scales);
            file.release(&affine.biases);
        }
    }

    /// The file that the bytes are mapped from, if they are.
    pub fn origin(&self) -> Option<&Origin> {
        self.file.as_ref().map(MappedFile::origin)
    }

    /// The same tensor, whose bytes are mapped from `file`, if from any.
    pub(crate) fn mapped_from(self, file: Option<&MappedFile>) -> Tensor {
        Tensor { file: file.cloned(), ..self }
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
        Tensor {
            name: self.name.clone(),
            dtype: self.dtype,
            shape,
            data,
            affine,
            file: self.file.clone(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const AFFINE: DType = DType::Affine { bits: 4, group_size: 32 };

    /// Two matrices of three rows; row `i` of them all has scale 1 and bias `i`.
    fn affine() -> Tensor {
        let floats = |v: [f32; 6]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let (scales, biases) = (floats([1.0; 6]), floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        let affine = Affine { dtype: DType::F32, scales: scales.into(), biases: biases.into() };
        Tensor::with_affine("x", AFFINE, &[2, 3, 32], vec![0; 96].into(), affine).unwrap()
    }

    #[test]
    fn views_share_bytes_and_bring_their_scales() {
        let tensor = affine();
        assert_eq!((tensor.rows(), tensor.cols(), tensor.elements()), (6, 32, 192));
        let second = tensor.index(1);
        assert_eq!(second.shape(), [3, 32]);
        let rows = second.slice_rows(1..3);
        assert_eq!(rows.to_f32(), [[4.0; 32], [5.0; 32]].concat());
        assert_eq!(rows.data().as_ptr(), tensor.data()[4 * 16..].as_ptr());
        assert_eq!(rows.stored_bytes(), 2 * (16 + 4 + 4));
        assert_eq!(second.index(0).to_f32(), [3.0; 32]);
        assert_eq!(second.slice_rows(1..1).to_f32(), [0.0; 0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let new = |dtype, shape: &[usize], len: usize| {
            Tensor::new("x", dtype, shape, vec![0; len].into())
        };
        assert!(new(DType::Q4_0, &[2, 32], 36).is_ok());
        assert!(new(DType::F32, &[], 4).is_ok());
        for (dtype, shape, len) in [
            (DType::Q4_0, &[2, 32][..], 35),
            (DType::Q4_0, &[32, 2], 36),
            (DType::F32, &[0, 4], 0),
            (DType::F32, &[usize::MAX, 2], 8),
            (DType::F32, &[usize::MAX / 2], 8),
            (AFFINE, &[32], 16),
        ] {
            assert!(new(dtype, shape, len).is_err(), "{dtype} {shape:?}");
        }
    }

    #[test]
    fn affine_needs_a_known_format_and_all_scales() {
        let new = |dtype, scale_type, bytes: usize| {
            let part = || Bytes::from(vec![0; bytes]);
            let affine = Affine { dtype: scale_type, scales: part(), biases: part() };
            Tensor::with_affine("x", dtype, &[2, 32], vec![0; 32].into(), affine)
        };
        assert!(new(AFFINE, DType::F16, 4).is_ok());
        assert!(new(AFFINE, DType::F16, 3).is_err());
        assert!(new(AFFINE, DType::F16, 5).is_err());
        assert!(new(AFFINE, DType::Q8_0, 68).is_err());
        assert!(new(DType::Q4_0, DType::F16, 4).is_err());
        for (bits, group_size) in [(7, 32), (0, 32), (4, 0), (4, 16), (9, 64)] {
            assert!(new(DType::Affine { bits, group_size }, DType::F16, 4).is_err());
        }
    }
}
