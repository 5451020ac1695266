//! Any bytes as the two files of a Core ML package: four bytes with the length of the model, little-endian, the
//! model, then the weights. An error, or a package that reads back as it was written and that its readers take.

#![no_main]

use std::sync::{Arc, LazyLock};

use baton_coreml::interpret::{Interpreter, Precision};
use baton_coreml::passes::{Draft, Options, PASSES};
use baton_coreml::report::Report;
use baton_coreml::{Blobs, Model, Package};
use baton_cpu::{Isa, Pool};
use libfuzzer_sys::fuzz_target;

static POOL: LazyLock<Arc<Pool>> =
    LazyLock::new(|| Arc::new(Pool::new(1, Isa::detect()).expect("a thread")));

fuzz_target!(|bytes: &[u8]| {
    let Some((length, rest)) = bytes.split_first_chunk() else { return };
    let length = (u32::from_le_bytes(*length) as usize).min(rest.len());
    let (model, weights) = rest.split_at(length);
    let Ok(model) = Model::from_bytes(model) else { return };
    let text = model.program.to_string();
    if model.verify().is_ok() {
        let again = Model::from_bytes(&model.to_bytes()).expect("what is written can be read");
        assert_eq!(again.program.to_string(), text);
    }
    let weights = (!weights.is_empty()).then(|| Blobs::from_bytes(weights.to_vec()));
    let Ok(weights) = weights.transpose() else { return };
    let Ok(package) = Package::new(model, weights) else { return };
    // What a function takes and gives is bounded by what the file says, not by its length: nothing is run.
    let _ = Interpreter::new(&package, Precision::F16, POOL.clone());
    let report = Report::of(&package);
    assert!((0.0..=1.0).contains(&report.least_share()));
    let draft = Draft::new(package);
    let options = Options { min_queries: 2, query_divider: 2, head_piece: 8, chunk_bytes: 1000 };
    for pass in &PASSES {
        let _ = draft.clone().apply(pass, &options);
    }
});
