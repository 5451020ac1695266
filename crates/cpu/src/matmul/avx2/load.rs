//! Reading blocks of 32 values straight from each format's bytes.

use std::arch::x86_64::*;

use crate::matmul::formats::*;

/// A format as the AVX2 kernels read it.
pub(super) trait Load: Format {
    /// Whether [`Load::pair`] wants rows as [`Format::values`] writes them, not as in the file.
    const LINEAR: bool = false;

    /// Values 0..16 of block `block` of two rows, the second in the upper half, and values 16..32.
    ///
    /// # Safety
    /// The machine must have AVX2, and both rows that block.
    unsafe fn pair(a: *const u8, b: *const u8, block: usize) -> (__m256i, __m256i);
}

/// 16 bytes from each of two places.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_two(a: *const u8, b: *const u8) -> __m256i {
    // SAFETY: the caller's bytes.
    unsafe {
        let (a, b) = (_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast()));
        _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1)
    }
}

/// The low and the high nibbles of all bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(packed: __m256i) -> (__m256i, __m256i) {
    let mask = _mm256_set1_epi8(15);
    (_mm256_and_si256(packed, mask), _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask))
}

/// Nibbles of the 16 bytes at offset `at` of blocks of `bytes`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block_nibbles(
    a: *const u8,
    b: *const u8,
    block: usize,
    bytes: usize,
    at: usize,
) -> (__m256i, __m256i) {
    // SAFETY: the caller's rows have that block.
    unsafe { nibbles(load_two(a.add(block * bytes + at), b.add(block * bytes + at))) }
}

macro_rules! linear {
    ($($name:ty),*) => {$(
        impl Load for $name {
            const LINEAR: bool = true;

            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn pair(a: *const u8, b: *const u8, block: usize) -> (__m256i, __m256i) {
                let at = block * BLOCK;
                // SAFETY: the rows have that block, one byte a value.
                unsafe { (load_two(a.add(at), b.add(at)), load_two(a.add(at + 16), b.add(at + 16))) }
            }
        }
    )*};
}

linear!(Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Xs, Q5_0, Q5_1, Iq4Nl, MxFp4);
linear!(Affine<2>, Affine<3>, Affine<4>, Affine<5>, Affine<6>, Affine<8>);

macro_rules! direct {
    ($name:ty, |$a:ident, $b:ident, $block:ident| $body:expr) => {
        impl Load for $name {
            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn pair($a: *const u8, $b: *const u8, $block: usize) -> (__m256i, __m256i) {
                // SAFETY: the rows have that block, and only its bytes are read.
                unsafe { $body }
            }
        }
    };
}

direct!(Q4_0, |a, b, block| block_nibbles(a, b, block, 18, 2));
direct!(Q4_1, |a, b, block| block_nibbles(a, b, block, 20, 4));
direct!(Q8_0, |a, b, block| {
    let at = 34 * block + 2;
    (load_two(a.add(at), b.add(at)), load_two(a.add(at + 16), b.add(at + 16)))
});
