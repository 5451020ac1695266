//! Any bytes as a GGUF file. What opens must be usable, and survive being written and read again.

#![no_main]

use baton_weights::{GgufFile, GgufWriter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = GgufFile::from_bytes(bytes.to_vec()) else { return };
    let mut usable = Vec::new();
    for info in file.tensors() {
        if let Ok(tensor) = file.tensor(info.name()) {
            tensor.to_f32();
            usable.push((info.name(), tensor.dtype(), tensor.shape().to_vec()));
        }
    }
    let write = |file: &GgufFile| {
        let mut writer = GgufWriter::new(Vec::new(), file.metadata(), &usable).unwrap();
        for (name, ..) in &usable {
            writer.tensor(file.tensor(name).unwrap().data()).unwrap();
        }
        writer.finish().unwrap()
    };
    let once = write(&file);
    let again = GgufFile::from_bytes(once.clone()).unwrap();
    assert!(write(&again) == once, "writing what was read changes it");
});
