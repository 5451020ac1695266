//! Matrices of f32, f16 and bf16 times activations of f32.
//!
//! One piece of code for every instruction set. A product is always summed in the same way,
//! whatever the batch, so that results do not depend on it.

use baton_weights::DType;

use super::scratch::Scratch;
use super::work::Work;
use crate::isa::Isa;
use crate::simd::{self, Kernel, Simd};

/// Matrix rows and tokens that are multiplied together: as many as registers hold.
const TILE_ROWS: usize = 4;
const TILE_TOKENS: usize = 3;

/// Does the work, which is of a float type.
pub(super) fn run(isa: Isa, work: &Work<'_>, scratch: &mut Scratch) {
    simd::dispatch(isa, Product { work, scratch });
}

struct Product<'a, 'b> {
    work: &'a Work<'b>,
    scratch: &'a mut Scratch,
}

impl Kernel for Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let work = self.work;
        let cols = work.x.cols;
        let weights = self.scratch.scale.floats(TILE_ROWS * cols);
        for first in work.rows.clone().step_by(TILE_ROWS) {
            for (i, row) in weights.chunks_exact_mut(cols).enumerate() {
                // Rows past the end repeat the last; their products are dropped.
                let index = (first + i).min(work.rows.end - 1);
                unpack(s, work.job.matrix.dtype(), work.job.matrix.row(index).data, row);
            }
            let tokens = work.job.tokens.len();
            let mut token = 0;
            while token + TILE_TOKENS <= tokens {
                tile::<S, TILE_TOKENS>(s, work, first, token, weights);
                token += TILE_TOKENS;
            }
            while token < tokens {
                tile::<S, 1>(s, work, first, token, weights);
                token += 1;
            }
        }
    }
}

#[inline(always)]
fn unpack<S: Simd>(s: S, dtype: DType, packed: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (out, bytes) in out.iter_mut().zip(packed.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        DType::BF16 => {
            for (out, bytes) in out.iter_mut().zip(packed.as_chunks().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        _ => {
            let whole = out.len() / S::LANES * S::LANES;
            assert!(packed.len() == 2 * out.len());
            for k in (0..whole).step_by(S::LANES) {
                // SAFETY: `k + LANES` elements are in both slices; rows start at any byte, and
                // reading needs no alignment.
                let v = unsafe { s.load_half_at(packed.as_ptr().add(2 * k).cast()) };
                s.store(&mut out[k..], v);
            }
            for (out, bytes) in out[whole..].iter_mut().zip(packed[2 * whole..].as_chunks().0) {
                *out = super::formats::f16(u16::from_le_bytes(*bytes));
            }
        }
    }
}

/// The products of `T` tokens with the rows in `weights`.
#[inline(always)]
fn tile<S: Simd, const T: usize>(s: S, work: &Work<'_>, row: usize, token: usize, weights: &[f32]) {
    let cols = work.x.cols;
    let x: [&[f32]; T] = std::array::from_fn(|t| {
        let start = work.job.tokens.row(token + t) * cols;
        &work.x.x[start..start + cols]
    });
    let w: [&[f32]; TILE_ROWS] = std::array::from_fn(|r| &weights[r * cols..(r + 1) * cols]);
    let whole = cols / S::LANES * S::LANES;
    let mut sums = [[s.splat(0.0); TILE_ROWS]; T];
    for k in (0..whole).step_by(S::LANES) {
        // SAFETY: `k + LANES` elements are in each of the slices.
        let w: [S::V; TILE_ROWS] =
            std::array::from_fn(|r| unsafe { s.load_at(w[r].as_ptr().add(k)) });
        for t in 0..T {
            // SAFETY: as above.
            let x = unsafe { s.load_at(x[t].as_ptr().add(k)) };
            for r in 0..TILE_ROWS {
                sums[t][r] = s.mul_add(w[r], x, sums[t][r]);
            }
        }
    }
    for t in 0..T {
        let rest = |r: usize| {
            let rest = w[r][whole..].iter().zip(&x[t][whole..]);
            rest.fold(0.0, |sum, (w, x)| sum + w * x)
        };
        let products: [f32; TILE_ROWS] = std::array::from_fn(|r| s.sum(sums[t][r]) + rest(r));
        work.store(token + t, row, &products);
    }
}
