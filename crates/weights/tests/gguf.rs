//! Reading files made by the `gguf` Python package, and what the writer makes of the same content.

use std::path::PathBuf;

use baton_weights::gguf::{Array, GgmlType, Strings};
use baton_weights::{DType, Error, GgufFile, GgufWriter, Metadata, Tensor, Value};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn all_types() -> GgufFile {
    GgufFile::open(golden("gguf/all-types.gguf")).unwrap()
}

#[test]
fn metadata_of_every_type() {
    let file = all_types();
    let m = file.metadata();
    let expected: [(&str, Value); 12] = [
        ("uint8", Value::U8(200)),
        ("int8", Value::I8(-100)),
        ("uint16", Value::U16(60000)),
        ("int16", Value::I16(-30000)),
        ("uint32", Value::U32(4_000_000_000)),
        ("int32", Value::I32(-2_000_000_000)),
        ("float32", Value::F32(0.1)),
        ("bool", Value::Bool(true)),
        ("string", Value::Str("grüße 🦀".into())),
        ("uint64", Value::U64((1 << 63) + 1)),
        ("int64", Value::I64(-(1 << 62))),
        ("float64", Value::F64(0.1)),
    ];
    for (name, value) in expected {
        assert_eq!(m.get(&format!("test.{name}")), Some(&value));
        let array = m.get(&format!("test.{name}s")).and_then(Value::as_array).unwrap();
        let at = if name == "string" { 2 } else { 0 };
        assert_eq!(array.get(at), Some(value));
        assert_eq!(array.get(array.len()), None);
    }
    assert_eq!(
        m.strings("test.strings").unwrap().iter().collect::<Vec<_>>(),
        ["", "a", "grüße 🦀"]
    );
    assert_eq!(m.iter().next(), Some(("general.architecture", &Value::from("llama"))));
}

#[test]
fn getters_convert_what_fits_and_name_what_does_not() {
    let file = all_types();
    let m = file.metadata();
    assert_eq!(m.u32("test.uint8").unwrap(), 200);
    assert_eq!(m.u64("test.uint64").unwrap(), (1 << 63) + 1);
    assert_eq!(m.f32("test.float64").unwrap(), 0.1);
    assert_eq!(m.i32s("test.int8s").unwrap(), [-100, 1]);
    assert_eq!(m.f32s("test.float32s").unwrap(), [0.1, 1.0]);
    assert_eq!(m.opt_u32("test.none").unwrap(), None);
    assert!(matches!(m.u32("test.none"), Err(Error::MissingKey { key }) if key == "test.none"));
    assert!(m.u32s("test.int8s").is_err());
    let error = m.u32("test.int32").unwrap_err().to_string();
    assert_eq!(
        error,
        "metadata key \"test.int32\" should be a whole number of 32 bits, found i32 -2000000000"
    );
    let error = m.str("test.strings").unwrap_err().to_string();
    assert!(error.ends_with("should be a string, found array of 3 strings"), "{error}");
}

#[test]
fn tensors_of_every_type() {
    let file = all_types();
    for info in file.tensors().iter().take(13) {
        let name = info.name();
        let tensor = file.tensor(name).unwrap();
        let dtype = tensor.dtype();
        assert_eq!(tensor.shape(), [2, 4, 2 * dtype.block_len()], "{name}");
        let file_name = format!("dequantize/{dtype}.bin");
        let blocks = std::fs::read(golden(&file_name)).unwrap();
        assert_eq!(tensor.data(), &blocks[..16 * dtype.block_bytes()], "{name}");
    }
    let floats: Vec<f32> = (0..12).map(|i| i as f32 / 8.0 - 1.0).collect();
    for (name, dtype) in [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)] {
        let tensor = file.tensor(&format!("{name}.weight")).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[3, 4][..]));
        assert_eq!(tensor.to_f32(), floats);
    }
}

#[test]
fn unsupported_types_open_but_cannot_be_used() {
    let file = all_types();
    let info = file.info("iq1_s.weight").unwrap();
    assert_eq!((info.kind(), info.dtype(), info.elements()), (GgmlType(19), None, 256));
    let error = file.tensor("iq1_s.weight").unwrap_err().to_string();
    assert!(error.starts_with("tensor \"iq1_s.weight\" has type IQ1_S, which is not"), "{error}");
    assert!(matches!(file.tensor("i32.weight"), Err(Error::UnsupportedType { .. })));
    assert!(matches!(file.tensor("nothing"), Err(Error::MissingTensor { .. })));
}

#[test]
fn split_files_open_by_any_part() {
    for part in 1..=3 {
        let file = GgufFile::open(golden(&format!("gguf/split-0000{part}-of-00003.gguf"))).unwrap();
        assert_eq!(file.metadata().str("general.name").unwrap(), "in parts");
        let names: Vec<&str> = file.tensors().iter().map(|t| t.name()).collect();
        assert_eq!(names, ["blk.0.weight", "blk.1.weight", "blk.2.weight", "blk.3.weight"]);
        for (i, name) in names.iter().enumerate() {
            assert_eq!(file.tensor(name).unwrap().to_f32(), [i as f32]);
        }
        assert_eq!(file.paths().count(), 3);
    }
}

#[test]
fn broken_sets_name_the_part() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| {
        std::fs::copy(golden(&format!("gguf/{from}")), folder.path().join(to)).unwrap();
    };
    let (one, two, three) =
        ("split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf");
    copy(one, one);
    copy(three, three);
    let open = |name: &str| GgufFile::open(folder.path().join(name));
    for name in [one, three] {
        match open(name) {
            Err(Error::MissingPart { path, part: 2, parts: 3 }) => assert!(path.ends_with(two)),
            other => panic!("{other:?}"),
        }
    }
    // The third part under the name of the second.
    copy(three, two);
    let error = open(one).unwrap_err().to_string();
    assert!(error.contains(two) && error.contains("should be part 2 of 3"), "{error}");
    copy(one, "renamed.gguf");
    let error = open("renamed.gguf").unwrap_err().to_string();
    assert!(error.contains("is one of 3 parts, but is not named like one"), "{error}");
}

#[test]
fn written_files_read_back() {
    let file = all_types();
    let mut metadata = file.metadata().clone();
    let nested = vec![Array::Str(Strings::from_iter(["x", ""])), Array::Bool(vec![])];
    metadata.insert("test.nested", Value::Array(Array::Nested(nested)));
    for alignment in [None, Some(256u32), Some(1)] {
        if let Some(alignment) = alignment {
            metadata.insert("general.alignment", alignment);
        }
        let supported: Vec<_> = file
            .tensors()
            .iter()
            .filter_map(|t| Some((t.name(), t.dtype()?, t.shape().to_vec())))
            .collect();
        let mut writer = GgufWriter::new(Vec::new(), &metadata, &supported).unwrap();
        for (name, ..) in &supported {
            writer.tensor(file.tensor(name).unwrap().data()).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.gguf");
        std::fs::write(&path, writer.finish().unwrap()).unwrap();

        let copy = GgufFile::open(&path).unwrap();
        assert_eq!(copy.metadata(), &metadata);
        assert_eq!(copy.tensors().len(), supported.len());
        for (name, dtype, shape) in supported {
            let (a, b) = (file.tensor(name).unwrap(), copy.tensor(name).unwrap());
            assert_eq!((b.dtype(), b.shape(), b.data()), (dtype, &shape[..], a.data()), "{name}");
        }
    }
}

#[test]
fn the_writer_refuses_what_would_not_read_back() {
    let metadata = Metadata::new();
    let new =
        |tensors: &[(&str, DType, Vec<usize>)]| GgufWriter::new(Vec::new(), &metadata, tensors);
    assert!(new(&[("a", DType::F32, vec![1]), ("a", DType::F32, vec![1])]).is_err());
    assert!(new(&[("a", DType::Q4_0, vec![2, 33])]).is_err());
    assert!(new(&[("a", DType::Affine { bits: 4, group_size: 32 }, vec![32])]).is_err());
    let huge = vec![1 << 61];
    assert!(new(&[("a", DType::F32, huge.clone()), ("b", DType::F32, huge)]).is_err());
    let mut writer = new(&[("a", DType::F32, vec![2])]).unwrap();
    assert!(writer.tensor(&[0; 7]).is_err());
    let mut writer = new(&[("a", DType::F32, vec![2])]).unwrap();
    writer.tensor(&[0; 8]).unwrap();
    assert!(writer.tensor(&[0; 8]).is_err());
    assert!(new(&[("a", DType::F32, vec![2])]).unwrap().finish().is_err());
}

#[test]
fn a_file_of_tensors_in_memory_is_like_one_that_was_written() {
    let metadata = Metadata::from_iter([("general.architecture", "llama")]);
    let data = bytes::Bytes::from(vec![7u8; 3 * 34]);
    let tensor = |name: &str, rows: usize| {
        let part = data.slice(..rows * 34);
        Tensor::new(name, DType::Q8_0, &[rows, 32], part).unwrap()
    };
    let file =
        GgufFile::from_tensors(metadata.clone(), vec![tensor("a", 3), tensor("b", 2)]).unwrap();
    assert_eq!(file.metadata().str("general.architecture").unwrap(), "llama");
    assert_eq!(file.tensors().len(), 2);
    assert_eq!(file.tensors()[1].stored_bytes(), 68);
    let a = file.tensor("a").unwrap();
    assert_eq!((a.shape(), a.dtype()), (&[3, 32][..], DType::Q8_0));
    // The bytes are shared, not copied.
    assert_eq!(a.data().as_ptr(), data.as_ptr());
    assert_eq!(file.tensor("b").unwrap().data().as_ptr(), data.as_ptr());
    let twice = GgufFile::from_tensors(metadata, vec![tensor("a", 1), tensor("a", 1)]);
    assert!(twice.is_err());
}

#[test]
fn a_part_of_a_file_has_all_metadata_and_is_no_part_of_a_set() {
    let mut metadata: Metadata =
        all_types().metadata().iter().map(|(key, value)| (key, value.clone())).collect();
    let before = metadata.len();
    metadata.insert("split.count", 2u16);
    metadata.insert("split.no", 0u16);
    let tensors = ["a", "b", "c"].map(|name| Tensor::from_f32(name, &[2], &[1.0, -2.5]));
    let file = GgufFile::from_tensors(metadata, tensors.into()).unwrap();
    let part = GgufFile::from_bytes(file.write_some(&["b"], Vec::new()).unwrap()).unwrap();
    assert_eq!(part.metadata().len(), before);
    assert_eq!(part.tensors().len(), 1);
    assert_eq!(part.tensor("b").unwrap().to_f32(), [1.0, -2.5]);
    assert!(matches!(file.write_some(&["none"], Vec::new()), Err(Error::MissingTensor { .. })));
}
