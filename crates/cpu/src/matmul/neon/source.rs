//! Reading panels: as they are kept, or unpacked.

use std::arch::aarch64::*;

use super::ROWS;
use crate::matmul::formats::{Format, Part, ScaleKind, factor_at};
use crate::matmul::packed::{CHUNKS, Panel, high_bits, low_bits, mask};
use crate::matmul::panels::Unpacked;

/// Bytes of a chunk.
const CHUNK: usize = 4 * ROWS;

/// A panel that the kernels can read.
///
/// # Safety
/// Blocks and groups must be inside the panel.
pub(super) trait Source<F: Format>: Copy {
    /// The integers of a chunk of a block.
    unsafe fn integers(self, block: usize, chunk: usize) -> [uint8x16_t; 2];
    /// The scales or minima of a group.
    unsafe fn part(self, part: Part, group: usize) -> [float32x4_t; 2];

    /// [`Source::integers`] as signed bytes: those of formats with larger ones are
    /// [`shifted`](SHIFT) down.
    #[inline(always)]
    unsafe fn signed(self, block: usize, chunk: usize) -> [int8x16_t; 2] {
        // SAFETY: as demanded of the caller.
        unsafe {
            let flip = vdupq_n_u8(if F::MAX > 127 { 0x80 } else { 0 });
            self.integers(block, chunk).map(|v| vreinterpretq_s8_u8(veorq_u8(v, flip)))
        }
    }
}

/// What is to be subtracted from the signed integers.
pub(super) const fn offset<F: Format>() -> i32 {
    if F::MAX > 127 { F::OFFSET - 128 } else { F::OFFSET }
}

impl<F: Format> Source<F> for Unpacked<'_> {
    #[inline(always)]
    unsafe fn integers(self, block: usize, chunk: usize) -> [uint8x16_t; 2] {
        let at = (block * CHUNKS + chunk) * CHUNK;
        // SAFETY: as demanded of the caller.
        unsafe { chunk_at(self.integers.as_ptr().add(at)) }
    }

    #[inline(always)]
    unsafe fn part(self, part: Part, group: usize) -> [float32x4_t; 2] {
        let all = if part == Part::Scale { self.scale } else { self.min };
        // SAFETY: as demanded of the caller.
        unsafe {
            let at = all.as_ptr().add(group * ROWS);
            [vld1q_f32(at), vld1q_f32(at.add(4))]
        }
    }
}

impl<F: Format> Source<F> for Panel<'_> {
    #[inline(always)]
    unsafe fn integers(self, block: usize, chunk: usize) -> [uint8x16_t; 2] {
        // SAFETY: as demanded of the caller.
        unsafe {
            let at = self.codes.as_ptr().add(block * F::BITS * CHUNK);
            let mut codes = plane(at, low_bits::<F>(), chunk);
            if high_bits::<F>() > 0 {
                let high = plane(at.add(low_bits::<F>() * CHUNK), high_bits::<F>().max(1), chunk);
                let shift = vdupq_n_s8(low_bits::<F>() as i8);
                for (codes, high) in codes.iter_mut().zip(high) {
                    *codes = vorrq_u8(*codes, vshlq_u8(high, shift));
                }
            }
            match F::TABLE {
                None => codes,
                Some(table) => {
                    let table = vld1q_u8(table.as_ptr());
                    codes.map(|codes| vqtbl1q_u8(table, codes))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn part(self, part: Part, group: usize) -> [float32x4_t; 2] {
        let bytes = if part == Part::Scale { self.scale } else { self.min };
        let kind = self.kind::<F>();
        // SAFETY: as demanded of the caller.
        unsafe {
            let at = bytes.as_ptr().add(group * ROWS * kind.bytes());
            match kind {
                ScaleKind::Half => halves(at),
                ScaleKind::Brain => {
                    let bits = vld1q_u16(at.cast());
                    [
                        vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(bits))),
                        vreinterpretq_f32_u32(vshll_high_n_u16::<16>(bits)),
                    ]
                }
                ScaleKind::Single => [vld1q_f32(at.cast()), vld1q_f32(at.cast::<f32>().add(4))],
                ScaleKind::Super => {
                    let [a, b] =
                        halves(self.factor.as_ptr().add(factor_at::<F>(part, ROWS, group)));
                    let bytes = vmovl_s8(vld1_s8(at.cast()));
                    let (low, high) = (vget_low_s16(bytes), vget_high_s16(bytes));
                    [
                        vmulq_f32(a, vcvtq_f32_s32(vmovl_s16(low))),
                        vmulq_f32(b, vcvtq_f32_s32(vmovl_s16(high))),
                    ]
                }
            }
        }
    }
}

/// The 32 bytes from `at` on.
#[inline(always)]
unsafe fn chunk_at(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: as demanded of the caller.
    unsafe { [vld1q_u8(at), vld1q_u8(at.add(16))] }
}

/// Eight half-precision numbers. The instruction has no stable intrinsic yet.
#[inline(always)]
unsafe fn halves(at: *const u8) -> [float32x4_t; 2] {
    let (mut low, high): (float32x4_t, float32x4_t);
    // SAFETY: the bytes are the caller's, and the instructions work on these registers only.
    unsafe {
        std::arch::asm!(
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

/// The bits that a plane of `bits` bits a code has for a chunk.
#[inline(always)]
unsafe fn plane(at: *const u8, bits: usize, chunk: usize) -> [uint8x16_t; 2] {
    // SAFETY: as demanded of the caller.
    unsafe {
        let packed = chunk_at(at.add(chunk % bits * CHUNK));
        if bits == 8 {
            return packed;
        }
        let shift = vdupq_n_s8(-((bits * (chunk / bits)) as i8));
        packed.map(|v| vandq_u8(vshlq_u8(v, shift), vdupq_n_u8(mask(bits))))
    }
}
