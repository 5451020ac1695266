//! Super-blocks of 256 weights whose groups have scales quantized in turn: Q2_K to Q6_K.

use super::f16_at;

/// Sixteen groups of 16: scales and minima (4 bits each), 2-bit values, scale of both.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, values) = (&block[..16], &block[16..80]);
    let (d, d_min) = (f16_at(block, 80), f16_at(block, 82));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group] & 15);
        let min = d_min * f32::from(scales[group] >> 4);
        let (at, shift) = two_bits_at(group);
        for (value, byte) in out.iter_mut().zip(&values[at..]) {
            *value = scale * f32::from(byte >> shift & 3) - min;
        }
    }
}

/// Sixteen groups of 16: high bits, 2-bit low parts, 6-bit scales minus 32, scale of scales.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, low, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16_at(block, 108);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale_low = packed[group % 8] >> (group / 8 * 4) & 15;
        let scale_high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = d * (f32::from(scale_low | scale_high << 4) - 32.0);
        let (at, shift) = two_bits_at(group);
        let (high_at, high_shift) = (group % 2 * 16, group / 2);
        for (i, value) in out.iter_mut().enumerate() {
            let q = low[at + i] >> shift & 3;
            // A cleared high bit means four less.
            let offset = if high[high_at + i] >> high_shift & 1 == 0 { 4.0 } else { 0.0 };
            *value = scale * (f32::from(q) - offset);
        }
    }
}

/// Eight groups of 32: scale of scales and of minima, 6-bit scales and minima, 4-bit values.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, d_min) = (f16_at(block, 0), f16_at(block, 2));
    let (packed, values) = (&block[4..16], &block[16..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        let (scale, min) = (d * scale, d_min * min);
        let (at, shift) = (group / 2 * 32, group % 2 * 4);
        for (value, byte) in out.iter_mut().zip(&values[at..]) {
            *value = scale * f32::from(byte >> shift & 15) - min;
        }
    }
}

/// As [`q4_k`] with a fifth bit for each weight before the values.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, d_min) = (f16_at(block, 0), f16_at(block, 2));
    let (packed, high, values) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        let (scale, min) = (d * scale, d_min * min);
        let (at, shift) = (group / 2 * 32, group % 2 * 4);
        for (i, value) in out.iter_mut().enumerate() {
            let q = values[at + i] >> shift & 15 | (high[i] >> group & 1) << 4;
            *value = scale * f32::from(q) - min;
        }
    }
}

/// Sixteen groups of 16: low 4 bits, high 2 bits, 8-bit scales, scale of scales; values minus 32.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16_at(block, 208);
    for (i, value) in out.iter_mut().enumerate() {
        let scale = d * f32::from(scales[i / 16] as i8);
        let (half, within) = (i / 128, i % 128);
        let l = low[half * 64 + within % 64] >> (within / 64 * 4) & 15;
        let h = high[half * 32 + within % 32] >> (within / 32 * 2) & 3;
        *value = scale * (f32::from(l | h << 4) - 32.0);
    }
}

/// Where the 2-bit values of a group of 16 start, and by how many bits they are shifted.
fn two_bits_at(group: usize) -> (usize, usize) {
    (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2)
}

/// The 6-bit scale and minimum of a group of Q4_K and Q5_K: the first four groups' lie in bytes
/// 0..8, the other four's low bits in bytes 8..12 and high bits in the tops of bytes 0..8.
fn scale_and_min(packed: &[u8], group: usize) -> (f32, f32) {
    let i = group % 4;
    let (scale, min) = if group < 4 {
        (packed[i] & 63, packed[4 + i] & 63)
    } else {
        (packed[8 + i] & 15 | packed[i] >> 6 << 4, packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}
