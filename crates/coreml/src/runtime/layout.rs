//! Where the rows of a tensor lie in memory that somebody else has laid out.

use crate::mil::{DataType, TensorType};
use crate::{Error, Result};

/// A tensor whose rows, its last dimension, are contiguous and lie at distances of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// The dimensions but for the last, and the distances of their elements.
    outer: Vec<(usize, usize)>,
    width: usize,
}

impl RowLayout {
    /// A tensor of `shape` with these distances between elements, counted in elements, in memory of `len`
    /// elements.
    ///
    /// # Errors
    /// If elements of a row do not follow each other, or some would lie outside of the memory.
    pub fn new(shape: &[usize], strides: &[usize], len: usize) -> Result<RowLayout> {
        let wrong = || {
            let text = format!("an array {shape:?} with strides {strides:?} in {len} elements");
            Error::Unsupported { what: text, instead: "report it as a fault".into() }
        };
        if shape.len() != strides.len() {
            return Err(wrong());
        }
        let (width, outer) = match (shape.split_last(), strides.split_last()) {
            (Some((&width, shape)), Some((&step, strides))) if step == 1 || width <= 1 => {
                (width, shape.iter().copied().zip(strides.iter().copied()).collect())
            }
            (None, None) => (1, Vec::new()),
            _ => return Err(wrong()),
        };
        let layout = RowLayout { outer, width };
        let last = |&(n, step): &(usize, usize)| n.checked_sub(1)?.checked_mul(step);
        let end = layout.outer.iter().try_fold(width, |end, dim| end.checked_add(last(dim)?));
        // Without elements there is nothing that could lie outside.
        match shape.contains(&0) || end.is_some_and(|end| end <= len) {
            true => Ok(layout),
            false => Err(wrong()),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.outer.iter().map(|(n, _)| n).product()
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Where a row begins; none if there is no such row.
    pub fn row(&self, row: usize) -> Option<usize> {
        let mut rest = row;
        let mut at = 0;
        for &(n, step) in self.outer.iter().rev() {
            if n == 0 {
                return None;
            }
            at += rest % n * step;
            rest /= n;
        }
        (rest == 0).then_some(at)
    }
}

/// Width and height of a picture in half precision that holds an array, in which form it can be shared
/// with the Neural Engine and the GPU; none for arrays of anything else.
pub fn picture(ty: &TensorType) -> Option<(usize, usize)> {
    let (&width, outer) = ty.shape.split_last()?;
    let height = outer.iter().try_fold(1usize, |height, &n| height.checked_mul(n))?;
    (ty.dtype == DataType::Float16 && width > 0 && height > 0).then_some((width, height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_where_the_distances_say() {
        // Rows of 3 that begin every 32 elements, and planes with a gap behind them.
        let layout = RowLayout::new(&[2, 2, 3], &[100, 32, 1], 135).unwrap();
        assert_eq!((layout.rows(), layout.width()), (4, 3));
        let rows: Vec<_> = (0..5).map(|row| layout.row(row)).collect();
        assert_eq!(rows, [Some(0), Some(32), Some(100), Some(132), None]);
        let scalar = RowLayout::new(&[], &[], 1).unwrap();
        assert_eq!(
            (scalar.rows(), scalar.width(), scalar.row(0), scalar.row(1)),
            (1, 1, Some(0), None)
        );
        let column = RowLayout::new(&[4, 1], &[64, 32], 256).unwrap();
        assert_eq!(column.row(3), Some(192));
        let empty = RowLayout::new(&[0, 4], &[4, 1], 0).unwrap();
        assert_eq!((empty.rows(), empty.row(0)), (0, None));
    }

    #[test]
    fn what_would_lie_outside_or_is_scattered_is_refused() {
        for (shape, strides, len) in [
            (&[2, 2, 3][..], &[100, 32, 1][..], 134),
            (&[2, 3], &[1, 2], 100),
            (&[2, 3], &[1], 100),
            (&[], &[], 0),
            (&[3, 2], &[usize::MAX / 2 + 1, 1], 100),
        ] {
            assert!(RowLayout::new(shape, strides, len).is_err(), "{shape:?} {strides:?} {len}");
        }
    }

    #[test]
    fn numbers_in_half_precision_have_pictures() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, shape);
        assert_eq!(picture(&ty(DataType::Float16, &[1, 4, 1, 64])), Some((64, 4)));
        assert_eq!(picture(&ty(DataType::Float16, &[5])), Some((5, 1)));
        assert_eq!(picture(&ty(DataType::Int32, &[1])), None);
        assert_eq!(picture(&ty(DataType::Float16, &[])), None);
        assert_eq!(picture(&ty(DataType::Float16, &[0, 3])), None);
    }
}
