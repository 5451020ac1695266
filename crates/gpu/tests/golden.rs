//! Every golden model through the GPU unit: known logits and vectors, computed by transformers and
//! sentence-transformers in f32.

use baton_gpu::{GpuUnit, Options};
use baton_models::testing;

/// Largest difference by the size of the largest logit: keys and values are rounded to f16, and where
/// weights are quantized activations to 8 bits, which in models of 32 features is coarse.
const FLOATS: f32 = 2e-3;
const QUANTIZED: f32 = 0.05;
/// Largest difference of an element of a vector.
const VECTORS: f32 = 1e-3;

fn unit() -> GpuUnit {
    GpuUnit::open(&Options::from_env()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn golden_models_agree() {
    testing::golden_models_agree(&unit(), "gpu", FLOATS, QUANTIZED);
}

#[test]
fn golden_embeddings_agree() {
    testing::golden_embeddings_agree(&unit(), "gpu", VECTORS, VECTORS);
}
