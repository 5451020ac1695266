//! Operations that move elements and compute nothing.

use std::sync::Arc;

use super::call::{Call, Outcome};
use super::tensor::{Element, Tensor, Values, buffer, each_row, repeated, strides};
use crate::mil::{SliceRange, slice_range};

/// Runs a function that is generic over the type of elements, for a tensor of whichever type.
macro_rules! for_elements {
    ($tensor:expr, $f:ident($($arg:expr),*)) => {
        match $tensor.values() {
            Values::Floats(_) => $f::<f32>($($arg),*),
            Values::Ints(_) => $f::<i32>($($arg),*),
            Values::Bools(_) => $f::<bool>($($arg),*),
        }
    };
}

pub(super) fn run(call: &mut Call<'_>) -> Outcome<Vec<Tensor>> {
    let one = |tensor: Tensor| Ok(vec![tensor]);
    let shape = call.ty().shape.clone();
    match call.kind {
        "identity" | "reshape" | "expand_dims" | "squeeze" => one(call.take("x")?.reshaped(&shape)),
        "transpose" => {
            let x = call.take("x")?;
            let perm = call.needed_ints("perm")?;
            let rank = x.shape().len();
            let axes: Outcome<Vec<usize>> =
                perm.iter().map(|&p| crate::mil::axis(p, rank)).collect();
            let steps = strides(x.shape());
            let steps: Vec<isize> = axes?.iter().map(|&axis| steps[axis] as isize).collect();
            one(for_elements!(x, gathered(x, &shape, 0, &steps))?)
        }
        "tile" => {
            let x = call.take("x")?;
            one(for_elements!(x, tiled(x, &shape))?)
        }
        "concat" => {
            let values = call.list("values")?;
            let axis = call.axis("axis", 0, shape.len())?;
            one(for_elements!(values[0], joined(values, axis, &shape))?)
        }
        "stack" => {
            let axis = call.axis("axis", 0, shape.len())?;
            let with_axis = |tensor: Tensor| {
                let mut shape = tensor.shape().to_vec();
                shape.insert(axis, 1);
                tensor.reshaped(&shape)
            };
            let values: Vec<Tensor> = call.list("values")?.into_iter().map(with_axis).collect();
            one(for_elements!(values[0], joined(values, axis, &shape))?)
        }
        "split" => {
            let x = call.take("x")?;
            let axis = call.axis("axis", 0, x.shape().len())?;
            let steps: Vec<isize> = strides(x.shape()).iter().map(|&s| s as isize).collect();
            let mut first = 0;
            let part = |ty: &crate::mil::TensorType| {
                let from = first * steps[axis] as usize;
                first += ty.shape[axis];
                let x = x.clone();
                for_elements!(x, gathered(x, &ty.shape, from, &steps))
            };
            call.types.iter().map(part).collect()
        }
        "slice_by_index" => {
            let x = call.take("x")?;
            let place = place(call, x.shape())?;
            one(taken(x, &place, &shape)?)
        }
        "slice_by_size" => {
            let x = call.take("x")?;
            let begin = call.needed_ints("begin")?;
            let mut place = Vec::new();
            for ((&dim, &len), &start) in x.shape().iter().zip(&shape).zip(&begin) {
                let start = usize::try_from(start).ok().filter(|&s| s <= dim && len <= dim - s);
                let start = start.ok_or_else(|| format!("begin {begin:?} in {:?}", x.shape()))?;
                place.push(SliceRange { start, step: 1, len });
            }
            one(taken(x, &place, &shape)?)
        }
        "slice_update" => {
            let x = call.take("x")?;
            let update = call.tensor("update")?;
            let place = place(call, x.shape())?;
            one(for_elements!(x, updated(x, update, &place))?)
        }
        "gather" => {
            let (x, indices) = (call.take("x")?, call.tensor("indices")?);
            let axis = call.axis("axis", 0, x.shape().len())?;
            let indices = indices.as_ints().ok_or("indices are no integers")?.to_vec();
            one(for_elements!(x, rows(x, axis, &indices, &shape))?)
        }
        "pad" => {
            let (x, pad) = (call.take("x")?, call.needed_ints("pad")?);
            let value = call.optional("constant_val")?;
            one(for_elements!(x, padded(x, &pad, value, &shape))?)
        }
        "fill" => match call.optional("value")? {
            Some(value) => one(for_elements!(value, filled(value, &shape))?),
            None => one(Tensor::floats(&shape, repeated(0.0, shape.iter().product())?)),
        },
        "shape" => {
            let dims = call.tensor("x")?.shape().iter().map(|&d| d as i32).collect();
            one(Tensor::ints(&shape, dims))
        }
        "range_1d" => {
            let (start, step) = (call.int("start", 0)?, call.int("step", 1)?);
            let at = |i: usize| (start + i as i64 * step) as i32;
            one(Tensor::ints(&shape, (0..shape[0]).map(at).collect()))
        }
        kind => Err(format!("the operation {kind:?} is not known")),
    }
}

/// Elements from `from` on, `steps` apart in each dimension of the result.
fn gathered<T: Element>(
    x: Tensor,
    shape: &[usize],
    from: usize,
    steps: &[isize],
) -> Outcome<Tensor> {
    let values = T::unwrap(x).expect("the caller looked");
    let len = shape.last().copied().unwrap_or(1);
    let last = steps.last().copied().unwrap_or(1);
    let mut out = buffer(shape.iter().product())?;
    each_row(shape, &[steps.to_vec()], |at| {
        let start = from as isize + at[0];
        match last {
            1 => out.extend_from_slice(&values[start as usize..start as usize + len]),
            _ => out.extend((0..len as isize).map(|i| values[(start + i * last) as usize])),
        }
    });
    Ok(Tensor::moved(shape, out))
}

fn tiled<T: Element>(x: Tensor, shape: &[usize]) -> Outcome<Tensor> {
    let own = x.shape().to_vec();
    if shape.contains(&0) {
        return Ok(Tensor::moved(shape, Vec::<T>::new()));
    }
    let mut values = T::unwrap(x).expect("the caller looked");
    // From the last dimension on, each block of an inner one as often as its dimension asks for. All but the
    // last step make at most half of the result.
    let mut block = 1;
    for (&own, &dim) in own.iter().zip(shape).rev() {
        block *= own;
        let times = dim.checked_div(own).unwrap_or(0);
        if times != 1 {
            let mut out = buffer(values.len() * times)?;
            for block in values.chunks_exact(block.max(1)) {
                (0..times).for_each(|_| out.extend_from_slice(block));
            }
            values = Arc::new(out);
        }
        block *= times;
    }
    Ok(Tensor::moved_shared(shape, values))
}

fn joined<T: Element>(values: Vec<Tensor>, axis: usize, shape: &[usize]) -> Outcome<Tensor> {
    let parts: Option<Vec<(usize, Arc<Vec<T>>)>> = values
        .into_iter()
        .map(|value| Some((value.shape()[axis..].iter().product(), T::unwrap(value)?)))
        .collect();
    let parts = parts.ok_or("values differ in type")?;
    let mut out = buffer(shape.iter().product())?;
    for i in 0..shape[..axis].iter().product() {
        for (len, values) in &parts {
            out.extend_from_slice(&values[i * len..(i + 1) * len]);
        }
    }
    Ok(Tensor::moved(shape, out))
}

/// The place in a tensor of `shape` that `begin`, `end` and their masks name.
fn place(call: &Call<'_>, shape: &[usize]) -> Outcome<Vec<SliceRange>> {
    let rank = shape.len();
    let (begin, end) = (call.needed_ints("begin")?, call.needed_ints("end")?);
    let stride = call.ints("stride")?.unwrap_or_else(|| vec![1; rank]);
    let masks = [call.bools("begin_mask", rank)?, call.bools("end_mask", rank)?];
    let squeeze = call.bools("squeeze_mask", rank)?;
    if [&begin, &end, &stride].iter().any(|list| list.len() != rank) {
        return Err(format!("begin {begin:?}, end {end:?}, stride {stride:?} in {shape:?}"));
    }
    (0..rank)
        .map(|i| {
            let from = (!masks[0][i]).then_some(begin[i]);
            let to = (!masks[1][i]).then_some(end[i]);
            match squeeze[i] {
                // A dimension that is taken out is one position of it.
                true => match slice_range(shape[i], from, None, 1)? {
                    SliceRange { len: 0, .. } => Err(format!("begin {begin:?} in {shape:?}")),
                    range => Ok(SliceRange { len: 1, ..range }),
                },
                false => slice_range(shape[i], from, to, stride[i]),
            }
        })
        .collect()
}

fn taken(x: Tensor, place: &[SliceRange], shape: &[usize]) -> Outcome<Tensor> {
    let steps = strides(x.shape());
    let from = place.iter().zip(&steps).map(|(range, step)| range.start * step).sum();
    let steps: Vec<isize> = place
        .iter()
        .zip(&steps)
        .map(|(range, &step)| range.step as isize * step as isize)
        .collect();
    // The place keeps the dimensions that the result may lack.
    let kept: Vec<usize> = place.iter().map(|range| range.len).collect();
    Ok(for_elements!(x, gathered(x, &kept, from, &steps))?.reshaped(shape))
}

fn updated<T: Element>(x: Tensor, update: Tensor, place: &[SliceRange]) -> Outcome<Tensor> {
    let shape = x.shape().to_vec();
    let kept: Vec<usize> = place.iter().map(|range| range.len).collect();
    let wanted: usize = kept.iter().product();
    if update.len() != wanted {
        let found = update.shape();
        return Err(format!("update is {found:?} where begin and end leave {kept:?}"));
    }
    let steps = strides(&shape);
    let from: usize = place.iter().zip(&steps).map(|(range, step)| range.start * step).sum();
    let steps: Vec<isize> = place
        .iter()
        .zip(&steps)
        .map(|(range, &step)| range.step as isize * step as isize)
        .collect();
    let (Some(mut values), Some(update)) = (T::unwrap(x), T::unwrap(update)) else {
        return Err("x and update differ in type".into());
    };
    let own = Arc::make_mut(&mut values);
    let len = kept.last().copied().unwrap_or(1);
    let last = steps.last().copied().unwrap_or(1);
    let mut rows = update.chunks_exact(len.max(1));
    each_row(&kept, &[steps], |at| {
        let row = rows.next().unwrap_or(&[]);
        for (i, &value) in row.iter().enumerate() {
            own[(from as isize + at[0] + i as isize * last) as usize] = value;
        }
    });
    Ok(Tensor::moved_shared(&shape, values))
}

fn rows<T: Element>(x: Tensor, axis: usize, indices: &[i32], shape: &[usize]) -> Outcome<Tensor> {
    let dim = x.shape()[axis];
    let outer: usize = x.shape()[..axis].iter().product();
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let values = T::unwrap(x).expect("the caller looked");
    let mut out = buffer(shape.iter().product())?;
    for i in 0..outer {
        for &index in indices {
            let index = crate::mil::axis(i64::from(index), dim)
                .map_err(|_| format!("index {index} of a dimension of {dim}"))?;
            let at = (i * dim + index) * inner;
            out.extend_from_slice(&values[at..at + inner]);
        }
    }
    Ok(Tensor::moved(shape, out))
}

fn padded<T: Element>(
    x: Tensor,
    pad: &[i64],
    value: Option<Tensor>,
    shape: &[usize],
) -> Outcome<Tensor> {
    let value = match value {
        Some(value) => {
            let values = T::unwrap(value).ok_or("constant_val has another type")?;
            values.first().copied().ok_or("constant_val is empty")?
        }
        None => T::default(),
    };
    let whole = Tensor::moved(shape, repeated(value, shape.iter().product())?);
    let first = shape.len() - pad.len() / 2;
    let place = x.shape().iter().enumerate().map(|(i, &len)| {
        let start = i.checked_sub(first).map_or(0, |i| pad[2 * i] as usize);
        SliceRange { start, step: 1, len }
    });
    let place: Vec<SliceRange> = place.collect();
    updated::<T>(whole, x, &place)
}

fn filled<T: Element>(value: Tensor, shape: &[usize]) -> Outcome<Tensor> {
    let values = T::unwrap(value).expect("the caller looked");
    let value = values.first().copied().ok_or("value is empty")?;
    Ok(Tensor::moved(shape, repeated(value, shape.iter().product())?))
}

/// Whether an operation's result has the same elements as its operands.
pub(super) fn only_moves(kind: &str) -> bool {
    matches!(
        kind,
        "identity"
            | "reshape"
            | "expand_dims"
            | "squeeze"
            | "transpose"
            | "tile"
            | "concat"
            | "stack"
            | "split"
            | "slice_by_index"
            | "slice_by_size"
            | "slice_update"
            | "gather"
            | "read_state"
    )
}
