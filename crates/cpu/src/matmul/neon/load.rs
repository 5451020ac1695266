//! Reading blocks of 32 values straight from each format's bytes.

use std::arch::aarch64::*;

use crate::matmul::formats::*;

/// A format as the NEON kernels read it.
pub(super) trait Load: Format {
    /// Whether [`Load::block`] wants a row as [`Format::values`] writes it, not as in the file.
    const LINEAR: bool = false;

    /// Values 0..16 and 16..32 of block `block`.
    ///
    /// # Safety
    /// The row must have that block.
    unsafe fn block(row: *const u8, block: usize) -> (uint8x16_t, uint8x16_t);
}

type Halves = (uint8x16_t, uint8x16_t);

/// Bytes `at..at + 16`, and the 16 after them.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_halves(row: *const u8, at: usize) -> Halves {
    // SAFETY: the caller's bytes.
    unsafe { (vld1q_u8(row.add(at)), vld1q_u8(row.add(at + 16))) }
}

/// The low and the high nibbles of the bytes `at..at + 16`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn nibbles(row: *const u8, at: usize) -> Halves {
    // SAFETY: the caller's bytes.
    let packed = unsafe { vld1q_u8(row.add(at)) };
    (vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed))
}

/// The bits of `MASK` from bit `shift` of each byte on.
#[inline]
#[target_feature(enable = "neon")]
fn bits_at<const MASK: u8>(v: Halves, shift: usize) -> Halves {
    let (count, mask) = (vdupq_n_s8(-(shift as i8)), vdupq_n_u8(MASK));
    (vandq_u8(vshlq_u8(v.0, count), mask), vandq_u8(vshlq_u8(v.1, count), mask))
}

/// `low | high << SHIFT` in each byte.
#[inline]
#[target_feature(enable = "neon")]
fn put_above<const SHIFT: i32>(low: Halves, high: Halves) -> Halves {
    let join = |low, high| vorrq_u8(low, vshlq_n_u8::<SHIFT>(high));
    (join(low.0, high.0), join(low.1, high.1))
}

/// The table's bytes at the given indices.
#[inline]
#[target_feature(enable = "neon")]
fn look_up(table: &[u8; 16], indices: Halves) -> Halves {
    // SAFETY: 16 bytes are read from an array of them.
    let table = unsafe { vld1q_u8(table.as_ptr()) };
    (vqtbl1q_u8(table, indices.0), vqtbl1q_u8(table, indices.1))
}

/// Sets bit 4 of value `i` to bit `i` of the four bytes at `bits`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_fifth_bits(v: Halves, bits: *const u8) -> Halves {
    // SAFETY: the caller's bytes.
    let bits = unsafe { vreinterpretq_u8_u32(vdupq_n_u32(bits.cast::<u32>().read_unaligned())) };
    let each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let add = |v, first: u8| {
        let bytes = vcombine_u8(vdup_n_u8(first), vdup_n_u8(first + 1));
        let set = vtstq_u8(vqtbl1q_u8(bits, bytes), each);
        vorrq_u8(v, vandq_u8(set, vdupq_n_u8(16)))
    };
    (add(v.0, 0), add(v.1, 2))
}

macro_rules! load {
    ($name:ty, $linear:literal, |$row:ident, $block:ident| $body:expr) => {
        impl Load for $name {
            const LINEAR: bool = $linear;

            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn block($row: *const u8, $block: usize) -> Halves {
                // SAFETY: the row has that block, and only its bytes are read.
                unsafe { $body }
            }
        }
    };
}

// What is rare is not worth more: values go through memory once, byte by byte.
load!(Affine<2>, true, |row, block| load_halves(row, BLOCK * block));
load!(Affine<3>, true, |row, block| load_halves(row, BLOCK * block));
load!(Affine<5>, true, |row, block| load_halves(row, BLOCK * block));
load!(Affine<6>, true, |row, block| load_halves(row, BLOCK * block));

load!(Q4_0, false, |row, block| nibbles(row, 18 * block + 2));
load!(Q4_1, false, |row, block| nibbles(row, 20 * block + 4));
load!(Q5_0, false, |row, block| {
    add_fifth_bits(nibbles(row, 22 * block + 6), row.add(22 * block + 2))
});
load!(Q5_1, false, |row, block| {
    add_fifth_bits(nibbles(row, 24 * block + 8), row.add(24 * block + 4))
});
load!(Q8_0, false, |row, block| load_halves(row, 34 * block + 2));
load!(Iq4Nl, false, |row, block| {
    look_up(&IQ4_TABLE.map(|v| v as u8), nibbles(row, 18 * block + 2))
});
load!(MxFp4, false, |row, block| look_up(&FP4_TABLE, nibbles(row, 17 * block + 1)));
load!(Q2K, false, |row, block| {
    let (start, j) = (84 * (block / 8), block % 8);
    bits_at::<3>(load_halves(row, start + 16 + 32 * (j / 4)), 2 * (j % 4))
});
load!(Q3K, false, |row, block| {
    let (start, j) = (110 * (block / 8), block % 8);
    let low = bits_at::<3>(load_halves(row, start + 32 + 32 * (j / 4)), 2 * (j % 4));
    put_above::<2>(low, bits_at::<1>(load_halves(row, start), j))
});
load!(Q4K, false, |row, block| {
    let (start, j) = (144 * (block / 8), block % 8);
    bits_at::<15>(load_halves(row, start + 16 + 32 * (j / 2)), 4 * (j % 2))
});
load!(Q5K, false, |row, block| {
    let (start, j) = (176 * (block / 8), block % 8);
    let low = bits_at::<15>(load_halves(row, start + 48 + 32 * (j / 2)), 4 * (j % 2));
    put_above::<4>(low, bits_at::<1>(load_halves(row, start + 16), j))
});
load!(Q6K, false, |row, block| {
    let (start, half, j) = (210 * (block / 8), block % 8 / 4, block % 4);
    let low = load_halves(row, start + 64 * half + 32 * (j % 2));
    let high = bits_at::<3>(load_halves(row, start + 128 + 32 * half), 2 * j);
    put_above::<4>(bits_at::<15>(low, 4 * (j / 2)), high)
});
load!(Iq4Xs, false, |row, block| {
    let at = 136 * (block / 8) + 8 + 16 * (block % 8);
    look_up(&IQ4_TABLE.map(|v| v as u8), nibbles(row, at))
});
load!(Affine<4>, false, |row, block| {
    // Neighbours share a byte.
    let (even, odd) = nibbles(row, 16 * block);
    (vzip1q_u8(even, odd), vzip2q_u8(even, odd))
});
load!(Affine<8>, false, |row, block| {
    let (low, high) = load_halves(row, 32 * block);
    (veorq_u8(low, vdupq_n_u8(0x80)), veorq_u8(high, vdupq_n_u8(0x80)))
});
