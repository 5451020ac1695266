//! Every golden embedding model through the CPU unit: known vectors, computed by
//! sentence-transformers in f32.

use baton_cpu::{Cpu, CpuOptions, Isa};
use baton_models::testing;

/// Largest difference of an element.
const TOLERANCE: f32 = 1e-4;
/// The same for models whose keys and values are cached, and so rounded to f16.
const CACHED: f32 = 1e-3;

#[test]
fn golden_embeddings_agree() {
    for isa in Isa::available() {
        let cpu = Cpu::new(CpuOptions { isa: Some(isa), ..CpuOptions::default() }).unwrap();
        testing::golden_embeddings_agree(&cpu, &isa.to_string(), TOLERANCE, CACHED);
    }
}
