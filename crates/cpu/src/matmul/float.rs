//! Matrices of f32, f16 and bf16 times activations of f32.
//!
//! One piece of generic code, compiled once for each instruction set. Every product is summed in
//! [`LANES`] partial sums, whatever the batch, so that results do not depend on it.

use baton_weights::DType;

use super::formats::float_at;
use super::scratch::Scratch;
use super::work::Work;
use crate::isa::Isa;

/// Partial sums of one product.
const LANES: usize = 8;
/// Matrix rows and tokens that are multiplied together: as many as registers hold.
const TILE_ROWS: usize = 4;
const TILE_TOKENS: usize = 3;

/// Does the work, which is of a float type.
pub(super) fn run(isa: Isa, work: &Work<'_>, scratch: &mut Scratch) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_avx2(work: &Work<'_>, scratch: &mut Scratch) {
            each_tile::<true>(work, scratch);
        }
        if matches!(isa, Isa::Avx2 | Isa::Avx512) {
            // SAFETY: a pool's instruction set is one that the machine has.
            unsafe { with_avx2(work, scratch) };
            return;
        }
    }
    match isa {
        // Fused multiply-add is part of every AArch64; elsewhere it may be a function call.
        Isa::Neon | Isa::NeonI8mm => each_tile::<true>(work, scratch),
        _ => each_tile::<false>(work, scratch),
    }
}

#[inline(always)]
fn each_tile<const FUSED: bool>(work: &Work<'_>, scratch: &mut Scratch) {
    let cols = work.x.cols;
    let padded = cols.next_multiple_of(LANES);
    let weights = scratch.scale.floats(TILE_ROWS * padded);
    for first in work.rows.clone().step_by(TILE_ROWS) {
        for (i, row) in weights.chunks_exact_mut(padded.max(1)).enumerate() {
            // Rows past the end repeat the last; their products are dropped.
            let index = (first + i).min(work.rows.end - 1);
            let packed = work.job.matrix.row(index).data;
            match work.job.matrix.dtype() {
                DType::F32 => unpack(packed, row, DType::F32),
                DType::F16 => unpack(packed, row, DType::F16),
                _ => unpack(packed, row, DType::BF16),
            }
            row[cols..].fill(0.0);
        }
        let tokens = work.job.tokens.len();
        let mut token = 0;
        while token + TILE_TOKENS <= tokens {
            tile::<TILE_TOKENS, FUSED>(work, first, token, weights);
            token += TILE_TOKENS;
        }
        while token < tokens {
            tile::<1, FUSED>(work, first, token, weights);
            token += 1;
        }
    }
}

#[inline(always)]
fn unpack(packed: &[u8], out: &mut [f32], dtype: DType) {
    let count = packed.len() / dtype.block_bytes();
    for (i, out) in out[..count].iter_mut().enumerate() {
        *out = float_at(packed, i, dtype);
    }
}

/// The products of `T` tokens with the rows in `weights`.
#[inline(always)]
fn tile<const T: usize, const FUSED: bool>(
    work: &Work<'_>,
    row: usize,
    token: usize,
    weights: &[f32],
) {
    let cols = work.x.cols;
    let padded = weights.len() / TILE_ROWS;
    let x: [&[f32]; T] = std::array::from_fn(|t| {
        let start = work.job.tokens.row(token + t) * cols;
        &work.x.x[start..start + cols]
    });
    let w: [&[f32]; TILE_ROWS] = std::array::from_fn(|r| &weights[r * padded..(r + 1) * padded]);
    let mut sums = [[[0.0f32; LANES]; TILE_ROWS]; T];
    let whole = cols / LANES * LANES;
    for k in (0..whole).step_by(LANES) {
        let w: [&[f32; LANES]; TILE_ROWS] =
            std::array::from_fn(|r| w[r][k..k + LANES].try_into().expect("a whole step"));
        for (sums, x) in sums.iter_mut().zip(&x) {
            let x: &[f32; LANES] = x[k..k + LANES].try_into().expect("a whole step");
            step::<FUSED>(sums, &w, x);
        }
    }
    if whole < cols {
        let w: [&[f32; LANES]; TILE_ROWS] =
            std::array::from_fn(|r| w[r][whole..].try_into().expect("rows are padded"));
        for (sums, x) in sums.iter_mut().zip(&x) {
            let mut last = [0.0; LANES];
            last[..cols - whole].copy_from_slice(&x[whole..]);
            step::<FUSED>(sums, &w, &last);
        }
    }
    for (t, sums) in sums.iter().enumerate() {
        let products =
            sums.map(|s| ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])));
        work.store(token + t, row, &products);
    }
}

#[inline(always)]
fn step<const FUSED: bool>(
    sums: &mut [[f32; LANES]; TILE_ROWS],
    w: &[&[f32; LANES]; TILE_ROWS],
    x: &[f32; LANES],
) {
    for (sums, w) in sums.iter_mut().zip(w) {
        for lane in 0..LANES {
            sums[lane] = if FUSED {
                w[lane].mul_add(x[lane], sums[lane])
            } else {
                w[lane] * x[lane] + sums[lane]
            };
        }
    }
}
