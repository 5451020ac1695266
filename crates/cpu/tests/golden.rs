//! Every golden model through the CPU unit: known logits, computed by transformers in f32.

use baton_cpu::{Cpu, CpuOptions, Isa};
use baton_models::testing;

/// Largest difference by the size of the largest logit: keys and values are rounded to f16, and where
/// weights are quantized activations to 8 bits, which in models of 32 features is coarse.
const FLOATS: f32 = 2e-3;
const QUANTIZED: f32 = 0.05;

#[test]
fn golden_models_agree() {
    for isa in Isa::available() {
        let cpu = Cpu::new(CpuOptions { isa: Some(isa), ..CpuOptions::default() }).unwrap();
        testing::golden_models_agree(&cpu, &isa.to_string(), FLOATS, QUANTIZED);
    }
}
