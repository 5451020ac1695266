//! Opening reads headers only, however large the file.

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
