//! Reading blocks of 32 values straight from each format's bytes.

use std::arch::x86_64::*;

use super::scales;
use crate::matmul::formats::*;

/// A format as the AVX2 kernels read it.
pub(in crate::matmul) trait Load: Format {
    /// Whether [`Load::pair`] wants rows as [`Format::values`] writes them, not as in the file.
    const LINEAR: bool = false;

    /// Values 0..16 of block `block` of two rows, the second in the upper half, and values 16..32.
    ///
    /// # Safety
    /// The machine must have AVX2, and both rows that block.
    unsafe fn pair(a: *const u8, b: *const u8, block: usize) -> Halves;

    /// Scales, and minima if there are any, of eight rows: for group `g`, eight each from
    /// `stride * g` on.
    ///
    /// # Safety
    /// The machine must have AVX2, FMA and F16C.
    unsafe fn scales_of_eight(rows: &[Row<'_>], scale: &mut [f32], min: &mut [f32], stride: usize);
}

// As in the parent module, these functions have the features of where they are inlined.

type Halves = (__m256i, __m256i);

/// 16 bytes from each of two places.
#[inline(always)]
unsafe fn load_two(a: *const u8, b: *const u8) -> __m256i {
    // SAFETY: the caller's bytes.
    unsafe {
        let (a, b) = (_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast()));
        _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1)
    }
}

/// Bytes `at..at + 16` of both rows, and the 16 after them.
#[inline(always)]
unsafe fn load_halves(a: *const u8, b: *const u8, at: usize) -> Halves {
    // SAFETY: the caller's bytes.
    unsafe { (load_two(a.add(at), b.add(at)), load_two(a.add(at + 16), b.add(at + 16))) }
}

/// The low and the high nibbles of all bytes.
#[inline(always)]
unsafe fn nibbles(packed: __m256i) -> Halves {
    // SAFETY: arithmetic in registers.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        (_mm256_and_si256(packed, mask), _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask))
    }
}

/// Nibbles of the 16 bytes at offset `at` of blocks of `bytes`.
#[inline(always)]
unsafe fn block_nibbles(
    a: *const u8,
    b: *const u8,
    block: usize,
    bytes: usize,
    at: usize,
) -> Halves {
    // SAFETY: the caller's rows have that block.
    unsafe { nibbles(load_two(a.add(block * bytes + at), b.add(block * bytes + at))) }
}

/// The bits of `MASK` from bit `shift` of each byte on.
#[inline(always)]
unsafe fn bits_at<const MASK: i8>(v: Halves, shift: usize) -> Halves {
    // SAFETY: arithmetic in registers.
    unsafe {
        let (count, mask) = (_mm_cvtsi32_si128(shift as i32), _mm256_set1_epi8(MASK));
        let (a, b) = (_mm256_srl_epi16(v.0, count), _mm256_srl_epi16(v.1, count));
        (_mm256_and_si256(a, mask), _mm256_and_si256(b, mask))
    }
}

/// `low | high << SHIFT` in each byte; the shifted bits must stay in it.
#[inline(always)]
unsafe fn put_above<const SHIFT: i32>(low: Halves, high: Halves) -> Halves {
    // SAFETY: arithmetic in registers.
    unsafe {
        let (a, b) = (_mm256_slli_epi16(high.0, SHIFT), _mm256_slli_epi16(high.1, SHIFT));
        (_mm256_or_si256(low.0, a), _mm256_or_si256(low.1, b))
    }
}

/// The table's bytes at the given indices.
#[inline(always)]
unsafe fn look_up(table: &[u8; 16], indices: Halves) -> Halves {
    // SAFETY: 16 bytes are read from an array of them.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        (_mm256_shuffle_epi8(table, indices.0), _mm256_shuffle_epi8(table, indices.1))
    }
}

/// Sets bit 4 of value `i` to bit `i` of the four bytes at `a`, and of the other row at `b`.
#[inline(always)]
unsafe fn add_fifth_bits(v: Halves, a: *const u8, b: *const u8) -> Halves {
    // SAFETY: the caller's bytes.
    unsafe {
        let (a, b) = (a.cast::<i32>().read_unaligned(), b.cast::<i32>().read_unaligned());
        let bits = _mm256_inserti128_si256(_mm256_set1_epi32(a), _mm_set1_epi32(b), 1);
        (fifth_bits(v.0, bits, 0), fifth_bits(v.1, bits, 2))
    }
}

/// The same for one half of the values, whose bits start at byte `first` of each four bytes.
#[inline(always)]
unsafe fn fifth_bits(v: __m256i, bits: __m256i, first: i64) -> __m256i {
    // Eight times the same byte.
    let (first, second) = (first * 0x0101_0101_0101_0101, (first + 1) * 0x0101_0101_0101_0101);
    // SAFETY: arithmetic in registers.
    unsafe {
        let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let bytes = _mm256_set_epi64x(second, first, second, first);
        let spread = _mm256_and_si256(_mm256_shuffle_epi8(bits, bytes), each);
        let set = _mm256_cmpeq_epi8(spread, each);
        _mm256_or_si256(v, _mm256_and_si256(set, _mm256_set1_epi8(16)))
    }
}

macro_rules! linear {
    ($($name:ty),*) => {$(
        impl Load for $name {
            const LINEAR: bool = true;

            #[inline(always)]
            unsafe fn pair(a: *const u8, b: *const u8, block: usize) -> Halves {
                let at = block * BLOCK;
                // SAFETY: the rows have that block, one byte a value.
                unsafe { load_halves(a, b, at) }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales_of_eight(
                rows: &[Row<'_>],
                scale: &mut [f32],
                min: &mut [f32],
                stride: usize,
            ) {
                // SAFETY: the features are there.
                unsafe { scales::plain::<$name>(rows, scale, min, stride) };
            }
        }
    )*};
}

// What is rare is not worth more: values go through memory once, byte by byte.
linear!(Affine<2>, Affine<3>, Affine<5>, Affine<6>);

macro_rules! direct {
    ($name:ty, |$a:ident, $b:ident, $block:ident| $body:expr) => {
        direct!($name, scales::plain::<$name>, |$a, $b, $block| $body);
    };
    ($name:ty, $scales:expr, |$a:ident, $b:ident, $block:ident| $body:expr) => {
        impl Load for $name {
            #[inline(always)]
            unsafe fn pair($a: *const u8, $b: *const u8, $block: usize) -> Halves {
                // SAFETY: the rows have that block, and only its bytes are read.
                unsafe { $body }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales_of_eight(
                rows: &[Row<'_>],
                scale: &mut [f32],
                min: &mut [f32],
                stride: usize,
            ) {
                // SAFETY: the features are there.
                unsafe { $scales(rows, scale, min, stride) };
            }
        }
    };
}

direct!(Q4_0, scales::headers::<18, false>, |a, b, block| block_nibbles(a, b, block, 18, 2));
direct!(Q4_1, scales::headers::<20, true>, |a, b, block| block_nibbles(a, b, block, 20, 4));
direct!(Q5_0, scales::headers::<22, false>, |a, b, block| {
    add_fifth_bits(block_nibbles(a, b, block, 22, 6), a.add(22 * block + 2), b.add(22 * block + 2))
});
direct!(Q5_1, scales::headers::<24, true>, |a, b, block| {
    add_fifth_bits(block_nibbles(a, b, block, 24, 8), a.add(24 * block + 4), b.add(24 * block + 4))
});
direct!(Q8_0, scales::headers::<34, false>, |a, b, block| load_halves(a, b, 34 * block + 2));
direct!(Iq4Nl, scales::headers::<18, false>, |a, b, block| {
    look_up(&IQ4_TABLE.map(|v| v as u8), block_nibbles(a, b, block, 18, 2))
});
direct!(MxFp4, |a, b, block| look_up(&FP4_TABLE, block_nibbles(a, b, block, 17, 1)));
direct!(Q2K, |a, b, block| {
    let (start, j) = (84 * (block / 8), block % 8);
    bits_at::<3>(load_halves(a, b, start + 16 + 32 * (j / 4)), 2 * (j % 4))
});
direct!(Q3K, |a, b, block| {
    let (start, j) = (110 * (block / 8), block % 8);
    let low = bits_at::<3>(load_halves(a, b, start + 32 + 32 * (j / 4)), 2 * (j % 4));
    let high = bits_at::<1>(load_halves(a, b, start), j);
    put_above::<2>(low, high)
});
direct!(Q4K, scales::six_bits::<144>, |a, b, block| {
    let (start, j) = (144 * (block / 8), block % 8);
    bits_at::<15>(load_halves(a, b, start + 16 + 32 * (j / 2)), 4 * (j % 2))
});
direct!(Q5K, scales::six_bits::<176>, |a, b, block| {
    let (start, j) = (176 * (block / 8), block % 8);
    let low = bits_at::<15>(load_halves(a, b, start + 48 + 32 * (j / 2)), 4 * (j % 2));
    let high = bits_at::<1>(load_halves(a, b, start + 16), j);
    put_above::<4>(low, high)
});
direct!(Q6K, scales::q6_k, |a, b, block| {
    let (start, half, j) = (210 * (block / 8), block % 8 / 4, block % 4);
    let low = load_halves(a, b, start + 64 * half + 32 * (j % 2));
    let high = bits_at::<3>(load_halves(a, b, start + 128 + 32 * half), 2 * j);
    put_above::<4>(bits_at::<15>(low, 4 * (j / 2)), high)
});
direct!(Iq4Xs, |a, b, block| {
    let at = 136 * (block / 8) + 8 + 16 * (block % 8);
    look_up(&IQ4_TABLE.map(|v| v as u8), nibbles(load_two(a.add(at), b.add(at))))
});
direct!(Affine<4>, scales::affine::<4>, |a, b, block| {
    // Neighbours share a byte.
    let (even, odd) = nibbles(load_two(a.add(16 * block), b.add(16 * block)));
    (_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd))
});
direct!(Affine<8>, scales::affine::<8>, |a, b, block| {
    let (low, high) = load_halves(a, b, 32 * block);
    let flip = _mm256_set1_epi8(-128);
    (_mm256_xor_si256(low, flip), _mm256_xor_si256(high, flip))
});
