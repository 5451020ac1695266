//! The integer kernels for AArch64: panels of eight matrix rows.
//!
//! `sdot` multiplies signed bytes and adds four products in 32 bits. `smmla`, where there is one,
//! multiplies two rows of eight signed bytes with two others, giving 2×2 sums. Weights beyond 127
//! are shifted down by 128, which the sum of the activations takes back. These instructions, and
//! those for half precision, have no stable intrinsics yet, hence the assembly.

mod dot;
mod i8mm;

use std::arch::aarch64::*;
use std::arch::asm;

use super::formats::{Format, with_format};
use super::panels::{self, Token};
use super::scratch::Scratch;
use super::vectors::{Source, Vectors, shift};
use super::work::Work;

/// Rows of a panel.
const ROWS: usize = 8;

/// Does the work, which is of a quantized format.
///
/// # Safety
/// The machine must have dot products and, if `matrices`, 8-bit matrix multiplication.
pub(super) unsafe fn run(work: &Work<'_>, scratch: &mut Scratch, matrices: bool) {
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn with_dot<F: Format>(work: &Work<'_>, scratch: &mut Scratch) {
        // SAFETY: the features are there.
        unsafe { panels::run::<F, Neon<false>>(work, scratch) };
    }
    #[target_feature(enable = "neon,dotprod,i8mm")]
    unsafe fn with_i8mm<F: Format>(work: &Work<'_>, scratch: &mut Scratch) {
        // SAFETY: the features are there.
        unsafe { panels::run::<F, Neon<true>>(work, scratch) };
    }
    with_format!(work.job.matrix.dtype(), F => {
        // SAFETY: as demanded of the caller.
        unsafe {
            if matrices {
                with_i8mm::<F>(work, scratch);
            } else {
                with_dot::<F>(work, scratch);
            }
        }
    }, else unreachable!("floats have a kernel of their own"));
}

/// Pairs of vectors, the second for rows 4 to 8 where there is a number for each row.
#[derive(Clone, Copy)]
struct Neon<const MATRICES: bool>;

impl<const MATRICES: bool> Vectors for Neon<MATRICES> {
    const ROWS: usize = ROWS;
    const SIGNED: bool = true;
    type Bytes = [uint8x16_t; 2];
    type Floats = [float32x4_t; 2];

    #[inline(always)]
    unsafe fn bytes(at: *const u8) -> Self::Bytes {
        // SAFETY: as demanded of the caller, here and below.
        unsafe { [vld1q_u8(at), vld1q_u8(at.add(16))] }
    }

    #[inline(always)]
    unsafe fn store_bytes(at: *mut u8, v: Self::Bytes) {
        // SAFETY: see `bytes`.
        unsafe {
            vst1q_u8(at, v[0]);
            vst1q_u8(at.add(16), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn bits(v: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes {
        // SAFETY: see `bytes`.
        unsafe {
            let (shift, mask) = (vdupq_n_s8(-(shift as i8)), vdupq_n_u8(mask));
            [vandq_u8(vshlq_u8(v[0], shift), mask), vandq_u8(vshlq_u8(v[1], shift), mask)]
        }
    }

    #[inline(always)]
    unsafe fn put_above(low: Self::Bytes, high: Self::Bytes, shift: usize) -> Self::Bytes {
        // SAFETY: see `bytes`.
        unsafe {
            let shift = vdupq_n_s8(shift as i8);
            let join = |low, high| vorrq_u8(low, vshlq_u8(high, shift));
            [join(low[0], high[0]), join(low[1], high[1])]
        }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes {
        // SAFETY: see `bytes`.
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            [vqtbl1q_u8(table, indices[0]), vqtbl1q_u8(table, indices[1])]
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [vdupq_n_f32(x); 2] }
    }

    #[inline(always)]
    unsafe fn floats(at: *const f32) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [vld1q_f32(at), vld1q_f32(at.add(4))] }
    }

    #[inline(always)]
    unsafe fn store_floats(at: *mut f32, v: Self::Floats) {
        // SAFETY: see `bytes`.
        unsafe {
            vst1q_f32(at, v[0]);
            vst1q_f32(at.add(4), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> Self::Floats {
        let (low, high): (float32x4_t, float32x4_t);
        // SAFETY: the bytes are the caller's, and the instructions work on these registers only.
        unsafe {
            asm!(
                "fcvtl2 {high:v}.4s, {v:v}.8h",
                "fcvtl {low:v}.4s, {v:v}.4h",
                v = in(vreg) vld1q_u16(at.cast()),
                high = out(vreg) high,
                low = lateout(vreg) low,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        [low, high]
    }

    #[inline(always)]
    unsafe fn brains(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe {
            let bits = vld1q_u16(at.cast());
            let (low, high) = (vshll_n_u16::<16>(vget_low_u16(bits)), vshll_high_n_u16::<16>(bits));
            [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
        }
    }

    #[inline(always)]
    unsafe fn small_integers(at: *const u8) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe {
            let wide = vmovl_s8(vld1_s8(at.cast()));
            let (low, high) = (vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide));
            [vcvtq_f32_s32(low), vcvtq_f32_s32(high)]
        }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn dot<F: Format, S: Source<F, Self>>(
        panel: S,
        block: usize,
        chunk: usize,
        x: i32,
    ) -> Self::Floats {
        // SAFETY: see `bytes`.
        unsafe {
            if MATRICES {
                i8mm::dot::<F, Self, S>(panel, block, chunk, x)
            } else {
                dot::dot::<F, Self, S>(panel, block, chunk, x)
            }
        }
    }

    #[inline(always)]
    unsafe fn sums<F: Format, S: Source<F, Self>, const T: usize>(
        panel: S,
        tokens: &[Token; T],
        block: usize,
        part: usize,
    ) -> [Self::Floats; T] {
        // SAFETY: see `bytes`.
        unsafe {
            if MATRICES {
                i8mm::sums::<F, Self, S, T>(panel, tokens, block, part)
            } else {
                dot::sums::<F, Self, S, T>(panel, tokens, block, part)
            }
        }
    }
}

/// The integers of a chunk as signed bytes.
#[inline(always)]
unsafe fn signed<F: Format, V: Vectors<Bytes = [uint8x16_t; 2]>, S: Source<F, V>>(
    panel: S,
    block: usize,
    chunk: usize,
) -> [int8x16_t; 2] {
    // SAFETY: as demanded of the caller.
    unsafe {
        let [low, high] = panel.integers(block, chunk);
        let flip = vdupq_n_u8(shift::<F, V>() as u8);
        [vreinterpretq_s8_u8(veorq_u8(low, flip)), vreinterpretq_s8_u8(veorq_u8(high, flip))]
    }
}
