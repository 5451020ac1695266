//! Products of activations with weight matrices, in the weights' own formats.
//!
//! ```text
//! formats      what a row of each format consists of in a file
//! packed       the order in which the kernels read it
//! identity     what tells packed weights apart
//! work         how a product is split into tasks
//! panels       the integer kernels: panels of rows against tiles of tokens
//! vectors      what they need of an instruction set: portable, avx2, avx512, neon
//! float        matrices of f32, f16, bf16
//! ```
//!
//! Kernels take a panel of neighbouring matrix rows at a time. With many tokens a panel is unpacked
//! once into a thread's scratch memory; with few it is read as it is kept. Both ways add up the
//! same numbers in the same order, so a token's result does not depend on the batch it came in.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
mod formats;
mod identity;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
mod panels;
mod portable;
mod scratch;
mod vectors;
mod work;

#[cfg(test)]
mod tests;

pub(crate) use formats::{BLOCK, f16 as single};
pub(crate) use matrix::pack_cached;
pub use matrix::{Matrix, MatrixError, pack};

use crate::pool::Pool;
use crate::quant::Rows;
use work::{Job, Tokens};

/// What happens to a product before it is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to each row of the output; as long as a row of the product.
    pub bias: Option<&'a [f32]>,
    /// Whether the product is added to what the output holds.
    pub accumulate: bool,
}

/// One expert's share of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// The expert's matrix.
    pub matrix: &'a Matrix,
    /// Which activation rows go through it.
    pub rows: &'a [u32],
}

/// `out[r, ..] = x[r] · [w0; w1; ..]ᵀ` for every row `r`, row `r` of the output starting at
/// `r * stride`. The matrices' outputs lie side by side, in order. Columns of `out` beyond them
/// are left as they are.
///
/// # Panics
/// If shapes do not fit together, a quantized matrix meets activations that are not, or is not
/// [packed](pack) for the pool's instruction set.
pub fn matmul(
    pool: &Pool,
    x: &Rows<'_>,
    matrices: &[&Matrix],
    out: &mut [f32],
    stride: usize,
    epilogue: Epilogue<'_>,
) {
    let width = matrices.iter().map(|m| m.rows()).sum();
    check(x, matrices.iter().copied(), out, stride, width, x.rows(), epilogue);
    let job = |i: usize, before: Option<Job<'_>>| Job {
        matrix: matrices[i],
        tokens: Tokens::All(x.rows()),
        first_row: 0,
        first_col: before.map_or(0, |job| job.first_col + job.matrix.rows()),
    };
    work::run(pool, x, matrices.len(), job, out, stride, epilogue);
}

/// `out[i, ..] = x[r_i] · wᵀ` for each expert's matrix `w` and each of its rows `r_i`, the outputs
/// of the experts one below the other, in order.
///
/// # Panics
/// As [`matmul`]; also if an expert's row is out of bounds or the matrices differ in shape.
pub fn matmul_experts(
    pool: &Pool,
    x: &Rows<'_>,
    experts: &[Expert<'_>],
    out: &mut [f32],
    stride: usize,
    epilogue: Epilogue<'_>,
) {
    let width = experts.first().map_or(0, |e| e.matrix.rows());
    let rows = experts.iter().map(|e| e.rows.len()).sum();
    check(x, experts.iter().map(|e| e.matrix), out, stride, width, rows, epilogue);
    for expert in experts {
        assert_eq!(expert.matrix.rows(), width, "experts' matrices differ in shape");
        assert!(expert.rows.iter().all(|&r| (r as usize) < x.rows()), "no such activation row");
    }
    let job = |i: usize, before: Option<Job<'_>>| Job {
        matrix: experts[i].matrix,
        tokens: Tokens::List(experts[i].rows),
        first_row: before.map_or(0, |job| job.first_row + job.tokens.len()),
        first_col: 0,
    };
    work::run(pool, x, experts.len(), job, out, stride, epilogue);
}

fn check<'a>(
    x: &Rows<'_>,
    matrices: impl Iterator<Item = &'a Matrix>,
    out: &[f32],
    stride: usize,
    width: usize,
    rows: usize,
    epilogue: Epilogue<'_>,
) {
    for matrix in matrices {
        assert_eq!(matrix.cols(), x.cols(), "{} and the activations differ in length", matrix);
        assert!(matrix.is_float() || x.quantized.is_some(), "{matrix} wants quantized activations");
    }
    assert!(width <= stride, "rows of {width} in a stride of {stride}");
    let needed = rows.checked_sub(1).map_or(0, |last| last * stride + width);
    assert!(needed <= out.len(), "{rows} rows of {width} need {needed}, have {}", out.len());
    assert!(epilogue.bias.is_none_or(|b| b.len() == width), "the bias has another length");
}
