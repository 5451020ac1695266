//! The integer kernels for AArch64 with dot products: panels of eight matrix rows.
//!
//! `sdot` multiplies signed bytes and adds four products in 32 bits. Unsigned weights are at most
//! 63, so they are signed bytes as well. The instructions have no stable intrinsics yet, hence the
//! assembly.

mod i8mm;
mod load;

use std::arch::aarch64::*;
use std::arch::asm;

use super::formats::{BLOCK, Format, Row, Scales, with_format};
use super::panels::{self, Kernel, Packed, Panel, PanelScales, Token};
use super::scratch::Scratch;
use super::work::Work;
use i8mm::NeonI8mm;
use load::Load;

/// Rows of a panel.
const ROWS: usize = 8;

/// Does the work, which is of a quantized format.
///
/// # Safety
/// The machine must have dot products and, if `matrices`, 8-bit matrix multiplication.
pub(super) unsafe fn run(work: &Work<'_>, scratch: &mut Scratch, matrices: bool) {
    with_format!(work.job.matrix.dtype(), F => {
        // SAFETY: as demanded of the caller.
        unsafe {
            if matrices {
                panels::run::<F, NeonI8mm>(work, scratch);
            } else {
                panels::run::<F, Neon>(work, scratch);
            }
        }
    }, else unreachable!("floats have a kernel of their own"));
}

struct Neon;

impl<F: Load> Kernel<F> for Neon {
    const ROWS: usize = ROWS;
    const TILE: usize = 4;
    const MOST_DIRECT: usize = 2;
    const LINEAR: bool = F::LINEAR;

    unsafe fn values(row: &Row<'_>, out: &mut [u8]) {
        F::values(row, out);
    }

    unsafe fn scales(rows: &[Row<'_>], scale: &mut [f32], min: &mut [f32]) {
        read_scales::<F>(rows, scale, min);
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn direct(work: &Work<'_>, row: usize, panel: Panel<'_>) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe { direct_tokens::<F>(work, row, panel) };
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn pack(rows: &[*const u8], blocks: usize, out: &mut [u8]) {
        assert!(rows.len() == ROWS && out.len() == blocks * BLOCK * ROWS);
        // SAFETY: `out` has room for all blocks.
        unsafe { pack::<F>(rows, blocks, out.as_mut_ptr()) };
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn tile(work: &Work<'_>, row: usize, panel: Packed<'_>, first: usize, tokens: &[Token]) {
        // SAFETY: the features are there, and the panel is of the work's matrix.
        unsafe {
            match tokens.len() {
                1 | 2 => tile::<F, 2>(work, row, panel, first, tokens),
                _ => tile::<F, 4>(work, row, panel, first, tokens),
            }
        }
    }
}

fn read_scales<F: Format>(rows: &[Row<'_>], scale: &mut [f32], min: &mut [f32]) {
    for (i, row) in rows.iter().enumerate() {
        let min = if F::MIN { &mut min[i..] } else { &mut [] };
        F::scales(row, &mut Scales { scale: &mut scale[i..], min, stride: ROWS });
    }
}

/// Adds to each 32-bit lane the products of its four bytes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction works on these registers only, and the feature is there.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// As [`dot`] with the same four bytes of `b`, those of lane `LANE`, for every lane of `a`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_lane<const LANE: usize>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction works on these registers only, and the feature is there.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn direct_tokens<F: Load>(work: &Work<'_>, row: usize, panel: Panel<'_>) {
    // SAFETY: passed on.
    unsafe {
        match work.job.tokens.len() {
            1 => direct::<F, 1>(work, row, panel),
            _ => direct::<F, 2>(work, row, panel),
        }
    }
}

/// Products of all `T` tokens with a panel whose values lie as in the file.
#[target_feature(enable = "neon,dotprod")]
unsafe fn direct<F: Load, const T: usize>(work: &Work<'_>, row: usize, panel: Panel<'_>) {
    let Panel { rows, scales } = panel;
    let tokens: [Token; T] = std::array::from_fn(|t| Token::new::<F>(work, t));
    let mut totals = [[vdupq_n_f32(0.0); 2]; T];
    let zero = vdupq_n_s32(0);
    for block in 0..work.x.cols / BLOCK {
        let mut w = [(vdupq_n_s8(0), vdupq_n_s8(0)); ROWS];
        for (w, &row) in w.iter_mut().zip(rows) {
            // SAFETY: block `block` is inside the rows.
            let (low, high) = unsafe { F::block(row, block) };
            *w = (vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high));
        }
        for (token, totals) in tokens.iter().zip(&mut totals) {
            // SAFETY: block `block` is inside the activation row.
            let (x_low, x_high) = unsafe {
                let x = token.values.add(block * BLOCK);
                (vld1q_s8(x), vld1q_s8(x.add(16)))
            };
            for (half, total) in totals.iter_mut().enumerate() {
                let w = &w[4 * half..4 * half + 4];
                let mut low = [zero; 4];
                let mut high = [zero; 4];
                for i in 0..4 {
                    low[i] = dot(zero, w[i].0, x_low);
                    let before = if F::GROUP == BLOCK { low[i] } else { zero };
                    high[i] = dot(before, w[i].1, x_high);
                }
                // SAFETY: the block's groups are inside the activation row and the scales.
                unsafe {
                    if F::GROUP == BLOCK {
                        *total = add_group::<F>(*total, lanes(high), token, scales, block, half);
                    } else {
                        let group = 2 * block;
                        *total = add_group::<F>(*total, lanes(low), token, scales, group, half);
                        *total =
                            add_group::<F>(*total, lanes(high), token, scales, group + 1, half);
                    }
                }
            }
        }
    }
    for (t, totals) in totals.into_iter().enumerate() {
        store(work, row, t, totals);
    }
}

/// The sums of the lanes of each of four vectors.
#[inline]
#[target_feature(enable = "neon")]
fn lanes(v: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
}

/// Adds one group's sums, scaled, to the totals of four rows: the panel's first or last.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_group<F: Format>(
    total: float32x4_t,
    sums: int32x4_t,
    token: &Token,
    scales: PanelScales<'_>,
    group: usize,
    half: usize,
) -> float32x4_t {
    let at = group * ROWS + 4 * half;
    // SAFETY: the caller's group is inside the activation row and the panel.
    unsafe {
        let mut sums = vcvtq_f32_s32(sums);
        if F::OFFSET != 0 {
            let x_sum = vdupq_n_f32(*token.sum.add(group));
            sums = vfmsq_f32(sums, vdupq_n_f32(F::OFFSET as f32), x_sum);
        }
        let x_scale = *token.scale.add(group * F::GROUP / BLOCK);
        let scale = vmulq_n_f32(vld1q_f32(scales.scale.as_ptr().add(at)), x_scale);
        let total = vfmaq_f32(total, scale, sums);
        if !F::MIN {
            return total;
        }
        vfmaq_n_f32(total, vld1q_f32(scales.min.as_ptr().add(at)), *token.scaled.add(group))
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(work: &Work<'_>, row: usize, token: usize, totals: [float32x4_t; 2]) {
    let mut products = [0.0f32; ROWS];
    // SAFETY: the array holds eight floats.
    unsafe {
        vst1q_f32(products.as_mut_ptr(), totals[0]);
        vst1q_f32(products.as_mut_ptr().add(4), totals[1]);
    }
    work.store(token, row, &products);
}

/// Writes a panel's values so that two vectors hold four consecutive ones of each of its rows.
#[target_feature(enable = "neon")]
unsafe fn pack<F: Load>(rows: &[*const u8], blocks: usize, out: *mut u8) {
    for block in 0..blocks {
        for (i, rows) in rows.chunks_exact(4).enumerate() {
            let mut low = [vdupq_n_u32(0); 4];
            let mut high = low;
            for ((low, high), &row) in low.iter_mut().zip(&mut high).zip(rows) {
                // SAFETY: the block is inside the rows.
                let v = unsafe { F::block(row, block) };
                (*low, *high) = (vreinterpretq_u32_u8(v.0), vreinterpretq_u32_u8(v.1));
            }
            for (half, v) in [low, high].into_iter().enumerate() {
                let wide = |v| vreinterpretq_u64_u32(v);
                let (a, b) = (wide(vzip1q_u32(v[0], v[1])), wide(vzip2q_u32(v[0], v[1])));
                let (c, d) = (wide(vzip1q_u32(v[2], v[3])), wide(vzip2q_u32(v[2], v[3])));
                let steps =
                    [vzip1q_u64(a, c), vzip2q_u64(a, c), vzip1q_u64(b, d), vzip2q_u64(b, d)];
                for (step, v) in steps.into_iter().enumerate() {
                    let column = block * BLOCK + 16 * half + 4 * step;
                    // SAFETY: `out` has room for all blocks.
                    unsafe { vst1q_u8(out.add(column * ROWS + 16 * i), vreinterpretq_u8_u64(v)) };
                }
            }
        }
    }
}

/// Products of at most `T` tokens, those from number `first` on, with a packed panel.
#[target_feature(enable = "neon,dotprod")]
unsafe fn tile<F: Load, const T: usize>(
    work: &Work<'_>,
    row: usize,
    panel: Packed<'_>,
    first: usize,
    tokens: &[Token],
) {
    let Packed { values, scales } = panel;
    let count = tokens.len();
    // Tokens past the end repeat the last; their products are dropped.
    let tokens: [Token; T] = std::array::from_fn(|t| tokens[t.min(count - 1)]);
    let mut totals = [[vdupq_n_f32(0.0); 2]; T];
    for group in 0..work.x.cols / F::GROUP {
        let mut sums = [[vdupq_n_s32(0); 2]; T];
        for column in (group * F::GROUP..(group + 1) * F::GROUP).step_by(16) {
            // SAFETY: 16 columns from `column` on are inside the panel and the activation rows.
            unsafe {
                let values: *const i8 = values.as_ptr().add(column * ROWS).cast();
                let x: [int8x16_t; T] =
                    std::array::from_fn(|t| vld1q_s8(tokens[t].values.add(column)));
                for half in 0..2 {
                    let w: [int8x16_t; 4] =
                        std::array::from_fn(|i| vld1q_s8(values.add(4 * ROWS * i + 16 * half)));
                    for t in 0..T {
                        let mut sum = sums[t][half];
                        sum = dot_lane::<0>(sum, w[0], x[t]);
                        sum = dot_lane::<1>(sum, w[1], x[t]);
                        sum = dot_lane::<2>(sum, w[2], x[t]);
                        sums[t][half] = dot_lane::<3>(sum, w[3], x[t]);
                    }
                }
            }
        }
        for ((totals, sums), token) in totals.iter_mut().zip(sums).zip(&tokens) {
            for (half, (total, sums)) in totals.iter_mut().zip(sums).enumerate() {
                // SAFETY: the group is inside the activation rows and the scales.
                *total = unsafe { add_group::<F>(*total, sums, token, scales, group, half) };
            }
        }
    }
    for (t, totals) in totals.into_iter().enumerate().take(count) {
        store(work, row, first + t, totals);
    }
}
