//! Inference of operations that take out, put in or lay beside.

use super::shapes::bounded;
use super::{Args, Inferred};
use crate::mil::types::TensorType;

/// One dimension of a slice: `len` positions from `start`, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: usize,
    pub step: i64,
    pub len: usize,
}

/// The positions from `begin` to `end` of a dimension; negative ones count from its end, and none
/// stands for all up to where the dimension begins or ends.
pub(crate) fn range(
    dim: usize,
    begin: Option<i64>,
    end: Option<i64>,
    step: i64,
) -> Inferred<Range> {
    let n = dim as i64;
    let wrap = |at: i64| if at < 0 { at + n } else { at };
    if step == 0 {
        return Err("a stride of 0".into());
    }
    let (first, last, lowest, highest) =
        if step > 0 { (0, n, 0, n) } else { (n - 1, -1, -1, n - 1) };
    let start = begin.map_or(first, |at| wrap(at).clamp(lowest, highest));
    let end = end.map_or(last, |at| wrap(at).clamp(lowest, highest));
    let span = if step > 0 { end - start } else { start - end };
    let len = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
    Ok(Range { start: start.max(0) as usize, step, len: len as usize })
}

impl Args<'_, '_> {
    pub(super) fn split(&self) -> Inferred<Vec<TensorType>> {
        let x = self.tensor("x")?;
        let axis = self.axis("axis", None, x.shape.len())?;
        let len = x.shape[axis];
        let sizes = match (self.ints("split_sizes")?, self.int("num_splits", 0)?) {
            (Some(sizes), _) => sizes
                .iter()
                .map(|&n| usize::try_from(n).map_err(|_| format!("split_sizes {sizes:?}")))
                .collect::<Inferred<Vec<_>>>()?,
            (None, n) => {
                match usize::try_from(n).ok().filter(|&n| n > 0 && n <= len && len % n == 0) {
                    Some(n) => vec![len / n; n],
                    None => return Err(format!("{len} in {n} parts")),
                }
            }
        };
        let sum = sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        if sum != Some(len) {
            return Err(format!("{len} in parts of {sizes:?}"));
        }
        let part = |&n: &usize| {
            let mut ty = x.clone();
            ty.shape[axis] = n;
            ty
        };
        Ok(sizes.iter().map(part).collect())
    }

    pub(super) fn pad(&self) -> Inferred<TensorType> {
        let mut x = self.tensor("x")?;
        let pad = self.needed_ints("pad")?;
        if self.text("mode")?.unwrap_or("constant") != "constant" {
            return Err("only padding with a constant is known".into());
        }
        self.single("constant_val")?;
        let padded = pad.len() / 2;
        if pad.len() % 2 != 0 || padded > x.shape.len() || pad.iter().any(|&p| p < 0) {
            return Err(format!("pad {pad:?} for {x}"));
        }
        let first = x.shape.len() - padded;
        for (dim, ends) in x.shape[first..].iter_mut().zip(pad.chunks_exact(2)) {
            *dim = dim.saturating_add((ends[0] + ends[1]) as usize);
        }
        bounded(x)
    }

    pub(super) fn slice_by_index(&self) -> Inferred<TensorType> {
        let x = self.tensor("x")?;
        let rank = x.shape.len();
        let (begin, end) = (self.needed_ints("begin")?, self.needed_ints("end")?);
        let stride = self.ints("stride")?.unwrap_or_else(|| vec![1; rank]);
        let begin_mask = self.bools("begin_mask", rank)?;
        let end_mask = self.bools("end_mask", rank)?;
        let squeeze = self.bools("squeeze_mask", rank)?;
        if [&begin, &end, &stride].iter().any(|list| list.len() != rank) {
            return Err(format!("begin {begin:?}, end {end:?} for {x}"));
        }
        let mut shape = Vec::new();
        for i in 0..rank {
            let from = (!begin_mask[i]).then_some(begin[i]);
            if squeeze[i] {
                match range(x.shape[i], from, None, 1)?.len {
                    0 => return Err(format!("begin {begin:?} for {x}")),
                    _ => continue,
                }
            }
            let to = (!end_mask[i]).then_some(end[i]);
            shape.push(range(x.shape[i], from, to, stride[i])?.len);
        }
        Ok(TensorType { dtype: x.dtype, shape })
    }

    pub(super) fn slice_by_size(&self) -> Inferred<TensorType> {
        let x = self.tensor("x")?;
        let size = self.needed_ints("size")?;
        if self.tensor("begin")?.shape != [x.shape.len()] || size.len() != x.shape.len() {
            return Err(format!("size {size:?} for {x}"));
        }
        let known = self.ints("begin").ok().flatten();
        let mut shape = Vec::new();
        for (i, (&dim, &size)) in x.shape.iter().zip(&size).enumerate() {
            let begin = known.as_ref().map(|begin| begin[i]);
            let room = match begin {
                Some(begin) => usize::try_from(begin).ok().and_then(|b| dim.checked_sub(b)),
                None => Some(dim),
            };
            let room = room.ok_or_else(|| format!("begins at {begin:?} of {x}"))?;
            let len = match size {
                -1 if begin.is_some() => Some(room),
                _ => usize::try_from(size).ok().filter(|&len| len <= room),
            };
            shape.push(len.ok_or_else(|| format!("size {size} of {room} in {x}"))?);
        }
        Ok(TensorType { dtype: x.dtype, shape })
    }

    pub(super) fn slice_update(&self) -> Inferred<TensorType> {
        let (x, update) = (self.tensor("x")?, self.tensor("update")?);
        let rank = x.shape.len();
        for name in ["begin", "end"] {
            let ty = self.tensor(name)?;
            if ty.shape != [rank] {
                return Err(format!("{name} is {ty} for {x}"));
            }
        }
        for name in ["begin_mask", "end_mask", "squeeze_mask"] {
            self.bools(name, rank)?;
        }
        if let Some(stride) = self.ints("stride")?
            && (stride.len() != rank || stride.contains(&0))
        {
            return Err(format!("stride {stride:?} for {x}"));
        }
        if update.dtype != x.dtype {
            return Err(format!("update is {update} for {x}"));
        }
        // Where the place is known, the update must fill it.
        if let (Ok(Some(_)), Ok(Some(_))) = (self.ints("begin"), self.ints("end")) {
            let place = self.slice_by_index()?;
            if place.shape != update.shape {
                return Err(format!("update is {update}, its place is {place}"));
            }
        }
        Ok(x)
    }
}
