//! Any bytes as blocks of any type, chosen by the first byte, and any values to be encoded.

#![no_main]

use baton_weights::{Affine, DType, Tensor};
use libfuzzer_sys::fuzz_target;

const TYPES: [DType; 16] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Iq4Nl,
    DType::Iq4Xs,
    DType::MxFp4,
];

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let tensor = match TYPES.get(usize::from(choice)) {
        Some(&dtype) => blocks(dtype, bytes),
        None => affine(choice, bytes),
    };
    let Some(tensor) = tensor else { return };
    let values = tensor.to_f32();
    let mut row = vec![0.0; tensor.cols()];
    for (i, expected) in values.chunks(row.len()).enumerate() {
        tensor.dequantize_row(i, &mut row);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!(row.iter().zip(expected).all(same), "a row differs from the whole");
    }
    for dtype in &TYPES[..8] {
        if values.len().is_multiple_of(dtype.block_len()) {
            let again = Tensor::quantize("x", *dtype, &[values.len()], &values).unwrap();
            assert_eq!(again.to_f32().len(), values.len());
        }
    }
});

fn blocks(dtype: DType, bytes: &[u8]) -> Option<Tensor> {
    let count = bytes.len() / dtype.block_bytes();
    let bytes = bytes[..count * dtype.block_bytes()].to_vec();
    Tensor::new("x", dtype, &[count, dtype.block_len()], bytes.into()).ok()
}

/// The choice's bits pick width, group and type of the scales; any bytes are values and scales.
fn affine(choice: u8, bytes: &[u8]) -> Option<Tensor> {
    let bits = [2, 3, 4, 5, 6, 7, 8, 1][usize::from(choice & 7)];
    let group_size = [32, 64, 128, 16][usize::from(choice >> 3 & 3)];
    let scale_type = TYPES[usize::from(choice >> 5 & 3)];
    let dtype = DType::Affine { bits, group_size };
    let (packed, scale) = (dtype.block_bytes(), scale_type.block_bytes());
    let rows = bytes.len() / (packed + 2 * scale);
    let (values, rest) = bytes.split_at(rows * packed);
    let (scales, rest) = rest.split_at(rows * scale);
    let affine = Affine {
        dtype: scale_type,
        scales: scales.to_vec().into(),
        biases: rest[..rows * scale].to_vec().into(),
    };
    let shape = [rows, usize::from(group_size)];
    Tensor::with_affine("x", dtype, &shape, values.to_vec().into(), affine).ok()
}
