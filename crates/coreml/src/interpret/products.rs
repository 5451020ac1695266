//! Matrix products and convolutions, through the kernels of the CPU unit.

use baton_cpu::{Epilogue, Matrix, Pool, Rows, matmul as product};
use baton_weights::{DType, Tensor as WeightTensor};

use super::call::{Call, Outcome};
use super::reduce::softmax_row;
use super::tensor::{Tensor, buffer, repeated, strides};

/// `x W^T + b` along the last dimension.
pub(super) fn linear(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take_floats("x")?;
    let bias = call.optional("bias")?;
    let weight = call.constant("weight").ok_or("weight is no constant")?;
    let matrix = weight.matrix()?;
    let out = times(call.pool, &x, &matrix, bias.as_ref().and_then(Tensor::as_floats))?;
    Ok(Tensor::floats(&call.ty().shape, out))
}

/// Rows of `x` times the transpose of a matrix.
fn times(pool: &Pool, x: &[f32], matrix: &Matrix, bias: Option<&[f32]>) -> Outcome<Vec<f32>> {
    let rows = x.len() / matrix.cols();
    let mut out = repeated(0.0, rows * matrix.rows())?;
    if rows > 0 {
        let epilogue = Epilogue { bias, accumulate: false };
        let x = Rows::floats(x, matrix.cols());
        product(pool, &x, &[matrix], &mut out, matrix.rows(), epilogue);
    }
    Ok(out)
}

/// `(rows, cols)` as `(cols, rows)`, block by block so that both sides stay in the cache.
fn transposed(x: &[f32], rows: usize, cols: usize) -> Outcome<Vec<f32>> {
    const BLOCK: usize = 16;
    let mut out = repeated(0.0, x.len())?;
    for row in (0..rows).step_by(BLOCK) {
        for col in (0..cols).step_by(BLOCK) {
            for r in row..rows.min(row + BLOCK) {
                for c in col..cols.min(col + BLOCK) {
                    out[c * rows + r] = x[r * cols + c];
                }
            }
        }
    }
    Ok(out)
}

/// Convolution in two dimensions. One of a single point is a matrix product over the channels.
pub(super) fn conv(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let shape: [usize; 4] = x.shape().try_into().map_err(|_| "x has not 4 dimensions")?;
    let x = x.into_floats().ok_or("x has no floating-point numbers")?;
    let bias = call.optional("bias")?;
    let bias = bias.as_ref().and_then(Tensor::as_floats);
    let out_shape: [usize; 4] = call.ty().shape[..].try_into().expect("inferred");
    let [_, out, ..] = out_shape;
    let [n, c, h, w] = shape;
    let point = [h, w] == out_shape[2..] && call.int("groups", 1)? == 1;
    if let Some(weight) = call.constant("weight").filter(|k| point && k.shape()[2..] == [1, 1]) {
        let matrix = weight.matrix()?;
        let mut values = buffer(n * out * h * w)?;
        for image in x.chunks_exact(c * h * w) {
            let y = times(call.pool, &transposed(image, c, h * w)?, &matrix, bias)?;
            values.extend(transposed(&y, h * w, out)?);
        }
        return Ok(Tensor::floats(&out_shape, values));
    }
    let weight = call.tensor("weight")?;
    let kernel: [usize; 4] =
        weight.shape().try_into().map_err(|_| "weight has not 4 dimensions")?;
    let pair = |name: &str| -> Outcome<[usize; 2]> {
        let values = call.ints(name)?.unwrap_or_else(|| vec![1, 1]);
        Ok([values[0] as usize, values[1] as usize])
    };
    let pad = match call.text("pad_type") {
        Some("custom") => call.needed_ints("pad")?,
        _ => vec![0; 4],
    };
    let place = Placement {
        shape,
        kernel,
        out: out_shape,
        strides: pair("strides")?,
        dilations: pair("dilations")?,
        pad: [pad[0] as usize, pad[2] as usize],
        groups: call.int("groups", 1)? as usize,
    };
    let weight = weight.into_floats().ok_or("weight has no floating-point numbers")?;
    Ok(Tensor::floats(&out_shape, place.convolve(&x, &weight, bias)?))
}

/// How a kernel lies over an image.
struct Placement {
    shape: [usize; 4],
    kernel: [usize; 4],
    out: [usize; 4],
    strides: [usize; 2],
    dilations: [usize; 2],
    pad: [usize; 2],
    groups: usize,
}

impl Placement {
    /// Point by point, for the convolutions that decoders have few of.
    fn convolve(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Outcome<Vec<f32>> {
        let [images, channels, height, width] = self.shape;
        let [_, outs, out_height, out_width] = self.out;
        let [_, per_group, kernel_height, kernel_width] = self.kernel;
        let mut values = buffer(self.out.iter().product())?;
        let source = |at: usize, i: usize, dim: usize, len: usize| {
            let at = (at * self.strides[dim] + i * self.dilations[dim]).checked_sub(self.pad[dim]);
            at.filter(|&at| at < len)
        };
        for image in 0..images {
            for out in 0..outs {
                let first = out / (outs / self.groups) * per_group;
                for (row, col) in
                    (0..out_height * out_width).map(|i| (i / out_width, i % out_width))
                {
                    let mut sum = bias.map_or(0.0, |bias| bias[out]);
                    for channel in 0..per_group {
                        let plane = (image * channels + first + channel) * height;
                        let taps = (out * per_group + channel) * kernel_height;
                        for ky in 0..kernel_height {
                            let Some(y) = source(row, ky, 0, height) else { continue };
                            for kx in 0..kernel_width {
                                let Some(x_at) = source(col, kx, 1, width) else { continue };
                                sum += x[(plane + y) * width + x_at]
                                    * weight[(taps + ky) * kernel_width + kx];
                            }
                        }
                    }
                    values.push(sum);
                }
            }
        }
        Ok(values)
    }
}

/// Products of matrices, the outer dimensions of both stretched to each other.
pub(super) fn matmul(call: &mut Call<'_>) -> Outcome<Tensor> {
    let flags = [call.flag("transpose_x", false)?, call.flag("transpose_y", false)?];
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let sums = if call.rounds_steps { Sums::InOrder } else { Sums::ByKernel(call.pool) };
    batched(sums, &x, &y, flags, &call.ty().shape)
}

/// How products are added up.
#[derive(Clone, Copy)]
enum Sums<'a> {
    /// By the kernels of the CPU unit.
    ByKernel(&'a Pool),
    /// One after the other, as numpy does: a sum that differs in its last place can be rounded to another
    /// number of half precision.
    InOrder,
}

/// A right operand whose columns lie one behind the other.
enum Right<'a> {
    ByKernel(&'a Pool, Box<Matrix>),
    InOrder(Vec<f32>),
}

impl<'a> Right<'a> {
    fn new(columns: &[f32], inner: usize, sums: Sums<'a>) -> Outcome<Right<'a>> {
        let Sums::ByKernel(pool) = sums else { return Ok(Right::InOrder(columns.to_vec())) };
        let shape = [columns.len() / inner, inner];
        let bytes: Vec<u8> = bytemuck::cast_slice(columns).to_vec();
        let tensor = WeightTensor::new("y", DType::F32, &shape, bytes.into());
        let matrix = tensor
            .map_err(|e| e.to_string())
            .and_then(|tensor| Matrix::new(tensor).map_err(|e| e.to_string()))?;
        Ok(Right::ByKernel(pool, Box::new(matrix)))
    }

    /// Rows of `x`, of `inner` numbers each, times this.
    fn times(&self, x: &[f32], inner: usize) -> Outcome<Vec<f32>> {
        match self {
            Right::ByKernel(pool, matrix) => times(pool, x, matrix, None),
            Right::InOrder(columns) => {
                let dot = |row: &[f32], column: &[f32]| -> f32 {
                    row.iter().zip(column).fold(0.0, |sum, (a, b)| sum + a * b)
                };
                let mut out = buffer(x.len() / inner * (columns.len() / inner))?;
                for row in x.chunks_exact(inner) {
                    out.extend(columns.chunks_exact(inner).map(|column| dot(row, column)));
                }
                Ok(out)
            }
        }
    }
}

fn batched(
    sums: Sums<'_>,
    x: &Tensor,
    y: &Tensor,
    [swap_x, swap_y]: [bool; 2],
    shape: &[usize],
) -> Outcome<Tensor> {
    let rank = shape.len();
    let [rows, cols] = [shape[rank - 2], shape[rank - 1]];
    let inner = x.shape()[x.shape().len() - if swap_x { 2 } else { 1 }];
    let (Some(xs), Some(ys)) = (x.as_floats(), y.as_floats()) else {
        return Err("x or y has no floating-point numbers".into());
    };
    let outer = &shape[..rank - 2];
    let first = |own: &[usize], i: usize| -> usize {
        // Index of the matrix that a batch of the result uses.
        let (mut rest, mut at) = (i, 0);
        let own = &own[..own.len() - 2];
        let steps = strides(own);
        for dim in (0..outer.len()).rev() {
            let index = rest % outer[dim];
            rest /= outer[dim];
            if let Some(own_dim) = (dim + own.len()).checked_sub(outer.len())
                && own[own_dim] != 1
            {
                at += index * steps[own_dim];
            }
        }
        at
    };
    let mut out = buffer(shape.iter().product())?;
    let mut prepared: Option<(usize, Right<'_>)> = None;
    for i in 0..outer.iter().product() {
        let (at_x, at_y) = (first(x.shape(), i), first(y.shape(), i));
        let a = &xs[at_x * rows * inner..(at_x + 1) * rows * inner];
        if rows * cols * inner == 0 {
            out.extend(std::iter::repeat_n(0.0, rows * cols));
            continue;
        }
        if prepared.as_ref().is_none_or(|(at, _)| *at != at_y) {
            let b = &ys[at_y * inner * cols..(at_y + 1) * inner * cols];
            let turned;
            let columns = match swap_y {
                true => b,
                false => {
                    turned = transposed(b, inner, cols)?;
                    &turned
                }
            };
            prepared = Some((at_y, Right::new(columns, inner, sums)?));
        }
        let (_, right) = prepared.as_ref().expect("made above");
        out.extend(match swap_x {
            true => right.times(&transposed(a, inner, rows)?, inner)?,
            false => right.times(a, inner)?,
        });
    }
    Ok(Tensor::floats(shape, out))
}

/// Attention as one operation, with scores over the square root of a query's length.
pub(super) fn attention(call: &mut Call<'_>) -> Outcome<Tensor> {
    let [query, key, value] = [call.tensor("query")?, call.tensor("key")?, call.tensor("value")?];
    let (q, k) = (query.shape(), key.shape());
    let rank = q.len();
    let (width, keys) = (q[rank - 1], k[rank - 2]);
    let shape = [&q[..rank - 1], &[keys]].concat();
    let sums = Sums::ByKernel(call.pool);
    let scores = batched(sums, &query, &key, [false, true], &shape)?;
    let mut scores = scores.into_floats().expect("products are numbers");
    let scale = 1.0 / (width as f32).sqrt();
    scores.iter_mut().for_each(|s| *s *= scale);
    if let Some(mask) = call.optional("attn_mask")? {
        let mask = match mask.as_floats() {
            Some(_) => mask,
            None => {
                let hidden = |&seen: &bool| if seen { 0.0 } else { f32::NEG_INFINITY };
                let shape = mask.shape().to_vec();
                let seen = <bool as super::tensor::Element>::unwrap(mask).ok_or("attn_mask")?;
                Tensor::floats(&shape, seen.iter().map(hidden).collect())
            }
        };
        let sum = super::elementwise::add(&shape, Tensor::floats(&shape, scores), mask)?;
        scores = sum.into_floats().expect("sums are numbers");
    }
    scores.chunks_exact_mut(keys.max(1)).for_each(softmax_row);
    let scores = Tensor::floats(&shape, scores);
    batched(sums, &scores, &value, [false, false], &call.ty().shape)
}
