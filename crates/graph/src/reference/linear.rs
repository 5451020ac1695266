//! Matrix products.

use baton_weights::Tensor;
use rayon::prelude::*;

use super::{Interpreter, Matrix};
use crate::{ExecError, Linear};

impl Interpreter {
    pub(super) fn linear(&self, linear: &Linear, x: &Matrix) -> Result<Matrix, ExecError> {
        let mut parts = Vec::new();
        for part in &linear.parts {
            let tensor = self.weights.tensor(self.weight_name(part.weight))?;
            let bias = part.bias.map(|b| self.weight(b)).transpose()?;
            parts.push(product(x, tensor, bias.as_deref()));
        }
        let mut out = Matrix { cols: parts.iter().map(|p| p.cols).sum(), data: Vec::new() };
        for row in 0..x.rows() {
            parts.iter().for_each(|part| out.data.extend_from_slice(part.row(row)));
        }
        Ok(out)
    }
}

/// `x W^T + bias` for `x (rows, in)` and `W (out, in)`.
pub(super) fn product(x: &Matrix, weight: &Tensor, bias: Option<&[f32]>) -> Matrix {
    let (rows, outs) = (x.rows(), weight.rows());
    // Column `o` of the result belongs to row `o` of the weight, which is dequantized once.
    let columns: Vec<Vec<f32>> = (0..outs)
        .into_par_iter()
        .map_init(
            || vec![0.0; x.cols],
            |buffer, o| {
                weight.dequantize_row(o, buffer);
                let offset = bias.map_or(0.0, |bias| bias[o]);
                (0..rows).map(|r| dot(x.row(r), buffer) + offset).collect()
            },
        )
        .collect();
    let mut out = Matrix::zeros(rows, outs);
    for (o, column) in columns.iter().enumerate() {
        for (r, &value) in column.iter().enumerate() {
            out.data[r * outs + o] = value;
        }
    }
    out
}

/// Dot product in sixteen partial sums, which is both quicker and more exact than one.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    let (whole_a, rest_a) = a.as_chunks::<16>();
    let (whole_b, rest_b) = b.as_chunks::<16>();
    for (a, b) in whole_a.iter().zip(whole_b) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
