//! Encoding against bytes made by the `gguf` Python package.

use baton_weights::{DType, Error, Tensor};

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/quantize/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

const TYPES: [DType; 7] =
    [DType::F16, DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0];

#[test]
fn encodes_as_the_gguf_package_does() {
    let input = golden("input.f32");
    let values: Vec<f32> = input.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let shape = [values.len() / 32, 32];
    for dtype in TYPES {
        let tensor = Tensor::quantize("x", dtype, &shape, &values).unwrap();
        let expected = golden(&format!("{dtype}.bin"));
        for row in 0..shape[0] {
            let bytes = row * tensor.row_bytes()..(row + 1) * tensor.row_bytes();
            assert_eq!(tensor.data()[bytes.clone()], expected[bytes], "{dtype} row {row}");
        }
    }
    let tensor = Tensor::quantize("x", DType::F32, &shape, &values).unwrap();
    assert_eq!(tensor.data(), input);
}

#[test]
fn odd_values_do_not_panic() {
    let mut values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-42, -1e38, 0.0].repeat(16);
    values.extend([f32::NAN; 32]);
    for dtype in TYPES {
        let tensor = Tensor::quantize("x", dtype, &[4, 32], &values).unwrap();
        assert_eq!(tensor.to_f32().len(), values.len());
    }
}

#[test]
fn what_cannot_be_encoded_is_an_error() {
    let values = [0.0; 256];
    for dtype in [DType::Q4_K, DType::MxFp4, DType::Affine { bits: 4, group_size: 32 }] {
        let error = Tensor::quantize("x", dtype, &[256], &values).unwrap_err();
        assert!(matches!(error, Error::CannotQuantize { .. }), "{error}");
    }
    for shape in [&[2, 64][..], &[96], &[255], &[8, 31], &[usize::MAX, 32]] {
        let error = Tensor::quantize("x", DType::Q8_0, shape, &values[..100]).unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }), "{error}");
    }
}
