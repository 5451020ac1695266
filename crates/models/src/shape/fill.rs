//! Random blocks of every type: random codes, scales that make weights of the usual size.

use baton_weights::DType;
use half::{bf16, f16};

use super::Random;

/// What weights spread over, in both directions.
const SIZE: f32 = 0.05;

/// `bytes` of whole blocks of a type.
pub fn blocks(dtype: DType, bytes: usize, random: &mut Random) -> Vec<u8> {
    match dtype {
        DType::F32 => floats(bytes / 4, random).flat_map(f32::to_le_bytes).collect(),
        DType::F16 => {
            floats(bytes / 2, random).flat_map(|v| f16::from_f32(v).to_le_bytes()).collect()
        }
        DType::BF16 => {
            floats(bytes / 2, random).flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect()
        }
        _ => quantized(dtype, bytes, random),
    }
}

fn floats(n: usize, random: &mut Random) -> impl Iterator<Item = f32> {
    (0..n).map(move |_| (random.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0).map(|v| v * SIZE)
}

fn quantized(dtype: DType, bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut data = vec![0; bytes];
    let mut words = data.chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&random.bits().to_le_bytes());
    }
    let rest = words.into_remainder();
    let last = random.bits().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
    let scales = scales(dtype);
    for block in data.chunks_exact_mut(dtype.block_bytes()) {
        for &(at, value) in scales {
            block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        }
    }
    data
}

/// Where the f16 scales and minima of a block lie, and their values: with them random codes make
/// weights around zero.
fn scales(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::Q4_0 => &[(0, SIZE / 8.0)],
        DType::Q4_1 => &[(0, SIZE / 7.5), (2, -SIZE)],
        DType::Q5_0 => &[(0, SIZE / 16.0)],
        DType::Q5_1 => &[(0, SIZE / 15.5), (2, -SIZE)],
        DType::Q8_0 => &[(0, SIZE / 128.0)],
        // Groups have a scale and a minimum of 6 bits each, 31.5 in the mean.
        DType::Q4_K => &[(0, SIZE / 7.5 / 31.5), (2, SIZE / 31.5)],
        DType::Q5_K => &[(0, SIZE / 15.5 / 31.5), (2, SIZE / 31.5)],
        // Groups have a scale of 8 bits, with a sign.
        DType::Q6_K => &[(208, SIZE / 32.0 / 64.0)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_weights::dequantize_blocks;

    #[test]
    fn weights_are_of_the_usual_size() {
        let types = [
            DType::F32,
            DType::F16,
            DType::BF16,
            DType::Q4_0,
            DType::Q4_1,
            DType::Q5_0,
            DType::Q5_1,
            DType::Q8_0,
            DType::Q4_K,
            DType::Q5_K,
            DType::Q6_K,
        ];
        for dtype in types {
            let n = 1 << 14;
            let bytes = n / dtype.block_len() * dtype.block_bytes();
            let data = blocks(dtype, bytes, &mut Random(3));
            assert_eq!(data.len(), bytes);
            let mut values = vec![0.0; n];
            dequantize_blocks(dtype, &data, &mut values);
            let mean = values.iter().sum::<f32>() / n as f32;
            let spread = (values.iter().map(|v| v * v).sum::<f32>() / n as f32).sqrt();
            assert!(mean.abs() < SIZE / 10.0, "{dtype}: {mean}");
            assert!((SIZE / 4.0..SIZE * 2.0).contains(&spread), "{dtype}: {spread}");
        }
    }
}
