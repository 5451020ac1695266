//! Broken and hostile files: each of the corpus is refused for its own reason, and no change to a
//! good file does more than that.

use std::path::PathBuf;

use baton_weights::{Checkpoint, Error, GgufFile};
use proptest::prelude::*;

fn tests_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Every file of a folder of the corpus.
fn corpus(folder: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(tests_folder().join("corpus").join(folder)).unwrap();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    };
    entries.map(|e| read(e.unwrap().path())).collect()
}

/// Opens the bytes and uses all that is in them; the first error that is met.
fn use_gguf(bytes: Vec<u8>) -> Result<(), Error> {
    let file = GgufFile::from_bytes(bytes)?;
    for (_, value) in file.metadata().iter() {
        assert!(value.summary().len() < 400);
    }
    for info in file.tensors() {
        file.tensor(info.name())?.to_f32();
    }
    Ok(())
}

/// The same for a case of safetensors: configuration, zero byte, file.
fn use_safetensors(case: &[u8]) -> Result<(), Error> {
    let split = case.iter().position(|&b| b == 0).unwrap_or(case.len());
    let config = serde_json::from_slice(&case[..split]).unwrap_or_default();
    let bytes = case.get(split + 1..).unwrap_or_default().to_vec();
    let checkpoint = Checkpoint::from_bytes(bytes, config)?;
    for name in checkpoint.names() {
        let (info, tensor) = (checkpoint.info(name), checkpoint.tensor(name));
        assert!(info.is_ok() || tensor.is_err());
        tensor?.to_f32();
    }
    Ok(())
}

const GGUF: [(&str, &str); 42] = [
    ("empty-file", "ends at byte 0 within the magic"),
    ("not-gguf", "is no GGUF file"),
    ("version-1", "is GGUF version 1"),
    ("version-4", "is GGUF version 4"),
    ("big-endian", "is a big-endian GGUF file"),
    ("cut-in-counts", "ends at byte 12 within the tensor count"),
    ("cut-in-key", "claims 20 bytes of a string at byte 32"),
    ("cut-in-tensors", "claims 2 tensors"),
    ("key-count-huge", "claims 1152921504606846976 metadata keys"),
    ("tensor-count-huge", "claims 1152921504606846976 tensors"),
    ("counts-all-ones", "claims 18446744073709551615 metadata keys"),
    ("key-length-huge", "claims 1152921504606846976 bytes of a string"),
    ("string-length-huge", "claims 18446744073709551615 bytes of a string"),
    ("array-length-huge", "claims 2305843009213693952 array elements"),
    ("string-array-huge", "claims 1152921504606846976 strings"),
    ("nested-array-huge", "claims 1152921504606846976 arrays"),
    ("nested-too-deep", "\"deep\" nests arrays too deeply"),
    ("key-type-unknown", "metadata key \"x\" has unknown type 13"),
    ("array-type-unknown", "array \"x\" has elements of unknown type 77"),
    ("key-twice", "metadata key \"general.architecture\" occurs twice"),
    ("key-not-utf8", "a metadata key at byte 24 is not UTF-8"),
    ("value-not-utf8", "the value of \"x\" at byte 37 is not UTF-8"),
    ("strings-split-a-character", "a string of \"x\" is not UTF-8"),
    ("bool-is-2", "\"x\" should be 0 (false) or 1 (true), found 2"),
    ("tensor-twice", "tensor \"a\" occurs twice"),
    ("tensors-overlap", "tensors \"a\" and \"b\" overlap"),
    ("tensor-outside", "tensor \"a\" (F32 [9], 36 bytes at 0) lies beyond the end"),
    ("offset-huge", "lies beyond the end"),
    ("offset-unaligned", "tensor \"a\" starts at 16, which is not aligned to 32"),
    ("shape-overflows", "F32 [4294967296, 4294967296] is no possible shape"),
    ("shape-bytes-overflow", "F32 [4611686018427387904] is no possible shape"),
    ("dimensions-huge", "tensor \"a\" has 4294967295 dimensions"),
    ("row-not-whole-blocks", "Q4_0 [2, 16] is no possible shape"),
    ("alignment-0", "general.alignment is 0"),
    ("alignment-3", "general.alignment is 3"),
    ("alignment-huge", "general.alignment is 2147483648"),
    ("alignment-is-text", "\"general.alignment\" should be a whole number"),
    ("lone-part", "is one of 3 parts, but is not named like one"),
    ("split-count-negative", "\"split.count\" should be a whole number"),
    // Opened, but a tensor cannot be used.
    ("ok-unknown-type", "tensor \"a\" has type number 99 of ggml"),
    ("ok-zero-dimension", "has a dimension of 0"),
    ("ok-nan-scales", ""),
];

const SAFETENSORS: [(&str, &str); 34] = [
    ("empty-file", "is too short"),
    ("cut-in-length", "is too short"),
    ("cut-in-header", "ends within its header, which has 1000 bytes"),
    ("header-huge", "claims a header of 1152921504606846976 bytes"),
    ("header-not-json", "has a malformed header: key must be a string"),
    ("header-not-utf8", "has a malformed header: invalid unicode"),
    ("header-is-array", "has a malformed header: invalid type: sequence, expected an object"),
    ("header-nested-deeply", "has a malformed header"),
    ("name-twice", "\"a\" occurs twice"),
    ("offsets-swapped", "tensor \"a\" lies at 8..0"),
    ("offsets-overlap", "tensor \"b\" lies at 4..12, but should start at 8"),
    ("offsets-hole", "tensor \"b\" lies at 12..20, but should start at 8"),
    ("offsets-outside", "tensor \"a\" lies at 0..16, beyond the 8 bytes of data"),
    ("offsets-all-ones", "beyond the 8 bytes of data"),
    ("offsets-negative", "has a malformed header: invalid value: integer `-8`"),
    ("data-left-over", "has 9 bytes of data, but its tensors end at 8"),
    ("shape-does-not-fill", "tensor \"a\": F32 [3] does not fill 8 bytes"),
    ("shape-overflows", "F32 [4294967296, 4294967296] does not fill 8 bytes"),
    ("shape-overflows-unknown", "F3 [4294967296, 4294967296] does not fill 8 bytes"),
    ("bits-wrong-type", "quantization: bits should be a whole number, found \"four\""),
    ("layer-wrong-type", "quantization of \"x\": group_size should be a whole number, found -1"),
    ("use-mlx-without-config", "config.json states no MLX quantization for \"x\""),
    ("use-mlx-without-biases", "tensor \"x.biases\" is missing"),
    ("use-mlx-wrong-group", "do not fit 4 bits in groups of 32"),
    ("use-mlx-group-0", "do not fit 4 bits in groups of 0"),
    ("use-mlx-group-huge", "do not fit 4 bits in groups of 9223372036854775808"),
    ("use-mlx-7-bits", "has type MLX affine 7-bit g64, which is not supported"),
    ("use-mlx-layer-false", "config.json states no MLX quantization for \"x\""),
    ("use-mlx-words-overflow", "do not fit 4 bits in groups of 64"),
    ("use-mxfp4-wrong-shape", "MXFP4 blocks of [2, 16] and scales of [3] do not fit together"),
    ("use-f64", "tensor \"a\" has type F64, which is not supported"),
    ("use-fp8", "tensor \"a\" has type F8_E4M3, which is not supported"),
    ("ok-unknown-type", "tensor \"a\" has type F3"),
    ("ok-zero-dimension", "has a dimension of 0"),
];

/// Checks each case against its line of the table; without a line, or an empty one, it must pass.
fn check(
    cases: Vec<(String, Vec<u8>)>,
    table: &[(&str, &str)],
    run: impl Fn(&[u8]) -> Result<(), Error>,
) {
    for (wanted, _) in table {
        assert!(cases.iter().any(|(name, _)| name == wanted), "{wanted} is not in the corpus");
    }
    let mut wrong = Vec::new();
    for (name, bytes) in cases {
        let wanted = table.iter().find(|(n, _)| *n == name).map_or("", |(_, error)| *error);
        let error = run(&bytes).map_or_else(|e| e.to_string(), |()| String::new());
        if error.is_empty() != wanted.is_empty() || !error.contains(wanted) {
            wrong.push(format!("{name}: {error:?}, wanted {wanted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_case_is_refused_for_its_own_reason() {
    check(corpus("gguf"), &GGUF, |bytes| use_gguf(bytes.to_vec()));
    check(corpus("safetensors"), &SAFETENSORS, use_safetensors);
}

#[test]
fn nan_scales_decode_to_nan() {
    let (_, bytes) = corpus("gguf").into_iter().find(|(name, _)| name == "ok-nan-scales").unwrap();
    let values = GgufFile::from_bytes(bytes).unwrap().tensor("a").unwrap().to_f32();
    assert!(values.iter().all(|v| v.is_nan()));
}

#[test]
fn every_cut_of_a_file_is_refused() {
    let file = std::fs::read(tests_folder().join("golden/gguf/all-types.gguf")).unwrap();
    // The padding after the last tensor's 50 bytes is no loss.
    for len in (0..file.len() - 14).step_by(7) {
        assert!(GgufFile::from_bytes(file[..len].to_vec()).is_err(), "{len}");
    }
    let file = std::fs::read(tests_folder().join("golden/mlx/model.safetensors")).unwrap();
    for len in (0..file.len()).step_by(7) {
        assert!(Checkpoint::from_bytes(file[..len].to_vec(), Default::default()).is_err(), "{len}");
    }
}

#[test]
fn files_are_named_in_errors() {
    let path = tests_folder().join("corpus/gguf/version-1");
    let error = GgufFile::open(&path).unwrap_err().to_string();
    assert!(error.starts_with(path.to_str().unwrap()), "{error}");
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("none.gguf"), folder.path().to_owned()] {
        let error = GgufFile::open(&path).unwrap_err().to_string();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        assert!(Checkpoint::open(&path).is_err());
    }
}

#[test]
fn an_index_names_files_of_its_folder_only() {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    let shard = tests_folder().join("golden/sharded/model-00001-of-00002.safetensors");
    std::fs::copy(&shard, outside.path().join("out.safetensors")).unwrap();
    std::fs::copy(&shard, folder.join("in.safetensors")).unwrap();
    let open = |map: &str| {
        let index = format!("{{\"weight_map\": {{{map}}}}}");
        std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
        Checkpoint::open(&folder).map(|c| c.names().count()).map_err(|e| e.to_string())
    };
    assert_eq!(open("\"a.f32\": \"in.safetensors\""), Ok(1));
    for (map, wanted) in [
        ("\"a.f32\": \"../out.safetensors\"", "which is no file of this folder"),
        ("\"a.f32\": \"/out.safetensors\"", "which is no file of this folder"),
        ("\"b\": \"in.safetensors\"", "has no tensor \"b\", though the index says so"),
        ("\"a.f32\": \"gone.safetensors\"", "gone.safetensors is missing: it is part 1 of 1"),
        ("\"a\": \"in.safetensors\", \"a\": \"in.safetensors\"", "\"a\" occurs twice"),
    ] {
        let error = open(map).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
    // A whole file beside an index that is out of date.
    std::fs::copy(&shard, folder.join("model.safetensors")).unwrap();
    assert_eq!(open("\"a\": \"gone.safetensors\""), Ok(5));
}

/// Overwrites, removes or repeats a stretch of bytes.
#[derive(Clone, Debug)]
enum Change {
    Write(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = || any::<prop::sample::Index>();
    let odd = prop::sample::select(vec![0u64, 1, 255, 1 << 31, 1 << 60, u64::MAX - 7, u64::MAX]);
    prop_oneof![
        (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(i, v)| Change::Write(i, v)),
        (at(), odd).prop_map(|(i, v)| Change::Write(i, v.to_le_bytes().to_vec())),
        (at(), 1..40usize).prop_map(|(i, n)| Change::Remove(i, n)),
        (at(), 1..40usize).prop_map(|(i, n)| Change::Repeat(i, n)),
    ]
}

/// Applies changes, most of them within the header, where they matter.
fn mutate(file: &[u8], header: usize, changes: Vec<Change>) -> Vec<u8> {
    let mut file = file.to_vec();
    for (i, change) in changes.into_iter().enumerate() {
        let within = if i % 4 == 3 { file.len() } else { header.min(file.len()) };
        let (Change::Write(at, _) | Change::Remove(at, _) | Change::Repeat(at, _)) = &change;
        let at = at.index(within.max(1)).min(file.len());
        match change {
            Change::Write(_, bytes) => {
                let end = (at + bytes.len()).min(file.len());
                file[at..end].copy_from_slice(&bytes[..end - at]);
            }
            Change::Remove(_, n) => drop(file.drain(at..(at + n).min(file.len()))),
            Change::Repeat(_, n) => {
                let copy = file[at..(at + n).min(file.len())].to_vec();
                file.splice(at..at, copy);
            }
        }
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_a_gguf_file_panics(changes in prop::collection::vec(change(), 1..6)) {
        let file = std::fs::read(tests_folder().join("golden/gguf/all-types.gguf")).unwrap();
        let _ = use_gguf(mutate(&file, 1700, changes));
    }

    #[test]
    fn no_change_of_a_checkpoint_panics(changes in prop::collection::vec(change(), 1..6)) {
        let folder = tests_folder().join("golden/mlx");
        let mut case = std::fs::read(folder.join("config.json")).unwrap();
        case.push(0);
        case.extend(std::fs::read(folder.join("model.safetensors")).unwrap());
        let _ = use_safetensors(&mutate(&case, 24_000, changes));
    }

    #[test]
    fn any_bytes_are_no_gguf_file_or_a_sound_one(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = use_gguf([b"GGUF\x03\0\0\0".to_vec(), bytes].concat());
    }
}
