//! Encoding of values: the plain float types, and the block formats with one scale.
//!
//! Results agree to the bit with ggml's for finite values. Values that are not finite give some
//! code and no panic: a block holding one has no sensible scale.

use half::{bf16, f16};

use crate::{DType, Error, Result, Tensor};

impl Tensor {
    /// A tensor of `values`, row-major, encoded as `dtype`: F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1
    /// or Q4_0.
    ///
    /// # Errors
    /// If there is no encoder for `dtype`, or values and shape do not fit it.
    pub fn quantize(
        name: impl Into<String>,
        dtype: DType,
        shape: &[usize],
        values: &[f32],
    ) -> Result<Self> {
        let name = name.into();
        if !values.len().is_multiple_of(dtype.block_len()) {
            let problem = format!("{} values are no whole blocks of {dtype}", values.len());
            return Err(Error::Tensor { name, problem });
        }
        Tensor::new(name, dtype, shape, quantize_blocks(dtype, values)?.into())
    }
}

/// Encodes `values`, whole blocks, as `dtype`: F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0.
///
/// # Errors
/// If there is no encoder for `dtype`.
///
/// # Panics
/// If `values` are no whole number of blocks.
pub fn quantize_blocks(dtype: DType, values: &[f32]) -> Result<Vec<u8>> {
    assert_eq!(values.len() % dtype.block_len(), 0, "{dtype} takes whole blocks");
    let mut out = Vec::with_capacity(values.len() / dtype.block_len() * dtype.block_bytes());
    let blocks = values.as_chunks::<32>().0;
    match dtype {
        DType::F32 => values.iter().for_each(|v| out.extend(v.to_le_bytes())),
        DType::F16 => values.iter().for_each(|&v| put_f16(&mut out, v)),
        DType::BF16 => values.iter().for_each(|&v| out.extend(bf16::from_f32(v).to_le_bytes())),
        DType::Q4_0 => blocks.iter().for_each(|b| q4_0(b, &mut out)),
        DType::Q4_1 => blocks.iter().for_each(|b| q4_1(b, &mut out)),
        DType::Q5_0 => blocks.iter().for_each(|b| q5_0(b, &mut out)),
        DType::Q5_1 => blocks.iter().for_each(|b| q5_1(b, &mut out)),
        DType::Q8_0 => blocks.iter().for_each(|b| q8_0(b, &mut out)),
        dtype => return Err(Error::CannotQuantize { dtype }),
    }
    Ok(out)
}

fn q4_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let scale = extreme(block) / -8.0;
    let inverse = inverse(scale);
    put_f16(out, scale);
    put_low_bits(out, &block.map(|v| code(v * inverse + 8.5, 15)));
}

fn q4_1(block: &[f32; 32], out: &mut Vec<u8>) {
    let (min, max) = range(block);
    let scale = (max - min) / 15.0;
    let inverse = inverse(scale);
    put_f16(out, scale);
    put_f16(out, min);
    put_low_bits(out, &block.map(|v| code((v - min) * inverse + 0.5, 15)));
}

fn q5_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let scale = extreme(block) / -16.0;
    let inverse = inverse(scale);
    let codes = block.map(|v| code(v * inverse + 16.5, 31));
    put_f16(out, scale);
    put_fifth_bits(out, &codes);
    put_low_bits(out, &codes);
}

fn q5_1(block: &[f32; 32], out: &mut Vec<u8>) {
    let (min, max) = range(block);
    let scale = (max - min) / 31.0;
    let inverse = inverse(scale);
    let codes = block.map(|v| code((v - min) * inverse + 0.5, 31));
    put_f16(out, scale);
    put_f16(out, min);
    put_fifth_bits(out, &codes);
    put_low_bits(out, &codes);
}

fn q8_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let scale = block.iter().fold(0.0, |m: f32, v| m.max(v.abs())) / 127.0;
    let inverse = inverse(scale);
    put_f16(out, scale);
    out.extend(block.map(|v| (v * inverse).round() as i8 as u8));
}

/// The value of greatest magnitude, the first of equals.
fn extreme(block: &[f32; 32]) -> f32 {
    block.iter().fold(0.0, |m: f32, &v| if v.abs() > m.abs() { v } else { m })
}

fn range(block: &[f32; 32]) -> (f32, f32) {
    let start = (f32::INFINITY, f32::NEG_INFINITY);
    block.iter().fold(start, |(min, max), &v| (min.min(v), max.max(v)))
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Truncates to a code from 0 to `max`.
fn code(value: f32, max: u8) -> u8 {
    (value as u8).min(max)
}

fn put_f16(out: &mut Vec<u8>, value: f32) {
    out.extend(f16::from_f32(value).to_le_bytes());
}

fn put_low_bits(out: &mut Vec<u8>, codes: &[u8; 32]) {
    let (first, second) = codes.split_at(16);
    out.extend(first.iter().zip(second).map(|(a, b)| a & 15 | b << 4));
}

fn put_fifth_bits(out: &mut Vec<u8>, codes: &[u8; 32]) {
    let bits = codes.iter().enumerate().fold(0u32, |bits, (i, c)| bits | u32::from(c >> 4) << i);
    out.extend(bits.to_le_bytes());
}
