//! Sorting the weights of a file into panels.

use std::ops::Range;

use super::{CHUNKS, Shape, high_bits, low_bits, mask};
use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::matmul::formats::{BLOCK, Format, Row, Scales};
use crate::pool::Pool;

/// Panels that a thread packs one after the other, at most.
const TOGETHER: usize = 64;

impl Shape {
    /// Packs the matrix of which `row(i)` is the `i`th of `rows` rows into `out`, zeroed memory, and
    /// says of rows when they are `done`.
    pub(in crate::matmul) fn pack<'a, F: Format>(
        &self,
        pool: &Pool,
        rows: usize,
        cols: usize,
        row: impl Fn(usize) -> Row<'a> + Sync,
        done: impl Fn(Range<usize>) + Sync,
        out: &mut [u8],
    ) {
        let Shape { layout, panels, panel, .. } = *self;
        let out = Disjoint::new(out);
        // Some panels together, so that a thread's buffer serves more than one, but not so many that
        // much of the file is in memory beside them.
        let each = panels.div_ceil(8 * pool.threads()).min(TOGETHER);
        pool.run(panels.div_ceil(each), |task, _| {
            let mut buffer = vec![0; layout.rows * cols];
            let mine = task * each..((task + 1) * each).min(panels);
            for i in mine.clone() {
                // SAFETY: tasks have distinct panels.
                let out = unsafe { out.part(i * panel..(i + 1) * panel) };
                // Rows past the end repeat the last; their products are dropped.
                let rows = |r: usize| row((i * layout.rows + r).min(rows - 1));
                match (layout.rows, layout.run) {
                    (8, 4) => dispatch::<F, 8, 4>(pool.isa(), self, rows, &mut buffer, out),
                    (8, 8) => dispatch::<F, 8, 8>(pool.isa(), self, rows, &mut buffer, out),
                    (32, 4) => dispatch::<F, 32, 4>(pool.isa(), self, rows, &mut buffer, out),
                    _ => unreachable!("no instruction set has such panels"),
                }
            }
            done(mine.start * layout.rows..(mine.end * layout.rows).min(rows));
        });
    }
}

/// [`panel`] with the instructions that the machine has.
fn dispatch<'a, F: Format, const ROWS: usize, const RUN: usize>(
    isa: Isa,
    shape: &Shape,
    row: impl Fn(usize) -> Row<'a>,
    buffer: &mut [u8],
    out: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2<'a, F: Format, const ROWS: usize, const RUN: usize>(
            shape: &Shape,
            row: impl Fn(usize) -> Row<'a>,
            buffer: &mut [u8],
            out: &mut [u8],
        ) {
            panel::<F, ROWS, RUN>(shape, row, buffer, out);
        }
        if matches!(isa, Isa::Avx2 | Isa::Avx512) {
            // SAFETY: a pool's instruction set is one that the machine has.
            unsafe { with_avx2::<F, ROWS, RUN>(shape, row, buffer, out) };
            return;
        }
    }
    let _ = isa;
    panel::<F, ROWS, RUN>(shape, row, buffer, out);
}

/// Packs one panel, whose rows `row` gives, by way of `buffer`, a byte for each code.
#[inline(always)]
fn panel<'a, F: Format, const ROWS: usize, const RUN: usize>(
    shape: &Shape,
    row: impl Fn(usize) -> Row<'a>,
    buffer: &mut [u8],
    out: &mut [u8],
) {
    let (codes, rest) = out.split_at_mut(shape.codes);
    let (scale, rest) = rest.split_at_mut(shape.scales.scale);
    let (min, rest) = rest.split_at_mut(shape.scales.min);
    let factor = &mut rest[..shape.scales.factor];
    let cols = buffer.len() / ROWS;
    for (r, buffer) in buffer.chunks_exact_mut(cols).enumerate() {
        let row = row(r);
        F::codes(&row, buffer);
        F::scales(&row, &mut Scales { scale, min, factor, rows: ROWS, row: r });
    }
    // As large as that of the highest panels: a length cannot be computed from a parameter.
    let mut block = [0; 32 * BLOCK];
    let block = &mut block[..ROWS * BLOCK];
    for (i, out) in codes.chunks_exact_mut(ROWS * BLOCK * F::BITS / 8).enumerate() {
        for (r, codes) in buffer.chunks_exact(cols).enumerate() {
            let codes: &[u8; BLOCK] = codes[i * BLOCK..].first_chunk().expect("a whole block");
            let runs = codes.as_chunks::<RUN>().0.iter();
            for (run, out) in
                runs.zip(block.as_chunks_mut::<RUN>().0.iter_mut().skip(r).step_by(ROWS))
            {
                *out = *run;
            }
        }
        let (low, high) = out.split_at_mut(ROWS * BLOCK * low_bits::<F>() / 8);
        plane(block, low, low_bits::<F>(), 0);
        plane(block, high, high_bits::<F>(), low_bits::<F>());
    }
}

/// Writes a plane of a block: `bits` bits of each code, from bit `above` on.
#[inline(always)]
fn plane(block: &[u8], out: &mut [u8], bits: usize, above: usize) {
    let chunk = block.len() / CHUNKS;
    for (i, out) in out.chunks_exact_mut(chunk).enumerate() {
        for (part, codes) in block.chunks_exact(chunk).skip(i).step_by(bits).enumerate() {
            for (out, code) in out.iter_mut().zip(codes) {
                *out |= (code >> above & mask(bits)) << (bits * part);
            }
        }
    }
}
