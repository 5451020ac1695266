//! The integer kernels in plain Rust: for machines without faster ones, and the measure of those.

use super::formats::{BLOCK, Format, f16, with_format};
use super::packed::CHUNKS;
use super::panels::{self, Token};
use super::scratch::Scratch;
use super::vectors::{Source, Vectors};
use super::work::Work;

/// Neighbouring columns of a row.
const RUN: usize = 4;

/// Does the work, which is of a quantized format.
pub(super) fn run(work: &Work<'_>, scratch: &mut Scratch) {
    fn with<F: Format>(work: &Work<'_>, scratch: &mut Scratch) {
        // SAFETY: plain Rust runs anywhere.
        unsafe { panels::run::<F, Portable<8>>(work, scratch) };
    }
    with_format!(work.job.matrix.dtype(), F => with::<F>(work, scratch),
        else unreachable!("floats have a kernel of their own"));
}

/// Arrays, as if they were vectors.
#[derive(Clone, Copy)]
pub(super) struct Portable<const ROWS: usize>;

/// A number for each row, made of two bytes.
#[inline(always)]
unsafe fn pairs<const ROWS: usize>(at: *const u8, number: impl Fn([u8; 2]) -> f32) -> [f32; ROWS] {
    // SAFETY: as demanded of the caller.
    let bytes = unsafe { at.cast::<[[u8; 2]; ROWS]>().read_unaligned() };
    bytes.map(number)
}

impl<const ROWS: usize> Vectors for Portable<ROWS> {
    const ROWS: usize = ROWS;
    const SIGNED: bool = false;
    type Bytes = [[u8; RUN]; ROWS];
    type Floats = [f32; ROWS];

    #[inline(always)]
    unsafe fn bytes(at: *const u8) -> Self::Bytes {
        // SAFETY: as demanded of the caller, here and below.
        unsafe { at.cast::<Self::Bytes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_bytes(at: *mut u8, v: Self::Bytes) {
        // SAFETY: see `bytes`.
        unsafe { at.cast::<Self::Bytes>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn bits(v: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes {
        v.map(|run| run.map(|byte| byte >> shift & mask))
    }

    #[inline(always)]
    unsafe fn put_above(low: Self::Bytes, high: Self::Bytes, shift: usize) -> Self::Bytes {
        std::array::from_fn(|r| std::array::from_fn(|i| low[r][i] | high[r][i] << shift))
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes {
        indices.map(|run| run.map(|i| table[usize::from(i & 15)]))
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        [x; ROWS]
    }

    #[inline(always)]
    unsafe fn floats(at: *const f32) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { at.cast::<Self::Floats>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_floats(at: *mut f32, v: Self::Floats) {
        // SAFETY: see `bytes`.
        unsafe { at.cast::<Self::Floats>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { pairs(at, |bytes| f16(u16::from_le_bytes(bytes))) }
    }

    #[inline(always)]
    unsafe fn brains(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { pairs(at, |[low, high]| f32::from_le_bytes([0, 0, low, high])) }
    }

    #[inline(always)]
    unsafe fn small_integers(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        let bytes = unsafe { at.cast::<[i8; ROWS]>().read_unaligned() };
        bytes.map(f32::from)
    }

    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn dot<F: Format, S: Source<F, Self>>(
        panel: S,
        block: usize,
        chunk: usize,
        x: i32,
    ) -> Self::Floats {
        let mut sums = [0; ROWS];
        // SAFETY: see `bytes`.
        let w = unsafe { panel.integers(block, chunk) };
        add(&mut sums, &w, x);
        sums.map(|sum| sum as f32)
    }

    #[inline(always)]
    unsafe fn sums<F: Format, S: Source<F, Self>, const T: usize>(
        panel: S,
        tokens: &[Token; T],
        block: usize,
        part: usize,
    ) -> [Self::Floats; T] {
        let chunks = CHUNKS * F::GROUP / BLOCK;
        let mut sums = [[0i32; ROWS]; T];
        for (sums, token) in sums.iter_mut().zip(tokens) {
            // SAFETY: see `bytes`.
            *sums = [unsafe { token.correction::<F, Self>(block, part) }; ROWS];
        }
        for chunk in part * chunks..(part + 1) * chunks {
            // SAFETY: see `bytes`.
            let w = unsafe { panel.integers(block, chunk) };
            for (sums, token) in sums.iter_mut().zip(tokens) {
                // SAFETY: see `bytes`.
                add(sums, &w, unsafe { token.low(block, chunk) });
            }
        }
        sums.map(|sums| sums.map(|sum| sum as f32))
    }
}

/// Adds the products of each row's run with the four activations in `x`.
#[inline(always)]
fn add<const ROWS: usize>(sums: &mut [i32; ROWS], w: &[[u8; RUN]; ROWS], x: i32) {
    let x = x.to_ne_bytes().map(|x| i32::from(x as i8));
    for (sum, w) in sums.iter_mut().zip(w) {
        *sum += w.iter().zip(x).map(|(&w, x)| i32::from(w) * x).sum::<i32>();
    }
}
