//! Inference of products, reductions and changes of shape.

use super::{Args, Inferred, Operand};
use crate::mil::types::{DataType, TensorType};

/// Dimension `axis` of `rank`, counted from the end if negative.
pub(crate) fn axis(axis: i64, rank: usize) -> Inferred<usize> {
    let from_start = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(from_start)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| format!("dimension {axis} of {rank}"))
}

/// The shape that two shapes stretch to: dimensions of 1 repeat, missing outer ones are 1.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Inferred<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[usize], i: usize| match (i + shape.len()).checked_sub(rank) {
        Some(at) => shape[at],
        None => 1,
    };
    (0..rank)
        .map(|i| match (dim(a, i), dim(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(format!("shapes {a:?} and {b:?} do not stretch to each other")),
        })
        .collect()
}

impl Args<'_, '_> {
    pub(super) fn layer_norm(&self) -> Inferred<TensorType> {
        let x = self.float("x")?;
        let all: Vec<usize> = (0..x.shape.len()).collect();
        let axes = self.axes("axes", x.shape.len())?.unwrap_or(all);
        let wanted: Vec<usize> = axes.iter().map(|&axis| x.shape[axis]).collect();
        for name in ["gamma", "beta"] {
            if let Some(part) = self.optional(name)?
                && (part.ty.shape != wanted || part.ty.dtype != x.dtype)
            {
                return Err(format!("{name} is {} for dimensions {axes:?} of {x}", part.ty));
            }
        }
        Ok(x)
    }

    pub(super) fn reduce(&self) -> Inferred<TensorType> {
        let mut x = self.tensor("x")?;
        let all: Vec<usize> = (0..x.shape.len()).collect();
        let axes = self.axes("axes", x.shape.len())?.unwrap_or(all);
        if x.shape.contains(&0) {
            return Err(format!("x is {x}, which is empty"));
        }
        drop_axes(&mut x, &axes, self.flag("keep_dims", false)?);
        Ok(x)
    }

    pub(super) fn argmax(&self) -> Inferred<TensorType> {
        let mut x = self.tensor("x")?;
        let axis = self.axis("axis", Some(-1), x.shape.len())?;
        if x.shape[axis] == 0 {
            return Err(format!("dimension {axis} of {x} is empty"));
        }
        drop_axes(&mut x, &[axis], self.flag("keep_dims", false)?);
        x.dtype = self.dtype("output_dtype", Some(DataType::Int32))?;
        Ok(x)
    }

    pub(super) fn topk(&self) -> Inferred<Vec<TensorType>> {
        let mut x = self.tensor("x")?;
        let axis = self.axis("axis", Some(-1), x.shape.len())?;
        let (k, len) = (self.int("k", 1)?, x.shape[axis]);
        x.shape[axis] = match k {
            -1 => len,
            _ => usize::try_from(k)
                .ok()
                .filter(|k| (1..=len).contains(k))
                .ok_or_else(|| format!("the {k} largest of {len}"))?,
        };
        let dtype = self.dtype("output_indices_dtype", Some(DataType::Int32))?;
        let indices = TensorType { dtype, shape: x.shape.clone() };
        Ok(if self.flag("return_indices", true)? { vec![x, indices] } else { vec![x] })
    }

    pub(super) fn linear(&self) -> Inferred<TensorType> {
        let (mut x, weight) = (self.float("x")?, self.tensor("weight")?);
        let &[out, width] = &weight.shape[..] else {
            return Err(format!("weight is {weight}, not a matrix"));
        };
        if x.shape.last() != Some(&width) || weight.dtype != x.dtype {
            return Err(format!("x is {x}, weight is {weight}"));
        }
        self.bias(out, x.dtype)?;
        *x.shape.last_mut().expect("it has a last dimension") = out;
        Ok(x)
    }

    fn bias(&self, out: usize, dtype: DataType) -> Inferred<()> {
        match self.optional("bias")? {
            Some(bias) if bias.ty != TensorType::new(dtype, &[out]) => {
                Err(format!("bias is {} for {out} results of {dtype}", bias.ty))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn matmul(&self) -> Inferred<TensorType> {
        let (x, y) = (self.float("x")?, self.float("y")?);
        if x.dtype != y.dtype || x.shape.len() < 2 || y.shape.len() < 2 {
            return Err(format!("x is {x}, y is {y}"));
        }
        let matrix = |ty: &TensorType, swapped: bool| {
            let [rows, cols] = [ty.shape[ty.shape.len() - 2], ty.shape[ty.shape.len() - 1]];
            if swapped { [cols, rows] } else { [rows, cols] }
        };
        let [rows, inner] = matrix(&x, self.flag("transpose_x", false)?);
        let [inner_y, cols] = matrix(&y, self.flag("transpose_y", false)?);
        if inner != inner_y {
            return Err(format!("x is {x}, y is {y}: rows of {inner} on columns of {inner_y}"));
        }
        let outer = |ty: &TensorType| ty.shape[..ty.shape.len() - 2].to_vec();
        let mut shape = broadcast(&outer(&x), &outer(&y))?;
        shape.extend([rows, cols]);
        bounded(TensorType { dtype: x.dtype, shape })
    }

    pub(super) fn conv(&self) -> Inferred<TensorType> {
        let (x, weight) = (self.float("x")?, self.tensor("weight")?);
        let (&[n, c, h, w], &[out, per_group, kh, kw]) = (&x.shape[..], &weight.shape[..]) else {
            return Err(format!(
                "x is {x}, weight is {weight}; only convolutions in 2-D are known"
            ));
        };
        let pairs = |name| match self.ints(name)?.as_deref() {
            None => Ok([1; 2]),
            Some(&[a, b]) if a > 0 && b > 0 => Ok([a, b]),
            Some(other) => Err(format!("{name} is {other:?}")),
        };
        let (strides, dilations) = (pairs("strides")?, pairs("dilations")?);
        let groups = usize::try_from(self.int("groups", 1)?).ok().filter(|&groups| groups > 0);
        let groups = groups.ok_or_else(|| "groups is no positive number".to_owned())?;
        let pad = match self.text("pad_type")?.unwrap_or("valid") {
            "valid" => vec![0; 4],
            "custom" => self.needed_ints("pad")?,
            other => return Err(format!("pad_type {other:?} is not known; valid and custom are")),
        };
        if weight.dtype != x.dtype
            || per_group.checked_mul(groups) != Some(c)
            || out % groups != 0
            || pad.len() != 4
            || pad.iter().any(|&p| p < 0)
        {
            return Err(format!("x is {x}, weight is {weight} in {groups} groups, pad is {pad:?}"));
        }
        self.bias(out, x.dtype)?;
        let size = |i: usize, len: usize, kernel: usize| -> Inferred<usize> {
            let padded = len as i64 + pad[2 * i] + pad[2 * i + 1];
            let reach = (kernel as i64 - 1).checked_mul(dilations[i]).map(|reach| reach + 1);
            match reach.filter(|&reach| kernel > 0 && reach <= padded) {
                Some(reach) => Ok(((padded - reach) / strides[i] + 1) as usize),
                None => Err(format!("a kernel of {kernel} over {len}")),
            }
        };
        let shape = vec![n, out, size(0, h, kh)?, size(1, w, kw)?];
        bounded(TensorType { dtype: x.dtype, shape })
    }

    pub(super) fn gather(&self) -> Inferred<TensorType> {
        let (x, indices) = (self.tensor("x")?, self.tensor("indices")?);
        if !matches!(indices.dtype, DataType::Int32 | DataType::Int16 | DataType::UInt16) {
            return Err(format!("indices are {indices}"));
        }
        let axis = self.axis("axis", Some(0), x.shape.len())?;
        match self.int("batch_dims", 0)? {
            0 => {}
            n => return Err(format!("batch_dims is {n}; only 0 is known")),
        }
        let mut shape = x.shape[..axis].to_vec();
        shape.extend(&indices.shape);
        shape.extend(&x.shape[axis + 1..]);
        bounded(TensorType { dtype: x.dtype, shape })
    }

    pub(super) fn attention(&self) -> Inferred<TensorType> {
        let [query, key, value] = [self.float("query")?, self.float("key")?, self.float("value")?];
        let rank = query.shape.len();
        let fits = rank >= 3
            && [&key, &value].iter().all(|t| t.dtype == query.dtype && t.shape.len() == rank)
            && key.shape[..rank - 1] == value.shape[..rank - 1]
            && query.shape[..rank - 2] == key.shape[..rank - 2]
            && query.shape[rank - 1] == key.shape[rank - 1];
        if !fits {
            return Err(format!("query is {query}, key is {key}, value is {value}"));
        }
        let scores = [&query.shape[..rank - 1], &[key.shape[rank - 2]]].concat();
        let scores = bounded(TensorType { dtype: query.dtype, shape: scores })?.shape;
        if let Some(mask) = self.optional("attn_mask")? {
            let known = mask.ty.dtype == query.dtype || mask.ty.dtype == DataType::Bool;
            if !known || broadcast(&scores, &mask.ty.shape)? != scores {
                return Err(format!("attn_mask is {} for scores of {scores:?}", mask.ty));
            }
        }
        let shape = [&query.shape[..rank - 1], &[value.shape[rank - 1]]].concat();
        bounded(TensorType { dtype: query.dtype, shape })
    }

    pub(super) fn reshape(&self) -> Inferred<TensorType> {
        let x = self.tensor("x")?;
        let wanted = self.needed_ints("shape")?;
        let n = x.elements().unwrap_or(usize::MAX);
        let (mut shape, mut open) = (Vec::new(), None);
        for (i, &dim) in wanted.iter().enumerate() {
            shape.push(match dim {
                -1 if open.is_none() => {
                    open = Some(i);
                    1
                }
                // The dimension of the same distance from the end, or 1.
                0 => (x.shape.len() + i).checked_sub(wanted.len()).map_or(1, |i| x.shape[i]),
                _ => usize::try_from(dim).map_err(|_| format!("shape {wanted:?} for {x}"))?,
            });
        }
        let known = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if let (Some(open), Some(known)) = (open, known.filter(|&known| known > 0)) {
            shape[open] = n / known;
        }
        let ty = TensorType { dtype: x.dtype, shape };
        match ty.elements() {
            Some(m) if m == n => Ok(ty),
            _ => Err(format!("shape {wanted:?} for {x}")),
        }
    }

    pub(super) fn transpose(&self) -> Inferred<TensorType> {
        let x = self.tensor("x")?;
        let rank = x.shape.len();
        let perm = self.needed_ints("perm")?;
        let order: Inferred<Vec<usize>> = perm.iter().map(|&p| axis(p, rank)).collect();
        let order = order?;
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted != (0..rank).collect::<Vec<_>>() {
            return Err(format!("perm {perm:?} for {x}"));
        }
        Ok(TensorType { dtype: x.dtype, shape: order.iter().map(|&i| x.shape[i]).collect() })
    }

    pub(super) fn expand_dims(&self) -> Inferred<TensorType> {
        let mut x = self.tensor("x")?;
        let rank = x.shape.len() + self.needed_ints("axes")?.len();
        for axis in self.axes("axes", rank)?.unwrap_or_default() {
            x.shape.insert(axis, 1);
        }
        Ok(x)
    }

    pub(super) fn squeeze(&self) -> Inferred<TensorType> {
        let mut x = self.tensor("x")?;
        let ones = (0..x.shape.len()).filter(|&i| x.shape[i] == 1).collect();
        let axes = self.axes("axes", x.shape.len())?.unwrap_or(ones);
        if let Some(axis) = axes.iter().find(|&&axis| x.shape[axis] != 1) {
            return Err(format!("dimension {axis} of {x} is not 1"));
        }
        drop_axes(&mut x, &axes, false);
        Ok(x)
    }

    fn values(&self) -> Inferred<(Vec<Operand<'_>>, TensorType)> {
        let values = (self.lookup)("values").ok_or("values are missing")?;
        let first = values.first().ok_or("values are missing")?.ty.clone();
        match values.iter().find(|v| v.ty.dtype != first.dtype) {
            Some(other) => Err(format!("values are {first} and {}", other.ty)),
            None => Ok((values, first)),
        }
    }

    pub(super) fn concat(&self) -> Inferred<TensorType> {
        let (values, first) = self.values()?;
        let axis = self.axis("axis", None, first.shape.len())?;
        if self.flag("interleave", false)? {
            return Err("interleave is not known".into());
        }
        let mut ty = first;
        ty.shape[axis] = 0;
        for value in &values {
            let shape = &value.ty.shape;
            let rest = |s: &[usize]| [&s[..axis], &s[axis + 1..]].concat();
            if shape.len() != ty.shape.len() || rest(shape) != rest(&ty.shape) {
                return Err(format!("values are {} and {}", values[0].ty, value.ty));
            }
            ty.shape[axis] = ty.shape[axis].saturating_add(shape[axis]);
        }
        bounded(ty)
    }

    pub(super) fn stack(&self) -> Inferred<TensorType> {
        let (values, mut first) = self.values()?;
        let axis = self.axis("axis", None, first.shape.len() + 1)?;
        if let Some(other) = values.iter().find(|v| v.ty != first) {
            return Err(format!("values are {first} and {}", other.ty));
        }
        first.shape.insert(axis, values.len());
        bounded(first)
    }

    pub(super) fn tile(&self) -> Inferred<TensorType> {
        let mut x = self.tensor("x")?;
        let reps = self.needed_ints("reps")?;
        if reps.len() != x.shape.len() {
            return Err(format!("reps {reps:?} for {x}"));
        }
        for (dim, &times) in x.shape.iter_mut().zip(&reps) {
            let times = usize::try_from(times).ok().and_then(|times| dim.checked_mul(times));
            *dim = times.ok_or_else(|| format!("reps {reps:?}"))?;
        }
        bounded(x)
    }

    pub(super) fn fill(&self) -> Inferred<TensorType> {
        let shape = self.needed_ints("shape")?;
        let dim = |&d: &i64| usize::try_from(d).map_err(|_| format!("shape {shape:?}"));
        let dtype = self.single("value")?.map_or(DataType::Float32, |value| value.dtype);
        bounded(TensorType { dtype, shape: shape.iter().map(dim).collect::<Inferred<_>>()? })
    }

    pub(super) fn range(&self) -> Inferred<TensorType> {
        let [start, end, step] = [self.int("start", 0)?, self.int("end", 0)?, self.int("step", 1)?];
        if step == 0 {
            return Err("step is 0".into());
        }
        let span = if step > 0 { end - start } else { start - end };
        let len = if span <= 0 { 0 } else { (span - 1) / step.abs() + 1 };
        bounded(TensorType::new(DataType::Int32, &[len as usize]))
    }

    pub(super) fn shift_scale(&self) -> Inferred<TensorType> {
        let (data, scale) = (self.tensor("data")?, self.float("scale")?);
        let fits = data.shape.len() == scale.shape.len()
            && data.shape.iter().zip(&scale.shape).all(|(&d, &s)| s > 0 && d % s == 0);
        if !fits {
            return Err(format!("data is {data}, scale is {scale}"));
        }
        if let Some(offset) = self.optional("offset")?
            && offset.ty.shape != scale.shape
        {
            return Err(format!("offset is {}, scale is {scale}", offset.ty));
        }
        Ok(TensorType { dtype: scale.dtype, shape: data.shape })
    }

    pub(super) fn lut_to_dense(&self) -> Inferred<TensorType> {
        let (indices, lut) = (self.tensor("indices")?, self.float("lut")?);
        let rank = indices.shape.len();
        let bits = match indices.dtype {
            DataType::UInt1 => 1,
            DataType::UInt2 => 2,
            DataType::UInt3 => 3,
            DataType::UInt4 => 4,
            DataType::UInt6 => 6,
            DataType::UInt8 => 8,
            other => return Err(format!("indices of {other}")),
        };
        let fits = lut.shape.len() == rank + 2
            && indices.shape.iter().zip(&lut.shape).all(|(&i, &l)| l > 0 && i % l == 0)
            && lut.shape[rank] == 1 << bits;
        if !fits {
            return Err(format!("indices are {indices}, lut is {lut}"));
        }
        if lut.shape[rank + 1] != 1 || self.optional("vector_axis")?.is_some() {
            return Err("tables of vectors are not known".into());
        }
        Ok(TensorType { dtype: lut.dtype, shape: indices.shape })
    }
}

/// Takes dimensions out of a type, or makes them 1.
fn drop_axes(ty: &mut TensorType, axes: &[usize], keep: bool) {
    for &axis in axes.iter().rev() {
        match keep {
            true => ty.shape[axis] = 1,
            false => drop(ty.shape.remove(axis)),
        }
    }
}

/// Most elements of a result: more than any decoder's, and what a few hostile numbers may ask for.
const MAX_ELEMENTS: usize = 1 << 31;

/// Refuses types of more elements than any decoder has, before anything is allocated. An empty
/// dimension counts as 1: it does not make up for others, over which operations go all the same.
pub(crate) fn bounded(ty: TensorType) -> Inferred<TensorType> {
    let n = ty.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim.max(1)));
    match n.filter(|&n| n <= MAX_ELEMENTS) {
        Some(_) => Ok(ty),
        None => Err(format!("a tensor of {ty}, more than {MAX_ELEMENTS} elements")),
    }
}
