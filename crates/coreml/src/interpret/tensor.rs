//! Tensors while a function runs.

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;

pub(super) use crate::memory::{buffer, repeated};
use crate::mil::{DataType, Elements, TensorType};

/// A tensor: floating-point numbers of any type as f32, integers as i32. Cloning shares the elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    values: Values,
}

/// Elements of a [`Tensor`], row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Floating-point numbers.
    Floats(Arc<Vec<f32>>),
    /// Integers.
    Ints(Arc<Vec<i32>>),
    /// Truth values.
    Bools(Arc<Vec<bool>>),
}

impl Tensor {
    /// Floating-point numbers in a shape.
    ///
    /// # Panics
    /// If there are not as many as the shape says.
    pub fn floats(shape: &[usize], values: Vec<f32>) -> Tensor {
        Tensor::new(shape, Values::Floats(values.into()))
    }

    /// Integers in a shape.
    ///
    /// # Panics
    /// If there are not as many as the shape says.
    pub fn ints(shape: &[usize], values: Vec<i32>) -> Tensor {
        Tensor::new(shape, Values::Ints(values.into()))
    }

    /// Truth values in a shape.
    ///
    /// # Panics
    /// If there are not as many as the shape says.
    pub fn bools(shape: &[usize], values: Vec<bool>) -> Tensor {
        Tensor::new(shape, Values::Bools(values.into()))
    }

    fn new(shape: &[usize], values: Values) -> Tensor {
        let tensor = Tensor { shape: shape.to_vec(), values };
        assert_eq!(tensor.len(), shape.iter().product::<usize>(), "elements of {shape:?}");
        tensor
    }

    /// Zeros of a type; none if tensors of it cannot be computed with, or there is no memory for it.
    pub fn zeros(ty: &TensorType) -> Option<Tensor> {
        let n = ty.elements()?;
        Some(match ty.dtype {
            dtype if dtype.is_float() => Tensor::floats(&ty.shape, repeated(0.0, n).ok()?),
            DataType::Int32 | DataType::Int16 | DataType::UInt16 => {
                Tensor::ints(&ty.shape, repeated(0, n).ok()?)
            }
            DataType::Bool => Tensor::bools(&ty.shape, repeated(false, n).ok()?),
            _ => return None,
        })
    }

    /// The tensor of a constant's elements; none if they are of a type that is not computed with.
    pub(super) fn of(ty: &TensorType, elements: &Elements) -> Option<Tensor> {
        let shape = &ty.shape;
        Some(match (elements, ty.dtype) {
            (Elements::Floats(v), _) => Tensor::floats(shape, v.clone()),
            (Elements::Ints(v), _) => Tensor::ints(shape, v.clone()),
            (Elements::Bools(v), _) => Tensor::bools(shape, v.clone()),
            (Elements::Bytes(v), DataType::Float16) => Tensor::floats(shape, from_f16(v)),
            _ => return None,
        })
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Floats(v) => v.len(),
            Values::Ints(v) => v.len(),
            Values::Bools(v) => v.len(),
        }
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Its floating-point numbers, if it has such.
    pub fn as_floats(&self) -> Option<&[f32]> {
        match &self.values {
            Values::Floats(v) => Some(v),
            _ => None,
        }
    }

    /// As [`Tensor::as_floats`], to change them; they are copied if somebody else has them too.
    pub(crate) fn floats_mut(&mut self) -> Option<&mut [f32]> {
        match &mut self.values {
            Values::Floats(v) => Some(&mut Arc::make_mut(v)[..]),
            _ => None,
        }
    }

    /// Its integers, if it has such.
    pub fn as_ints(&self) -> Option<&[i32]> {
        match &self.values {
            Values::Ints(v) => Some(v),
            _ => None,
        }
    }

    /// The same elements in another shape.
    ///
    /// # Panics
    /// If that has another number of elements.
    pub fn reshaped(self, shape: &[usize]) -> Tensor {
        Tensor::new(shape, self.values)
    }

    /// Its floating-point numbers, of its own if nobody else has them. None if it has no such.
    pub(super) fn into_floats(self) -> Option<Vec<f32>> {
        match self.values {
            Values::Floats(v) => Some(Arc::try_unwrap(v).unwrap_or_else(|v| v.to_vec())),
            _ => None,
        }
    }

    /// Whether it holds what tensors of a type do, in that type's shape.
    pub(crate) fn is(&self, ty: &TensorType) -> bool {
        let kind = match self.values {
            Values::Floats(_) => ty.dtype.is_float(),
            Values::Ints(_) => {
                matches!(ty.dtype, DataType::Int32 | DataType::Int16 | DataType::UInt16)
            }
            Values::Bools(_) => ty.dtype == DataType::Bool,
        };
        kind && self.shape == ty.shape
    }

    /// Rounds floating-point numbers to half precision.
    pub(super) fn round_to_f16(&mut self) {
        if let Values::Floats(values) = &mut self.values {
            let mut halves = [f16::ZERO; 1024];
            for part in Arc::make_mut(values).chunks_mut(halves.len()) {
                let halves = &mut halves[..part.len()];
                halves.convert_from_f32_slice(part);
                halves.convert_to_f32_slice(part);
            }
        }
    }

    /// As [`Tensor::floats`] and its like, for elements that an operation moved.
    pub(super) fn moved<T: Element>(shape: &[usize], values: Vec<T>) -> Tensor {
        Tensor::moved_shared(shape, values.into())
    }

    /// As [`Tensor::moved`], for elements that others may have too.
    pub(super) fn moved_shared<T: Element>(shape: &[usize], values: Arc<Vec<T>>) -> Tensor {
        Tensor::new(shape, T::wrap(values))
    }
}

/// A type of elements: operations that only move them are written once for all.
pub(super) trait Element: Copy + Default {
    /// Elements as a tensor has them.
    fn wrap(values: Arc<Vec<Self>>) -> Values;
    /// Elements of this type, of their own if nobody else has them.
    fn unwrap(tensor: Tensor) -> Option<Arc<Vec<Self>>>;
}

macro_rules! element {
    ($ty:ty, $kind:ident) => {
        impl Element for $ty {
            fn wrap(values: Arc<Vec<Self>>) -> Values {
                Values::$kind(values)
            }

            fn unwrap(tensor: Tensor) -> Option<Arc<Vec<Self>>> {
                match tensor.values {
                    Values::$kind(values) => Some(values),
                    _ => None,
                }
            }
        }
    };
}

element!(f32, Floats);
element!(i32, Ints);
element!(bool, Bools);

/// A number rounded to half precision.
pub(super) fn half(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

/// Numbers in half precision, little-endian, as f32.
pub(super) fn from_f16(bytes: &[u8]) -> Vec<f32> {
    let half = |pair: &[u8]| f16::from_le_bytes([pair[0], pair[1]]);
    let halves: Vec<f16> = bytes.chunks_exact(2).map(half).collect();
    halves.to_f32_vec()
}

/// Distances between neighbours along each dimension of a row-major tensor.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// Calls `f` with the position of each element of `shape` but for the last dimension, in a space where
/// dimension `i` advances by `steps[i]`. A shape without elements has no row to visit.
pub(super) fn each_row(shape: &[usize], steps: &[Vec<isize>], mut f: impl FnMut(&[isize])) {
    if shape.contains(&0) {
        return;
    }
    let outer = &shape[..shape.len().saturating_sub(1)];
    let mut index = vec![0usize; outer.len()];
    let mut at = vec![0isize; steps.len()];
    for _ in 0..outer.iter().product() {
        f(&at);
        for dim in (0..outer.len()).rev() {
            index[dim] += 1;
            at.iter_mut().zip(steps).for_each(|(at, steps)| *at += steps[dim]);
            if index[dim] < outer[dim] {
                break;
            }
            index[dim] = 0;
            let back = outer[dim] as isize;
            at.iter_mut().zip(steps).for_each(|(at, steps)| *at -= back * steps[dim]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_visited_in_order_with_their_positions() {
        let mut seen = Vec::new();
        each_row(&[2, 3, 7], &[vec![100, 10, 1], vec![0, -1, 0]], |at| seen.push([at[0], at[1]]));
        assert_eq!(seen, [[0, 0], [10, -1], [20, -2], [100, 0], [110, -1], [120, -2]]);
        let mut rows = 0;
        each_row(&[], &[], |_| rows += 1);
        each_row(&[0, 4], &[], |_| rows += 10);
        each_row(&[4, 0], &[], |_| rows += 10);
        assert_eq!(rows, 1);
    }

    #[test]
    fn rounding_keeps_what_half_precision_can_say() {
        let mut tensor = Tensor::floats(&[4], vec![0.1, 65520.0, 1e-8, -2.0]);
        let shared = tensor.clone();
        tensor.round_to_f16();
        assert_eq!(tensor.as_floats().unwrap(), [0.099975586, f32::INFINITY, 0.0, -2.0]);
        assert_eq!(shared.as_floats().unwrap()[0], 0.1);
    }
}
