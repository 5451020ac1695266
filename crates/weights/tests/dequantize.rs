//! Decoding against values made by the `gguf` Python package.

use baton_weights::{DType, Tensor, dequantize_blocks};

const TYPES: [(&str, DType); 13] = [
    ("Q4_0", DType::Q4_0),
    ("Q4_1", DType::Q4_1),
    ("Q5_0", DType::Q5_0),
    ("Q5_1", DType::Q5_1),
    ("Q8_0", DType::Q8_0),
    ("Q2_K", DType::Q2_K),
    ("Q3_K", DType::Q3_K),
    ("Q4_K", DType::Q4_K),
    ("Q5_K", DType::Q5_K),
    ("Q6_K", DType::Q6_K),
    ("IQ4_NL", DType::Iq4Nl),
    ("IQ4_XS", DType::Iq4Xs),
    ("MXFP4", DType::MxFp4),
];

fn golden(path: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Equal to the bit, save that any NaN equals any other.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn every_block_format_decodes_as_the_gguf_package_does() {
    for (name, dtype) in TYPES {
        let file = golden(&format!("dequantize/{name}.bin"));
        let (blocks, expected) = file.split_at(16 * dtype.block_bytes());
        let expected = floats(expected);
        assert_eq!(expected.len(), 16 * dtype.block_len());

        let mut found = vec![0.0; expected.len()];
        dequantize_blocks(dtype, blocks, &mut found);
        for (i, (&f, &e)) in found.iter().zip(&expected).enumerate() {
            assert!(same(f, e), "{name} value {i}: {f:?}, expected {e:?}");
        }
        let shape = [4, 4 * dtype.block_len()];
        let tensor = Tensor::new(name, dtype, &shape, blocks.to_vec().into()).unwrap();
        assert!(tensor.to_f32().iter().zip(&expected).all(|(&f, &e)| same(f, e)), "{name}");
        let second = &tensor.index(1).to_f32();
        assert!(second.iter().zip(&expected[shape[1]..]).all(|(&f, &e)| same(f, e)), "{name}");
    }
}

#[test]
fn plain_floats_decode() {
    let values = [0.0, -0.0, 1.0, -1.5, 65504.0, 6e-8, f32::INFINITY, f32::NAN];
    let halves: Vec<u8> =
        values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
    let tensor = Tensor::new("x", DType::F16, &[2, 4], halves.into()).unwrap();
    let expected = values.map(|v| half::f16::from_f32(v).to_f32());
    assert!(tensor.to_f32().iter().zip(expected).all(|(&f, e)| same(f, e)));

    let brains: Vec<u8> =
        values.iter().flat_map(|v| v.to_bits().to_le_bytes()[2..].to_vec()).collect();
    let tensor = Tensor::new("x", DType::BF16, &[8], brains.into()).unwrap();
    let expected = values.map(|v| f32::from_bits(v.to_bits() & 0xffff_0000));
    assert!(tensor.to_f32().iter().zip(expected).all(|(f, e)| f.to_bits() == e.to_bits()));

    let tensor = Tensor::from_f32("x", &[2, 4], &values);
    assert!(tensor.to_f32().iter().zip(values).all(|(f, e)| f.to_bits() == e.to_bits()));
}
