//! Activations as the matrix kernels read them: integers of 8 bits, 32 to a scale.
//!
//! Rounding all activations to 8 bits costs more accuracy than 4-bit weights leave, but nearly all of
//! that is lost in the few blocks that stand out of their row: their step is large because of one or
//! two values, and the rest of the block is rounded with it. There the step is that of the rest, and
//! what a value that stands out has beyond 8 bits is kept in a list of outliers, which kernels go
//! through when they are done with the blocks.
//!
//! Where 8 bits are too few for all, a row is kept as two: itself rounded, and what that left over.
//!
//! A row is quantized alone and the same way whatever the batch, so that a token's results do not
//! depend on its neighbours. Quantized rows are shared by all matrices that read them.

#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::matmul::BLOCK;
use crate::pool::Pool;

/// What the high part of an outlier counts for.
pub(crate) const HIGH: i32 = 64;
/// Columns of a chunk, whose high parts are kept together.
pub(crate) const CHUNK: usize = 4;
/// Chunks of a block.
const CHUNKS: usize = BLOCK / CHUNK;
/// Blocks whose outliers are listed together.
pub(crate) const PART: usize = 64;
/// Largest magnitude of an integer without a high part, so of any low part.
pub(crate) const MOST_LOW: i32 = 127;
/// Largest magnitude of an integer: high parts are no larger than low ones.
const MOST: i32 = HIGH * MOST_LOW;
/// A block stands out if a value in it is larger than so many times the row's root mean square.
const OUTSTANDING: f32 = 5.0;
/// The least that the largest integer without a high part stands for in such a block, likewise.
const CALM: f32 = 2.0;

/// How finely activations are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To 8 bits, but for values that stand out of their row.
    Coarse,
    /// To 15 bits or so.
    Fine,
}

impl Rounding {
    /// How many quantized rows stand for one.
    fn passes(self) -> usize {
        match self {
            Rounding::Coarse => 1,
            Rounding::Fine => 2,
        }
    }
}

/// A block of a quantized row: a cache line, so that a kernel follows one stream for each token.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    /// The low parts of the integers.
    pub(crate) low: [i8; BLOCK],
    /// What an integer is to be multiplied with.
    pub(crate) scale: f32,
    /// Sums of the negated integers of each half and of the block.
    pub(crate) minus16: [i32; 2],
    pub(crate) minus32: i32,
    /// Sums of the integers, times the scale.
    pub(crate) scaled16: [f32; 2],
    pub(crate) scaled32: f32,
}

impl Block {
    const ZERO: Block = Block {
        low: [0; BLOCK],
        scale: 0.0,
        minus16: [0; 2],
        minus32: 0,
        scaled16: [0.0; 2],
        scaled32: 0.0,
    };

    /// Sets the low parts to the low bytes of integers.
    #[inline(always)]
    fn set_low(&mut self, integers: &[i32; BLOCK]) {
        for (low, integer) in self.low.iter_mut().zip(integers) {
            *low = *integer as i8;
        }
    }

    /// Sets what follows from the scale and the sums of both halves' integers.
    #[inline(always)]
    fn describe(&mut self, scale: f32, sums: [i32; 2]) {
        let all = sums[0].wrapping_add(sums[1]);
        self.scale = scale;
        self.minus16 = [sums[0].wrapping_neg(), sums[1].wrapping_neg()];
        self.minus32 = all.wrapping_neg();
        self.scaled16 = [scale * sums[0] as f32, scale * sums[1] as f32];
        self.scaled32 = scale * all as f32;
    }
}

/// A chunk with a value that stands out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlier {
    /// Its number in the row.
    pub(crate) chunk: u32,
    /// The high parts of its integers.
    pub(crate) high: [i8; CHUNK],
}

impl Outlier {
    const NONE: Outlier = Outlier { chunk: 0, high: [0; CHUNK] };
}

/// Buffers of quantized activations, to be kept and filled again: filling them allocates only
/// while they grow.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    cols: usize,
    /// How many rows stand for one.
    pub(crate) passes: usize,
    pub(crate) blocks: Vec<Block>,
    /// Room for all chunks of all rows. Those of a part are the first of its chunks' places.
    pub(crate) outliers: Vec<Outlier>,
    /// How many outliers each part of each row has.
    pub(crate) counts: Vec<u32>,
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
        self.cols = cols;
        self.passes = rounding.passes();
        let (rows, blocks) = (x.len() / cols, cols / BLOCK);
        let quantized = self.passes * rows;
        self.blocks.resize(quantized * blocks, Block::ZERO);
        self.outliers.resize(quantized * blocks * CHUNKS, Outlier::NONE);
        self.counts.resize(quantized * self.parts(), 0);

        // A few kilobytes each: less is not worth waking a thread for.
        let each = (8192 / cols).max(1);
        let (passes, parts) = (self.passes, self.parts());
        let all = Disjoint::new(&mut self.blocks);
        let outliers = Disjoint::new(&mut self.outliers);
        let counts = Disjoint::new(&mut self.counts);
        let isa = pool.isa();
        pool.run(rows.div_ceil(each), |task, _| {
            let (first, last) = (task * each, ((task + 1) * each).min(rows));
            let range = |of_row: usize| first * passes * of_row..last * passes * of_row;
            // SAFETY: tasks have distinct rows.
            let out = unsafe {
                Room {
                    blocks: all.part(range(blocks)),
                    outliers: outliers.part(range(blocks * CHUNKS)),
                    counts: counts.part(range(parts)),
                }
            };
            quantize_rows(isa, &x[first * cols..last * cols], cols, rounding, out);
        });
        Rows { x, cols, quantized: Some(self) }
    }

    /// Parts of a row.
    pub(crate) fn parts(&self) -> usize {
        parts(self.cols)
    }
}

/// Parts of a row of so many columns.
fn parts(cols: usize) -> usize {
    cols.div_ceil(PART * BLOCK)
}

/// Where consecutive rows are put.
struct Room<'a> {
    blocks: &'a mut [Block],
    outliers: &'a mut [Outlier],
    counts: &'a mut [u32],
}

fn quantize_rows(isa: Isa, x: &[f32], cols: usize, rounding: Rounding, out: Room<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2(x: &[f32], cols: usize, rounding: Rounding, out: Room<'_>) {
            each_row(x, cols, rounding, out, |_, _, _| false);
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
        fn with_avx512(x: &[f32], cols: usize, rounding: Rounding, out: Room<'_>) {
            // SAFETY: this function has the features.
            let calm = |x: &_, size, block: &mut _| avx512::quantize_calm(x, size, block);
            each_row(x, cols, rounding, out, calm);
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
    each_row(x, cols, rounding, out, |_, _, _| false);
}

/// `calm` is a faster way for blocks that it says it did.
#[inline(always)]
fn each_row(
    x: &[f32],
    cols: usize,
    rounding: Rounding,
    out: Room<'_>,
    calm: impl Fn(&[f32; BLOCK], f32, &mut Block) -> bool,
) {
    let Room { blocks, outliers, counts } = out;
    let (passes, parts) = (rounding.passes(), parts(cols));
    let rows = x.chunks_exact(cols).zip(blocks.chunks_exact_mut(passes * cols / BLOCK));
    let lists = outliers.chunks_exact_mut(passes * cols / CHUNK);
    for (((row, blocks), outliers), counts) in
        rows.zip(lists).zip(counts.chunks_exact_mut(passes * parts))
    {
        counts.fill(0);
        match rounding {
            Rounding::Coarse => coarse(row, blocks, outliers, counts, &calm),
            Rounding::Fine => fine(row, blocks),
        }
    }
}

#[inline(always)]
fn coarse(
    row: &[f32],
    blocks: &mut [Block],
    outliers: &mut [Outlier],
    counts: &mut [u32],
    calm: impl Fn(&[f32; BLOCK], f32, &mut Block) -> bool,
) {
    let size = root_mean_square(row);
    for (i, (x, block)) in row.as_chunks::<BLOCK>().0.iter().zip(blocks).enumerate() {
        if calm(x, size, block) {
            continue;
        }
        let Some(mut integers) = quantize_block(x, size, block) else { continue };
        let (part, count) = (i / PART, &mut counts[i / PART]);
        for (chunk, low) in integers.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
            if let Some(high) = split(low) {
                let chunk = (i * CHUNKS + chunk) as u32;
                outliers[part * PART * CHUNKS + *count as usize] = Outlier { chunk, high };
                *count += 1;
            }
        }
        block.set_low(&integers);
    }
}

/// A row and what its rounding left over.
#[inline(always)]
fn fine(row: &[f32], blocks: &mut [Block]) {
    let (first, second) = blocks.split_at_mut(row.len() / BLOCK);
    for ((x, first), second) in row.as_chunks::<BLOCK>().0.iter().zip(first).zip(second) {
        quantize_block(x, f32::INFINITY, first);
        let mut rest = [0.0; BLOCK];
        for i in 0..BLOCK {
            rest[i] = x[i] - first.scale * f32::from(first.low[i]);
        }
        quantize_block(&rest, f32::INFINITY, second);
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

/// Rounds to the nearest multiple of the block's scale, which maps the largest value to [`MOST_LOW`], or
/// if the block stands out of a row of that `size`, the largest value outside of the chunk with the
/// largest, so that hardly ever more than one chunk becomes an outlier; then it returns the integers, of
/// which low bytes may not be all there is. No integer is beyond [`MOST`].
///
/// Its loops are as plain as they are, and do not check for overflow, so that they become vector
/// instructions: closures handed to functions of arrays would not get the instruction set of where
/// this ends up.
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], size: f32, out: &mut Block) -> Option<[i32; BLOCK]> {
    let mut integers = [0i32; BLOCK];
    // Magnitudes compare like the integers that their bits are, infinities and NaN last.
    let mut most = 0;
    for v in x {
        most = most.max((v.to_bits() & 0x7fff_ffff) as i32);
    }
    let most = f32::from_bits(most as u32);
    if !most.is_finite() {
        let nan = f32::NAN;
        *out = Block { scale: nan, scaled16: [nan; 2], scaled32: nan, ..Block::ZERO };
        return None;
    }
    let stands_out = most > OUTSTANDING * size;
    let usual = if stands_out { second(x).clamp(CALM * size, OUTSTANDING * size) } else { most };
    let coarse = usual / MOST_LOW as f32;
    // What is too small to be divided by counts as zero.
    let scale = if most > 1e-34 { coarse.max(most / MOST as f32) } else { 0.0 };
    let inverse = if most > 1e-34 { 1.0 / scale } else { 0.0 };
    for i in 0..BLOCK {
        integers[i] = nearest(x[i] * inverse);
    }
    let mut sums = [0i32; 2];
    for i in 0..BLOCK / 2 {
        sums[0] = sums[0].wrapping_add(integers[i]);
        sums[1] = sums[1].wrapping_add(integers[BLOCK / 2 + i]);
    }
    out.set_low(&integers);
    out.describe(scale, sums);
    stands_out.then_some(integers)
}

/// The second largest of the chunks' largest magnitudes.
#[inline(always)]
fn second(x: &[f32; BLOCK]) -> f32 {
    let (mut first, mut second) = (0.0f32, 0.0f32);
    for chunk in x.as_chunks::<CHUNK>().0 {
        let most = chunk[0].abs().max(chunk[1].abs()).max(chunk[2].abs().max(chunk[3].abs()));
        second = second.max(most.min(first));
        first = first.max(most);
    }
    second
}

/// Takes the high parts out of a chunk, if it has any.
#[inline(always)]
fn split(low: &mut [i32; CHUNK]) -> Option<[i8; CHUNK]> {
    if low.iter().all(|v| v.unsigned_abs() <= MOST_LOW as u32) {
        return None;
    }
    let mut high = [0; CHUNK];
    for i in 0..CHUNK {
        let part = nearest(low[i] as f32 * (1.0 / HIGH as f32));
        high[i] = part as i8;
        low[i] = low[i].wrapping_sub(HIGH.wrapping_mul(part));
    }
    Some(high)
}

#[cfg(test)]
mod tests;
