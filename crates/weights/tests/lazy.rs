//! Opening reads headers only, however large the file, and what was read can be given back.

use std::fs::{self, File};
use std::path::Path;

use baton_weights::{Checkpoint, DType, GgufFile, GgufWriter, Metadata};

const SIZE: usize = 40 << 30;
const SHAPE: [usize; 2] = [SIZE / 2 / 4096, 4096];

/// Lengthens a file by `SIZE` bytes that take no room on the disk.
fn extend(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() + SIZE as u64).unwrap();
}

/// Memory of this process that holds pages of files, in bytes.
#[cfg(target_os = "linux")]
fn resident_file_pages() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[cfg(not(target_os = "linux"))]
fn resident_file_pages() -> usize {
    0
}

#[test]
fn forty_gigabytes_open_by_their_header() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = folder.path().join("large.gguf");
    let tensors = [("a", DType::BF16, SHAPE.to_vec())];
    let mut header = Vec::new();
    // Only the header is wanted, so the writer is dropped before it has the tensor.
    drop(GgufWriter::new(&mut header, &Metadata::new(), &tensors).unwrap());
    fs::write(&gguf, header).unwrap();
    extend(&gguf);

    let safetensors = folder.path().join("large.safetensors");
    let header =
        format!(r#"{{"a":{{"dtype":"BF16","shape":{SHAPE:?},"data_offsets":[0,{SIZE}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    fs::write(&safetensors, file).unwrap();
    extend(&safetensors);

    let before = resident_file_pages();
    let gguf = GgufFile::open(gguf).unwrap().tensor("a").unwrap();
    let safetensors = Checkpoint::open(safetensors).unwrap().tensor("a").unwrap();
    for tensor in [gguf, safetensors] {
        assert_eq!((tensor.shape(), tensor.stored_bytes()), (&SHAPE[..], SIZE));
        let mut row = [1.0; SHAPE[1]];
        tensor.dequantize_row(SHAPE[0] - 1, &mut row);
        assert_eq!(row, [0.0; SHAPE[1]]);
    }
    let touched = resident_file_pages().saturating_sub(before);
    assert!(touched < 32 << 20, "{touched} bytes of 80 GiB were read");
}

#[test]
fn released_tensors_give_their_memory_back_and_stay_readable() {
    const LEN: usize = 16 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tensor.safetensors");
    let elements = LEN / 2;
    let header =
        format!(r#"{{"a":{{"dtype":"F16","shape":[{elements}],"data_offsets":[0,{LEN}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend((0..LEN).map(|i| (i % 251) as u8));
    fs::write(&path, file).unwrap();
    let tensor = Checkpoint::open(&path).unwrap().tensor("a").unwrap();
    let sum = || tensor.data().iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let expected = sum();
    let before = resident_file_pages();
    tensor.release();
    let after = resident_file_pages();
    assert!(cfg!(not(target_os = "linux")) || after + LEN / 2 < before, "{before}, then {after}");
    assert_eq!(sum(), expected);
    // What is not of a file stays as it is.
    let tensor = baton_weights::Tensor::from_f32("b", &[4096], &[1.0; 4096]);
    tensor.release();
    assert_eq!(tensor.to_f32(), [1.0; 4096]);
}
