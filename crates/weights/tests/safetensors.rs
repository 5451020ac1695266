//! Reading checkpoints made by safetensors, MLX and transformers.

use std::path::PathBuf;

use baton_weights::{Checkpoint, DType, Error};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Equal to the bit, save that any NaN equals any other.
fn same(a: &[f32], b: &[f32]) -> bool {
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.len() == b.len() && a.iter().zip(b).all(equal)
}

#[test]
fn shards_open_by_folder_and_by_any_shard() {
    for path in ["", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        let c = Checkpoint::open(golden("sharded").join(path)).unwrap();
        assert_eq!(c.config()["model_type"], "tiny");
        assert_eq!((c.names().count(), c.paths().count()), (7, 2));
        let values = [-0.5, -0.25, 0.0, 0.25, 0.5, 0.75];
        for (name, dtype) in [("a.f32", DType::F32), ("a.f16", DType::F16), ("b.bf16", DType::BF16)]
        {
            let tensor = c.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[2, 3][..]));
            assert_eq!(tensor.to_f32(), values);
        }
        let scalar = c.tensor("a.scalar").unwrap();
        assert_eq!((scalar.shape(), scalar.to_f32()), (&[][..], vec![2.5]));
        assert!(!c.has("c"));
        assert!(matches!(c.tensor("c"), Err(Error::MissingTensor { .. })));
        for (name, kind) in [("a.f64", "F64"), ("a.i64", "I64"), ("b.u8", "U8")] {
            assert_eq!(c.info(name).unwrap().dtype, Err(kind.to_owned()));
            match c.tensor(name) {
                Err(Error::UnsupportedType { dtype, .. }) => assert_eq!(dtype, kind),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn every_mlx_format_decodes_as_mlx_does() {
    let c = Checkpoint::open(golden("mlx")).unwrap();
    let expected = Checkpoint::open(golden("mlx/expected")).unwrap();
    let mut affine = 0;
    for name in expected.names() {
        if ["nvfp4.weight", "mxfp8.weight"].contains(&name) {
            continue;
        }
        let (found, expected) = (c.tensor(name).unwrap(), expected.tensor(name).unwrap());
        assert_eq!(found.shape(), expected.shape(), "{name}");
        assert!(same(&found.to_f32(), &expected.to_f32()), "{name}");
        let info = c.info(name).unwrap();
        assert_eq!((info.dtype, &info.shape[..]), (Ok(found.dtype()), found.shape()), "{name}");
        affine += usize::from(matches!(found.dtype(), DType::Affine { .. }));
        if let [_, rows, _] = *found.shape() {
            let rows_each = rows * found.cols();
            assert!(same(&found.index(1).to_f32(), &expected.to_f32()[rows_each..]), "{name}");
        }
    }
    assert_eq!(affine, 3 * 6 * 3 + 1);
    let mut names: Vec<&str> = c.names().collect();
    let mut wanted: Vec<&str> = expected.names().collect();
    names.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(names, wanted, "scales and biases are no tensors of their own");
}

#[test]
fn mlx_formats_without_a_decoder_are_named() {
    let c = Checkpoint::open(golden("mlx")).unwrap();
    let error = c.tensor("nvfp4.weight").unwrap_err().to_string();
    assert!(error.contains("has type MLX nvfp4 4-bit g16, which is not supported"), "{error}");
    let error = c.tensor("mxfp8.weight").unwrap_err().to_string();
    assert!(error.contains("MLX mxfp8 8-bit g32"), "{error}");
}

#[test]
fn gpt_oss_experts_become_blocks() {
    let c = Checkpoint::open(golden("gpt_oss")).unwrap();
    let expected = Checkpoint::open(golden("gpt_oss/expected")).unwrap().tensor("up_proj").unwrap();
    let found = c.tensor("up_proj").unwrap();
    assert_eq!((found.dtype(), found.shape()), (DType::MxFp4, &[2, 3, 64][..]));
    // Equal, not the same bits: ggml's table has no -0.
    assert_eq!(found.to_f32(), expected.to_f32());
    let mut names: Vec<&str> = c.names().collect();
    names.sort_unstable();
    assert_eq!(names, ["up_proj", "up_proj_bias"]);
    assert_eq!(c.info("up_proj").unwrap().stored_bytes, 2 * 3 * 2 * 17);
}

#[test]
fn a_part_of_a_checkpoint_is_a_checkpoint_with_the_same_tensors() {
    let c = Checkpoint::open(golden("mlx")).unwrap();
    let quantized = c.names().find(|name| c.tensor(name).is_ok_and(|t| !t.dtype().is_float()));
    let plain = c.names().find(|name| c.tensor(name).is_ok_and(|t| t.dtype().is_float()));
    let names: Vec<&str> = plain.into_iter().chain(quantized).collect();
    assert_eq!(names.len(), 2);
    let part = c.write_some(&names, Vec::new()).unwrap();
    let part = Checkpoint::from_bytes(part, c.config().clone()).unwrap();
    assert_eq!(part.names().collect::<Vec<_>>(), names);
    for name in names {
        assert_eq!(part.info(name).unwrap(), c.info(name).unwrap());
        assert!(same(&part.tensor(name).unwrap().to_f32(), &c.tensor(name).unwrap().to_f32()));
    }
    assert!(matches!(c.write_some(&["none"], Vec::new()), Err(Error::MissingTensor { .. })));
    let none = Checkpoint::from_bytes(c.write_some(&[], Vec::new()).unwrap(), c.config().clone());
    assert_eq!(none.unwrap().names().count(), 0);
}
