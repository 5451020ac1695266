//! The unit against the reference interpreter, by the suite that every unit must pass.

use std::sync::Arc;

use baton_coreml::CoreMl;
use baton_coreml::interpret::Precision;
use baton_cpu::{Isa, Pool};
use baton_graph::testing::conformance::{self, Tolerance};

/// Weights, embeddings, rotations and what crosses a function's border are in half precision.
const F32: Tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };

/// How much results depend on chunks: sums have another order, and what crosses a border is rounded.
const SAME: Tolerance = Tolerance { nmse: 1e-6, worst: 2e-3 };
const SAME_F16: Tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };

fn unit() -> CoreMl {
    CoreMl::new(Arc::new(Pool::new(2, Isa::detect()).unwrap()))
}

#[test]
fn operations_agree_with_the_reference() {
    conformance::operations(&unit(), F32);
}

#[test]
fn models_agree_with_the_reference_in_chunks_of_any_size() {
    conformance::models(&unit(), F32, SAME);
}

#[test]
fn models_agree_with_the_reference_in_half_precision() {
    let unit = unit().with_precision(Precision::F16).with_chunk(48);
    conformance::models(&unit, Tolerance::COARSE, SAME_F16);
}

#[test]
fn caches_are_shared_and_handed_over() {
    conformance::caches(&unit(), F32, SAME);
}

#[test]
fn best_tokens_are_found_among_all_logits() {
    conformance::best(&unit());
}

#[test]
fn failures_change_nothing() {
    conformance::failures(&unit(), SAME);
}

#[test]
fn few_functions_and_states_give_the_same() {
    let unit = unit().with_few_functions().with_chunk(16);
    conformance::models(&unit, F32, SAME);
    conformance::caches(&unit, F32, SAME);
    conformance::failures(&unit, SAME);
}
