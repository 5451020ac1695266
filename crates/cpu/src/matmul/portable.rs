//! The integer kernel in plain Rust, one matrix row at a time: for machines without a faster one,
//! and the measure of the faster ones.

use super::formats::{BLOCK, Format, Scales, with_format};
use super::scratch::Scratch;
use super::work::Work;

/// Does the work, which is of a quantized format.
pub(super) fn run(work: &Work<'_>, scratch: &mut Scratch) {
    with_format!(work.job.matrix.dtype(), F => each_row::<F>(work, scratch),
        else unreachable!("floats have a kernel of their own"));
}

fn each_row<F: Format>(work: &Work<'_>, scratch: &mut Scratch) {
    let cols = work.x.cols;
    let groups = cols / F::GROUP;
    let values = scratch.linear.bytes(cols);
    let scale = scratch.scale.floats(groups);
    let min = scratch.min.floats(if F::MIN { groups } else { 0 });
    for row in work.rows.clone() {
        let packed = work.job.matrix.row(row);
        F::values(&packed, values);
        F::scales(&packed, &mut Scales { scale, min, stride: 1 });
        for token in 0..work.job.tokens.len() {
            let product = dot::<F>(work, work.job.tokens.row(token), values, scale, min);
            work.store(token, row, &[product]);
        }
    }
}

/// Groups are added up in order, each as `scale * activation_scale * integers`, then its minimum.
/// All kernels keep to that order.
fn dot<F: Format>(work: &Work<'_>, token: usize, w: &[u8], scale: &[f32], min: &[f32]) -> f32 {
    let x = work.x.quantized.expect("checked before");
    let cols = work.x.cols;
    let values = &x.values[token * cols..(token + 1) * cols];
    let x_scale = &x.scale[token * (cols / BLOCK)..];
    let (sums, scaled) =
        if F::GROUP == BLOCK { (&x.sum32, &x.scaled32) } else { (&x.sum16, &x.scaled16) };
    let first = token * (cols / F::GROUP);
    let mut total = 0.0f32;
    let groups = w.chunks_exact(F::GROUP).zip(values.chunks_exact(F::GROUP));
    for (g, (w, x)) in groups.enumerate() {
        let mut sum = 0i32;
        for (&w, &x) in w.iter().zip(x) {
            let w = if F::SIGNED { i32::from(w as i8) } else { i32::from(w) };
            sum += w * i32::from(x);
        }
        let mut integers = sum as f32;
        if F::OFFSET != 0 {
            integers -= F::OFFSET as f32 * sums[first + g];
        }
        total += scale[g] * x_scale[g * F::GROUP / BLOCK] * integers;
        if F::MIN {
            total += min[g] * scaled[first + g];
        }
    }
    total
}
