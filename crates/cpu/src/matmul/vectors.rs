//! What the integer kernels need of an instruction set, and how panels are read with it.

use super::formats::{BLOCK, Format, Part, ScaleKind, factor_at};
use super::packed::{AHEAD, CHUNKS, Panel, high_bits, low_bits, mask};
use super::panels::{Token, Unpacked};

/// Vectors of an instruction set, as wide as its panels are high.
///
/// # Safety
/// All functions need the instruction set, and are inlined into functions that have it. Pointers
/// must be valid for what is read or written.
pub(super) trait Vectors: Copy {
    /// Rows of a panel.
    const ROWS: usize;
    /// Bytes of unpacked panels that meet a tile of tokens one after the other: what a cache near
    /// the core holds.
    const UNPACKED_BYTES: usize = 24 << 10;
    /// Whether weights are multiplied as signed bytes.
    const SIGNED: bool;
    /// A chunk: four bytes for each row.
    type Bytes: Copy;
    /// A number for each row.
    type Floats: Copy;

    unsafe fn bytes(at: *const u8) -> Self::Bytes;
    unsafe fn store_bytes(at: *mut u8, v: Self::Bytes);
    /// The bits of each byte from `shift` on that are in `mask`.
    unsafe fn bits(v: Self::Bytes, shift: usize, mask: u8) -> Self::Bytes;
    /// `low | high << shift` in each byte; the shifted bits must stay in it.
    unsafe fn put_above(low: Self::Bytes, high: Self::Bytes, shift: usize) -> Self::Bytes;
    /// The table's bytes at the given indices.
    unsafe fn look_up(table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes;

    unsafe fn splat(x: f32) -> Self::Floats;
    unsafe fn floats(at: *const f32) -> Self::Floats;
    unsafe fn store_floats(at: *mut f32, v: Self::Floats);
    /// Numbers in half precision.
    unsafe fn halves(at: *const u8) -> Self::Floats;
    /// Numbers in bf16.
    unsafe fn brains(at: *const u8) -> Self::Floats;
    /// Signed bytes.
    unsafe fn small_integers(at: *const u8) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Asks for a cache line. A hint, which may be of any address.
    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}

    /// The sums of the products of a chunk's integers, not less their [`offset`], with four activations.
    unsafe fn dot<F: Format, S: Source<F, Self>>(
        panel: S,
        block: usize,
        chunk: usize,
        x: i32,
    ) -> Self::Floats;

    /// For each token, the sums of the products of its low parts with the integers of group `part` of a
    /// block, less [`Format::OFFSET`] times its whole integers.
    unsafe fn sums<F: Format, S: Source<F, Self>, const T: usize>(
        panel: S,
        tokens: &[Token; T],
        block: usize,
        part: usize,
    ) -> [Self::Floats; T];
}

/// By how much the integers of a format are shifted down to make them signed bytes.
pub(super) const fn shift<F: Format, V: Vectors>() -> i32 {
    if V::SIGNED && F::MAX > 127 { 128 } else { 0 }
}

/// What multiplied integers of a format are too large by.
pub(super) const fn offset<F: Format, V: Vectors>() -> i32 {
    F::OFFSET - shift::<F, V>()
}

/// A panel that can be read by vectors.
///
/// # Safety
/// As for [`Vectors`]; blocks and groups must be inside the panel.
pub(super) trait Source<F: Format, V: Vectors>: Copy {
    /// Whether it is a panel as it is kept, which few tokens may meet.
    const KEPT: bool;

    /// The integers of a chunk of a block.
    unsafe fn integers(self, block: usize, chunk: usize) -> V::Bytes;
    /// The scales or minima of a group.
    unsafe fn part(self, part: Part, group: usize) -> V::Floats;
    /// Asks for what is read some time after a block.
    #[inline(always)]
    unsafe fn prefetch(self, _block: usize) {}
}

impl<F: Format, V: Vectors> Source<F, V> for Unpacked<'_> {
    const KEPT: bool = false;

    #[inline(always)]
    unsafe fn integers(self, block: usize, chunk: usize) -> V::Bytes {
        let at = ((block - self.first) * CHUNKS + chunk) * 4 * V::ROWS;
        // SAFETY: as demanded of the caller.
        unsafe { V::bytes(self.integers.as_ptr().add(at)) }
    }

    #[inline(always)]
    unsafe fn part(self, part: Part, group: usize) -> V::Floats {
        let all = if part == Part::Scale { self.scale } else { self.min };
        let first = self.first * (BLOCK / F::GROUP);
        // SAFETY: as demanded of the caller.
        unsafe { V::floats(all.as_ptr().add((group - first) * V::ROWS)) }
    }
}

impl<F: Format, V: Vectors> Source<F, V> for Panel<'_> {
    const KEPT: bool = true;

    #[inline(always)]
    unsafe fn integers(self, block: usize, chunk: usize) -> V::Bytes {
        let size = 4 * V::ROWS;
        // SAFETY: as demanded of the caller.
        unsafe {
            let low = self.codes.as_ptr().add(block * F::BITS * size);
            let mut codes = plane::<V>(low, low_bits::<F>(), chunk);
            if high_bits::<F>() > 0 {
                let high = low.add(low_bits::<F>() * size);
                let high = plane::<V>(high, high_bits::<F>(), chunk);
                codes = V::put_above(codes, high, low_bits::<F>());
            }
            F::TABLE.map_or(codes, |table| V::look_up(table, codes))
        }
    }

    #[inline(always)]
    unsafe fn part(self, part: Part, group: usize) -> V::Floats {
        let bytes = if part == Part::Scale { self.scale } else { self.min };
        let kind = self.kind::<F>();
        // SAFETY: as demanded of the caller.
        unsafe {
            let at = bytes.as_ptr().add(group * V::ROWS * kind.bytes());
            match kind {
                ScaleKind::Half => V::halves(at),
                ScaleKind::Brain => V::brains(at),
                ScaleKind::Single => V::floats(at.cast()),
                ScaleKind::Super => {
                    let factor = self.factor.as_ptr().add(factor_at::<F>(part, V::ROWS, group));
                    V::mul(V::halves(factor), V::small_integers(at))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch(self, block: usize) {
        // It may lie in a later panel, or past the last.
        let bytes = F::BITS * 4 * V::ROWS;
        let at = self.codes.as_ptr().wrapping_add(block * bytes + AHEAD);
        for line in 0..bytes.div_ceil(64) {
            // SAFETY: a hint.
            unsafe { V::prefetch(at.wrapping_add(64 * line)) };
        }
    }
}

/// The bits that a plane of `bits` bits a code has for a chunk.
#[inline(always)]
unsafe fn plane<V: Vectors>(at: *const u8, bits: usize, chunk: usize) -> V::Bytes {
    // SAFETY: as demanded of the caller.
    unsafe {
        let packed = V::bytes(at.add(chunk % bits * 4 * V::ROWS));
        if bits == 8 { packed } else { V::bits(packed, bits * (chunk / bits), mask(bits)) }
    }
}
