//! Operations over one or more dimensions.

use super::call::{Call, Outcome};
use super::tensor::{Tensor, half};
use crate::mil::DataType;

/// A tensor seen as `(outer, n, inner)`, where `n` is the dimension that is worked over.
fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    let product = |dims: &[usize]| dims.iter().product();
    [product(&shape[..axis]), shape[axis], product(&shape[axis + 1..])]
}

/// `reduce_*`: sums in double precision, one dimension after the other.
pub(super) fn reduce(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let mut shape = x.shape().to_vec();
    let axes: Vec<usize> = match call.ints("axes")? {
        Some(axes) => {
            axes.iter().map(|&a| crate::mil::axis(a, shape.len())).collect::<Outcome<_>>()?
        }
        None => (0..shape.len()).collect(),
    };
    if shape.contains(&0) {
        return Err(format!("nothing to reduce in {shape:?}"));
    }
    let whole: usize = axes.iter().map(|&axis| shape[axis]).product();
    let values = x.into_floats().ok_or("x has no floating-point numbers")?;
    let mut values: Vec<f64> = values.into_iter().map(f64::from).collect();
    if call.kind == "reduce_sum_square" {
        values.iter_mut().for_each(|v| *v *= *v);
        if call.rounds_steps {
            values.iter_mut().for_each(|v| *v = f64::from(half(*v as f32)));
        }
    }
    let join: fn(f64, f64) -> f64 = match call.kind {
        "reduce_max" => f64::max,
        "reduce_min" => f64::min,
        _ => |a, b| a + b,
    };
    for axis in axes {
        let [outer, n, inner] = around(&shape, axis);
        let mut joined = Vec::with_capacity(outer * inner);
        for part in values.chunks_exact(n * inner) {
            let start = joined.len();
            joined.extend_from_slice(&part[..inner]);
            for row in part[inner..].chunks_exact(inner) {
                joined[start..].iter_mut().zip(row).for_each(|(sum, &v)| *sum = join(*sum, v));
            }
        }
        values = joined;
        shape[axis] = 1;
    }
    let scale = if call.kind == "reduce_mean" { 1.0 / whole as f64 } else { 1.0 };
    let values = values.into_iter().map(|v| (v * scale) as f32).collect();
    Ok(Tensor::floats(&call.ty().shape, values))
}

/// The shares that exponentials have of their sum.
pub(super) fn softmax(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let shape = x.shape().to_vec();
    let axis = call.axis("axis", -1, shape.len())?;
    let mut values = x.into_floats().ok_or("x has no floating-point numbers")?;
    let [_, n, inner] = around(&shape, axis);
    let softmax_row = if call.rounds_steps { softmax_row_in_halves } else { softmax_row };
    if inner == 1 {
        values.chunks_exact_mut(n.max(1)).for_each(softmax_row);
    } else {
        let mut row = vec![0.0; n];
        for part in values.chunks_exact_mut((n * inner).max(1)) {
            for i in 0..inner {
                row.iter_mut().zip(part[i..].iter().step_by(inner)).for_each(|(r, &v)| *r = v);
                softmax_row(&mut row);
                part[i..].iter_mut().step_by(inner).zip(&row).for_each(|(v, &r)| *v = r);
            }
        }
    }
    Ok(Tensor::floats(&shape, values))
}

pub(super) fn softmax_row(row: &mut [f32]) {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for v in row.iter_mut() {
        *v = (*v - highest).exp();
        sum += *v;
    }
    let share = 1.0 / sum;
    row.iter_mut().for_each(|v| *v *= share);
}

/// As [`softmax_row`], each step rounded to half precision.
fn softmax_row_in_halves(row: &mut [f32]) {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|v| *v = half(half(*v - highest).exp()));
    let sum = half(row.iter().sum());
    row.iter_mut().for_each(|v| *v /= sum);
}

/// Mean 0 and variance 1 over some dimensions, then a gain and an offset. The dimensions must be the
/// last ones, or one dimension.
pub(super) fn layer_norm(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let shape = x.shape().to_vec();
    let mut axes: Vec<usize> = match call.ints("axes")? {
        Some(axes) => {
            axes.iter().map(|&a| crate::mil::axis(a, shape.len())).collect::<Outcome<_>>()?
        }
        None => (0..shape.len()).collect(),
    };
    axes.sort_unstable();
    let (Some(&first), Some(&last)) = (axes.first(), axes.last()) else {
        return Err("no dimensions".into());
    };
    if last - first + 1 != axes.len() {
        return Err(format!("dimensions {axes:?}, which are not beside each other"));
    }
    let n: usize = shape[first..=last].iter().product();
    let inner: usize = shape[last + 1..].iter().product();
    let epsilon = f64::from(call.number("epsilon", 1e-5)?);
    let (gamma, beta) = (call.optional("gamma")?, call.optional("beta")?);
    let part = |t: &Option<Tensor>, i: usize, default: f32| {
        t.as_ref().and_then(Tensor::as_floats).map_or(default, |values| values[i])
    };
    let mut values = x.into_floats().ok_or("x has no floating-point numbers")?;
    for block in values.chunks_exact_mut((n * inner).max(1)) {
        for i in 0..inner {
            let row = || block[i..].iter().step_by(inner).map(|&v| f64::from(v));
            let mean = row().sum::<f64>() / n as f64;
            let variance = row().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
            let factor = 1.0 / (variance + epsilon).sqrt();
            for (at, v) in block[i..].iter_mut().step_by(inner).enumerate() {
                let normed = ((f64::from(*v) - mean) * factor) as f32;
                *v = normed * part(&gamma, at, 1.0) + part(&beta, at, 0.0);
            }
        }
    }
    Ok(Tensor::floats(&shape, values))
}

/// A tensor over the length of its last three dimensions together, as `l2_norm` defines it.
pub(super) fn l2_norm(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let shape = x.shape().to_vec();
    if shape.len() < 3 {
        return Err(format!("a tensor of {} dimensions, not 3 or more", shape.len()));
    }
    let n: usize = shape[shape.len() - 3..].iter().product();
    let epsilon = f64::from(call.number("epsilon", 1e-6)?);
    let mut values = x.into_floats().ok_or("x has no floating-point numbers")?;
    for part in values.chunks_exact_mut(n.max(1)) {
        let sum: f64 = part.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let factor = 1.0 / (sum + epsilon).sqrt();
        part.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
    }
    Ok(Tensor::floats(&shape, values))
}

/// Where the largest element of a dimension is; the first of equal ones.
pub(super) fn argmax(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let axis = call.axis("axis", -1, x.shape().len())?;
    let order = ranked(&x, axis, false)?;
    let [_, n, inner] = around(x.shape(), axis);
    let firsts = order.chunks_exact((n * inner).max(1)).flat_map(|part| part[..inner].to_vec());
    Ok(Tensor::ints(&call.ty().shape, firsts.collect()))
}

/// The largest elements of a dimension, or the smallest, and where they are.
pub(super) fn topk(call: &mut Call<'_>) -> Outcome<Vec<Tensor>> {
    let x = call.take("x")?;
    let shape = x.shape().to_vec();
    let axis = call.axis("axis", -1, shape.len())?;
    let order = ranked(&x, axis, call.flag("ascending", false)?)?;
    let [_, n, inner] = around(&shape, axis);
    let k = call.ty().shape[axis];
    let values = x.into_floats().ok_or("x has no floating-point numbers")?;
    let (mut top, mut places) = (Vec::new(), Vec::new());
    let parts = (n * inner).max(1);
    for (part, order) in values.chunks_exact(parts).zip(order.chunks_exact(parts)) {
        for (i, &place) in order[..k * inner].iter().enumerate() {
            top.push(part[place as usize * inner + i % inner]);
            places.push(place);
        }
    }
    let top = Tensor::floats(&call.ty().shape, top);
    Ok(match call.types.get(1) {
        Some(ty) if ty.dtype == DataType::Int32 || ty.dtype == DataType::UInt16 => {
            vec![top, Tensor::ints(&ty.shape, places)]
        }
        Some(ty) => return Err(format!("places of type {}", ty.dtype)),
        None => vec![top],
    })
}

/// For each run along a dimension the places of its elements from the largest to the smallest, or the
/// other way round, laid out as the tensor is. Equal elements stay in their order.
fn ranked(x: &Tensor, axis: usize, ascending: bool) -> Outcome<Vec<i32>> {
    let values = x.as_floats().ok_or("x has no floating-point numbers")?;
    let [_, n, inner] = around(x.shape(), axis);
    let mut order = vec![0; values.len()];
    let parts = (n * inner).max(1);
    for (part, order) in values.chunks_exact(parts).zip(order.chunks_exact_mut(parts)) {
        for i in 0..inner {
            let value = |place: &i32| part[*place as usize * inner + i];
            let mut places: Vec<i32> = (0..n as i32).collect();
            match ascending {
                true => places.sort_by(|a, b| value(a).total_cmp(&value(b))),
                false => places.sort_by(|a, b| value(b).total_cmp(&value(a))),
            }
            order[i..].iter_mut().step_by(inner).zip(places).for_each(|(o, place)| *o = place);
        }
    }
    Ok(order)
}
