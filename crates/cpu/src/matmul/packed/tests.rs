//! Every format in every layout, whatever the machine: what was packed is what the file says.

use super::*;
use crate::matmul::Matrix;
use crate::matmul::formats::{BLOCK, Part, with_format};
use crate::matmul::portable::Portable;
use crate::matmul::tests::{QUANTIZED, Random, matrix};
use crate::matmul::vectors::{Source, Vectors};
use crate::pages;
use crate::pool::Pool;

/// The weights that the panels stand for, row-major.
fn unpacked<F: Format, V: Vectors>(packed: &Packed, rows: usize, cols: usize) -> Vec<f32> {
    let Layout { rows: high, run } = packed.shape.layout;
    let mut out = vec![0.0; rows * cols];
    let mut integers = vec![0; high * BLOCK];
    let numbers = |panel: Panel<'_>, part: Part, group: usize| {
        let mut numbers = [0.0; 32];
        // SAFETY: the group is inside the panel, and there is room for the highest.
        unsafe {
            V::store_floats(numbers.as_mut_ptr(), Source::<F, V>::part(panel, part, group));
        }
        numbers
    };
    for row in 0..rows {
        let (panel, r) = (packed.panel(row / high), row % high);
        for block in 0..cols / BLOCK {
            for (chunk, out) in integers.chunks_exact_mut(4 * high).enumerate() {
                // SAFETY: the block is inside the panel, and there is room for a chunk.
                unsafe {
                    V::store_bytes(out.as_mut_ptr(), Source::<F, V>::integers(panel, block, chunk));
                }
            }
            for i in 0..BLOCK {
                let (step, at) = (i / run, i % run);
                let integer = i32::from(integers[(step * high + r) * run + at]) - F::OFFSET;
                let group = (block * BLOCK + i) / F::GROUP;
                let scale = numbers(panel, Part::Scale, group)[r];
                let min = if F::MIN { numbers(panel, Part::Min, group)[r] } else { 0.0 };
                out[row * cols + block * BLOCK + i] = scale * integer as f32 + min;
            }
        }
    }
    out
}

fn check<F: Format>(pool: &Pool, layout: Layout, matrix: &Matrix) {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let shape = Shape::new::<F>(layout, rows, cols, matrix.row(0));
    let mut memory = pages::zeroed(shape.bytes()).unwrap();
    shape.pack::<F>(pool, rows, cols, |i| matrix.row(i), |_| (), &mut memory[..shape.bytes()]);
    let packed = Packed::new(Arc::new(memory.make_read_only().unwrap()), 0, shape);
    let dtype = matrix.dtype();
    let found = match layout.rows {
        8 => unpacked::<F, Portable<8>>(&packed, rows, cols),
        _ => unpacked::<F, Portable<32>>(&packed, rows, cols),
    };
    for (i, (found, expected)) in found.iter().zip(matrix.tensor().to_f32()).enumerate() {
        // MLX rounds weights to the type of the scales.
        let room = if matrix.tensor().affine().is_some() { 1e-3 } else { 1e-6 };
        assert!(
            (found - expected).abs() <= room * expected.abs().max(0.1),
            "{dtype} in {layout:?}: element {i} is {found}, not {expected}"
        );
    }
}

#[test]
fn what_is_packed_is_what_the_file_says() {
    let layouts = [(8, 4), (32, 4), (8, 8)].map(|(rows, run)| Layout { rows, run });
    for isa in Isa::available() {
        let pool = Pool::new(2, isa).unwrap();
        for dtype in QUANTIZED {
            let cols = 2 * dtype.block_len().max(BLOCK);
            let matrix = matrix(&pool, dtype, 21, cols, &mut Random(9));
            for layout in layouts {
                with_format!(dtype, F => check::<F>(&pool, layout, &matrix),
                    else unreachable!("only quantized types are listed"));
            }
        }
    }
}
