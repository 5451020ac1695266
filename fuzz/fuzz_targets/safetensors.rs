//! Any bytes as a safetensors file and its configuration: the text of a `config.json` up to the
//! first zero byte, then the file.

#![no_main]

use baton_weights::Checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let split = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let config = serde_json::from_slice(&bytes[..split]).unwrap_or_default();
    let file = bytes.get(split + 1..).unwrap_or_default().to_vec();
    let Ok(checkpoint) = Checkpoint::from_bytes(file, config) else { return };
    for name in checkpoint.names() {
        let info = checkpoint.info(name);
        if let Ok(tensor) = checkpoint.tensor(name) {
            let info = info.expect("a tensor that can be used can be described");
            assert_eq!((info.dtype, &info.shape[..]), (Ok(tensor.dtype()), tensor.shape()));
            assert_eq!(tensor.to_f32().len(), tensor.elements());
        }
    }
});
