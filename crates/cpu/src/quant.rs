//! Activations as the matrix kernels read them: integers of 8 or 12 bits, 32 to a scale.
//!
//! Rounding all activations to 8 bits costs more accuracy than 4-bit weights leave, but nearly all of
//! that is lost in the few blocks that stand out of their row: their step is large because of one or
//! two values, and the rest of the block is rounded with it. Those have 12 bits, the others 8.
//!
//! An integer is kept as two bytes, `HIGH * high + low`, so that kernels multiply bytes only. Where a
//! block has 8 bits the high ones are zero, and a kernel may leave them out. Kernels that add up
//! products in 16 bits want both parts within ±`MOST_PART`, whatever the number of bits.
//!
//! A row is quantized alone and the same way whatever the batch, so that a token's results do not
//! depend on its neighbours. Quantized rows are shared by all matrices that read them.

use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::matmul::BLOCK;
use crate::pool::Pool;

/// What the high part of an integer counts for.
pub(crate) const HIGH: i32 = 64;
/// Largest magnitude of either part.
pub(crate) const MOST_PART: i32 = 32;
/// Largest magnitude of an integer of 12 bits.
const MOST: i32 = HIGH * MOST_PART + MOST_PART;
/// Largest magnitude of an integer of 8 bits.
const MOST_COARSE: i32 = 127;
/// A block stands out if a value in it is larger than so many times the row's root mean square.
const OUTSTANDING: f32 = 6.0;

/// How many bits activations are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// 12 where a block stands out of its row, else 8.
    ByNeed,
    /// 12.
    Fine,
}

/// Buffers of quantized activations, to be kept and filled again: filling them allocates only
/// while they grow.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    rows: usize,
    cols: usize,
    /// Block by block the high, then the low parts.
    pub(crate) values: Vec<i8>,
    /// One per block.
    pub(crate) scale: Vec<f32>,
    /// For each block, whether it has high parts that are not zero.
    pub(crate) fine: Vec<bool>,
    /// Sums of the negated integers of each half block and of each block.
    pub(crate) minus16: Vec<i32>,
    pub(crate) minus32: Vec<i32>,
    /// Sums of the integers, times the scale.
    pub(crate) scaled16: Vec<f32>,
    pub(crate) scaled32: Vec<f32>,
}

/// Activations of a batch, row-major: what a matrix is multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) cols: usize,
    pub(crate) quantized: Option<&'a QuantizedRows>,
}

impl<'a> Rows<'a> {
    /// Activations `[rows, cols]` for matrices of floats only.
    ///
    /// # Panics
    /// If `x` is no whole number of rows.
    pub fn floats(x: &'a [f32], cols: usize) -> Rows<'a> {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} values in rows of {cols}", x.len());
        Rows { x, cols, quantized: None }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.x.len() / self.cols
    }

    /// Length of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

impl QuantizedRows {
    /// Empty buffers.
    pub fn new() -> QuantizedRows {
        QuantizedRows::default()
    }

    /// Quantizes the activations `x`, `[rows, cols]`. A block with an infinity or NaN in it makes
    /// every product that it enters NaN.
    ///
    /// # Panics
    /// If `x` is no whole number of rows, or `cols` no multiple of 32.
    pub fn quantize<'a>(
        &'a mut self,
        pool: &Pool,
        x: &'a [f32],
        cols: usize,
        rounding: Rounding,
    ) -> Rows<'a> {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} values in rows of {cols}", x.len());
        assert!(cols.is_multiple_of(BLOCK), "rows of {cols} are no multiple of {BLOCK}");
        (self.rows, self.cols) = (x.len() / cols, cols);
        let blocks = x.len() / BLOCK;
        self.values.resize(2 * x.len(), 0);
        self.minus16.resize(2 * blocks, 0);
        self.minus32.resize(blocks, 0);
        self.fine.resize(blocks, false);
        self.scaled16.resize(2 * blocks, 0.0);
        for wholes in [&mut self.scale, &mut self.scaled32] {
            wholes.resize(blocks, 0.0);
        }

        // A few kilobytes each: less is not worth waking a thread for.
        let rows_each = (8192 / cols).max(1);
        let tasks = self.rows.div_ceil(rows_each);
        let values = Disjoint::new(&mut self.values);
        let (scale, minus32) = (Disjoint::new(&mut self.scale), Disjoint::new(&mut self.minus32));
        let fine = Disjoint::new(&mut self.fine);
        let minus16 = Disjoint::new(&mut self.minus16);
        let scaled16 = Disjoint::new(&mut self.scaled16);
        let scaled32 = Disjoint::new(&mut self.scaled32);
        let isa = pool.isa();
        pool.run(tasks, |task, _| {
            let start = task * rows_each * cols;
            let end = (start + rows_each * cols).min(x.len());
            let (first, last) = (start / BLOCK, end / BLOCK);
            // SAFETY: tasks have distinct ranges of whole blocks.
            let part = unsafe {
                Blocks {
                    values: values.part(2 * start..2 * end),
                    scale: scale.part(first..last),
                    fine: fine.part(first..last),
                    minus16: minus16.part(2 * first..2 * last),
                    minus32: minus32.part(first..last),
                    scaled16: scaled16.part(2 * first..2 * last),
                    scaled32: scaled32.part(first..last),
                }
            };
            quantize_rows(isa, &x[start..end], cols, rounding, part);
        });
        Rows { x, cols, quantized: Some(self) }
    }
}

/// Consecutive blocks of a [`QuantizedRows`].
struct Blocks<'a> {
    values: &'a mut [i8],
    scale: &'a mut [f32],
    fine: &'a mut [bool],
    minus16: &'a mut [i32],
    minus32: &'a mut [i32],
    scaled16: &'a mut [f32],
    scaled32: &'a mut [f32],
}

fn quantize_rows(isa: Isa, x: &[f32], cols: usize, rounding: Rounding, out: Blocks<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2(x: &[f32], cols: usize, rounding: Rounding, out: Blocks<'_>) {
            each_block::<true>(x, cols, rounding, out);
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
        fn with_avx512(x: &[f32], cols: usize, rounding: Rounding, out: Blocks<'_>) {
            each_block::<false>(x, cols, rounding, out);
        }
        match isa {
            // SAFETY: a pool's instruction set is one that the machine has.
            Isa::Avx2 => return unsafe { with_avx2(x, cols, rounding, out) },
            // SAFETY: as above.
            Isa::Avx512 => return unsafe { with_avx512(x, cols, rounding, out) },
            _ => {}
        }
    }
    let _ = isa;
    each_block::<false>(x, cols, rounding, out);
}

/// `SPLIT` says whether integers of 8 bits are split too.
#[inline(always)]
fn each_block<const SPLIT: bool>(x: &[f32], cols: usize, rounding: Rounding, out: Blocks<'_>) {
    let mut i = 0;
    for row in x.chunks_exact(cols) {
        let calm = match rounding {
            Rounding::ByNeed => OUTSTANDING * root_mean_square(row),
            Rounding::Fine => -1.0,
        };
        for x in row.as_chunks::<BLOCK>().0 {
            let values = out.values[2 * i * BLOCK..].first_chunk_mut().expect("room for a block");
            let block = quantize_block::<SPLIT>(x, calm, values);
            let (scale, [low, high]) = (block.scale, block.sums);
            out.scale[i] = scale;
            out.fine[i] = block.fine;
            (out.minus16[2 * i], out.minus16[2 * i + 1]) = (-low, -high);
            (out.scaled16[2 * i], out.scaled16[2 * i + 1]) =
                (scale * low as f32, scale * high as f32);
            out.minus32[i] = -(low + high);
            out.scaled32[i] = scale * (low + high) as f32;
            i += 1;
        }
    }
}

/// Adds up in the same order with every instruction set.
#[inline(always)]
fn root_mean_square(row: &[f32]) -> f32 {
    let mut squares = [0.0; BLOCK];
    for x in row.as_chunks::<BLOCK>().0 {
        for i in 0..BLOCK {
            squares[i] += x[i] * x[i];
        }
    }
    (squares.iter().sum::<f32>() / row.len() as f32).sqrt()
}

/// The nearest integer of a number that is far below 2^22: adding 1.5 * 2^23 leaves it in the low bits.
#[inline(always)]
fn nearest(v: f32) -> i32 {
    ((v + 12_582_912.0).to_bits() as i32).wrapping_sub(0x4b40_0000)
}

/// What a block became, beside its integers.
struct Block {
    scale: f32,
    /// Sums of the two halves' integers.
    sums: [i32; 2],
    fine: bool,
}

/// Rounds to the nearest multiple of the block's scale, which maps its largest value to [`MOST`], or to
/// [`MOST_COARSE`] if it is at most `calm`.
///
/// Its loops are as plain as they are, and do not check for overflow, so that they become vector
/// instructions: closures handed to functions of arrays would not get the instruction set of where
/// this ends up.
#[inline(always)]
fn quantize_block<const SPLIT: bool>(
    x: &[f32; BLOCK],
    calm: f32,
    out: &mut [i8; 2 * BLOCK],
) -> Block {
    // Magnitudes compare like the integers that their bits are, infinities and NaN last.
    let mut largest = 0;
    for v in x {
        largest = largest.max((v.to_bits() & 0x7fff_ffff) as i32);
    }
    let largest = f32::from_bits(largest as u32);
    if !largest.is_finite() {
        *out = [0; 2 * BLOCK];
        return Block { scale: f32::NAN, sums: [0; 2], fine: false };
    }
    let coarse = largest <= calm;
    let most = if coarse { MOST_COARSE } else { MOST } as f32;
    // What is too small to be divided by counts as zero.
    let (scale, inverse) =
        if largest > 1e-34 { (largest / most, most / largest) } else { (0.0, 0.0) };
    let mut integers = [0; BLOCK];
    for i in 0..BLOCK {
        integers[i] = nearest(x[i] * inverse);
    }
    if coarse && !SPLIT {
        for i in 0..BLOCK {
            out[i] = 0;
            out[BLOCK + i] = integers[i] as i8;
        }
    } else {
        for i in 0..BLOCK {
            let high = nearest(integers[i] as f32 * (1.0 / HIGH as f32));
            out[i] = high as i8;
            out[BLOCK + i] = integers[i].wrapping_sub(high.wrapping_mul(HIGH)) as i8;
        }
    }
    let mut sums = [0; 2];
    for i in 0..BLOCK / 2 {
        sums[0] = integers[i].wrapping_add(sums[0]);
        sums[1] = integers[BLOCK / 2 + i].wrapping_add(sums[1]);
    }
    Block { scale, sums, fine: !coarse || SPLIT }
}

#[cfg(test)]
mod tests;
