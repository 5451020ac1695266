//! The integer kernel in plain Rust: for machines without a faster one, and the measure of the
//! faster ones.

use super::formats::{BLOCK, Format, Part, decode, factor_at, with_format};
use super::packed::{Panel, integers};
use super::panels::{self, Kernel, Token, Unpacked, Unpacking};
use super::scratch::Scratch;
use super::work::Work;
use crate::quant::HIGH;

/// Rows of a panel, and neighbouring columns of a row.
const ROWS: usize = 8;
const RUN: usize = 4;

/// Does the work, which is of a quantized format.
pub(super) fn run(work: &Work<'_>, scratch: &mut Scratch) {
    // SAFETY: plain Rust runs anywhere.
    with_format!(work.job.matrix.dtype(), F => unsafe { panels::run::<F, Portable>(work, scratch) },
        else unreachable!("floats have a kernel of their own"));
}

struct Portable;

impl<F: Format> Kernel<F> for Portable {
    const ROWS: usize = ROWS;
    const TILE: usize = 4;

    unsafe fn unpack(panel: Panel<'_>, _: usize, out: Unpacking<'_>) {
        for (block, out) in out.integers.chunks_exact_mut(ROWS * BLOCK).enumerate() {
            integers::<F>(&panel, block, out);
        }
        for (group, out) in out.scale.chunks_exact_mut(ROWS).enumerate() {
            out.copy_from_slice(&part::<F>(&panel, Part::Scale, group));
        }
        for (group, out) in out.min.chunks_exact_mut(ROWS).enumerate() {
            out.copy_from_slice(&part::<F>(&panel, Part::Min, group));
        }
    }

    unsafe fn kept(work: &Work<'_>, row: usize, panel: Panel<'_>, first: usize, tokens: &[Token]) {
        tile::<F>(
            work,
            row,
            first,
            tokens,
            |block, integers| {
                self::integers::<F>(&panel, block, integers);
            },
            |which, group| part::<F>(&panel, which, group),
        );
    }

    unsafe fn tile(
        work: &Work<'_>,
        row: usize,
        panel: Unpacked<'_>,
        first: usize,
        tokens: &[Token],
    ) {
        tile::<F>(
            work,
            row,
            first,
            tokens,
            |block, integers| {
                integers.copy_from_slice(&panel.integers[block * ROWS * BLOCK..][..ROWS * BLOCK]);
            },
            |which, group| {
                let all = if which == Part::Scale { panel.scale } else { panel.min };
                std::array::from_fn(|r| all[group * ROWS + r])
            },
        );
    }
}

/// The scales or minima of a group.
fn part<F: Format>(panel: &Panel<'_>, which: Part, group: usize) -> [f32; ROWS] {
    let kind = panel.kind::<F>();
    let bytes = if which == Part::Scale { panel.scale } else { panel.min };
    let bytes = &bytes[group * ROWS * kind.bytes()..];
    let factor = panel.factor.get(factor_at::<F>(which, ROWS, group)..).unwrap_or(&[]);
    std::array::from_fn(|r| {
        decode(kind, &bytes[r * kind.bytes()..], factor.get(2 * r..).unwrap_or(&[]))
    })
}

/// Products of a panel with tokens. `block` writes the integers of a block, `scales` gives the
/// scales or minima of a group.
///
/// Groups are added up in order, each as `scale * activation_scale * integers`, then its minimum.
/// All kernels keep to that order.
fn tile<F: Format>(
    work: &Work<'_>,
    row: usize,
    first: usize,
    tokens: &[Token],
    block: impl Fn(usize, &mut [u8; ROWS * BLOCK]),
    scales: impl Fn(Part, usize) -> [f32; ROWS],
) {
    const MOST: usize = 8;
    let groups = BLOCK / F::GROUP;
    let mut totals = [[0.0f32; ROWS]; MOST];
    let mut w = [0; ROWS * BLOCK];
    for b in 0..work.x.cols / BLOCK {
        block(b, &mut w);
        for g in 0..groups {
            let group = b * groups + g;
            let scale = scales(Part::Scale, group);
            let min = if F::MIN { scales(Part::Min, group) } else { [0.0; ROWS] };
            let w = w.chunks_exact(ROWS * RUN).skip(g * F::GROUP / RUN).take(F::GROUP / RUN);
            for (token, totals) in tokens.iter().zip(&mut totals) {
                // SAFETY: the block is inside the activation row, the group inside its sums.
                let (high, low, x_scale, x_sum, scaled) = unsafe {
                    let at = token.values.add(2 * b * BLOCK + g * F::GROUP);
                    let high = std::slice::from_raw_parts(at, F::GROUP);
                    let low = std::slice::from_raw_parts(at.add(BLOCK), F::GROUP);
                    let sum = (*token.sum.add(group), *token.scaled.add(group));
                    (high, low, *token.scale.add(b), sum.0, sum.1)
                };
                let mut sums = [0i32; ROWS];
                let x = high.chunks_exact(RUN).zip(low.chunks_exact(RUN));
                for (w, (high, low)) in w.clone().zip(x) {
                    let x: [i32; RUN] =
                        std::array::from_fn(|i| HIGH * i32::from(high[i]) + i32::from(low[i]));
                    for (sum, w) in sums.iter_mut().zip(w.chunks_exact(RUN)) {
                        *sum += w.iter().zip(x).map(|(&w, x)| i32::from(w) * x).sum::<i32>();
                    }
                }
                for r in 0..ROWS {
                    let integers = sums[r] as f32 - F::OFFSET as f32 * x_sum;
                    totals[r] += scale[r] * x_scale * integers;
                    if F::MIN {
                        totals[r] += min[r] * scaled;
                    }
                }
            }
        }
    }
    for (t, totals) in totals.iter().enumerate().take(tokens.len()) {
        work.store(first + t, row, totals);
    }
}
