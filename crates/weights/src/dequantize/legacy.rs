//! Blocks of 32 weights with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! The low four bits of weight `i` lie in byte `i % 16`: the lower half for the first 16 weights,
//! the upper half for the others. A fifth bit is bit `i` of a 32-bit word.

use super::f16_at;

pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for (value, q) in out.iter_mut().zip(nibbles(&block[2..])) {
        *value = scale * (f32::from(q) - 8.0);
    }
}

pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, min) = (f16_at(block, 0), f16_at(block, 2));
    for (value, q) in out.iter_mut().zip(nibbles(&block[4..])) {
        *value = scale * f32::from(q) + min;
    }
}

pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for (i, (value, q)) in out.iter_mut().zip(nibbles(&block[6..])).enumerate() {
        *value = scale * (f32::from(q | fifth_bit(&block[2..6], i)) - 16.0);
    }
}

pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, min) = (f16_at(block, 0), f16_at(block, 2));
    for (i, (value, q)) in out.iter_mut().zip(nibbles(&block[8..])).enumerate() {
        *value = scale * f32::from(q | fifth_bit(&block[4..8], i)) + min;
    }
}

pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(q as i8) * scale;
    }
}

/// The 32 four-bit values of 16 bytes, in the block's order.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let mut values = [0; 32];
    for (i, byte) in bytes.iter().enumerate() {
        values[i] = byte & 15;
        values[i + 16] = byte >> 4;
    }
    values
}

fn fifth_bit(bits: &[u8], i: usize) -> u8 {
    (bits[i / 8] >> (i % 8) & 1) << 4
}
