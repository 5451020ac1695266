use baton_graph::testing::{Tiny, random_weights};

use super::*;

#[test]
fn the_plan_has_every_term() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    let limits = Limits { context: 100, kv_tokens: 200, batch_tokens: 10 };
    let plan = memory_plan(&graph, &weights, &limits);
    let elements: usize = graph.weights().iter().map(|w| w.shape.iter().product::<usize>()).sum();
    assert_eq!(plan.weights, 4 * elements as u64);
    // Three layers, keys and values of two heads of 16 in f16.
    assert_eq!(plan.kv, 200 * 3 * 2 * 2 * 16 * 2);
    // Gate, up and their product are the widest: 3 times 96 features.
    assert_eq!(plan.scratch, 10 * 2 * 4 * 3 * 96 + 4 * 97);
}

#[test]
fn what_cannot_be_allocated_is_refused_and_what_is_mapped_is_not() {
    let plan = MemoryPlan { weights: 100, kv: 50, scratch: 10, available: Some(60) };
    assert!(check_memory(&plan).is_ok(), "weights need not all be in memory");
    let short = MemoryPlan { available: Some(59), ..plan };
    assert!(matches!(check_memory(&short), Err(Error::Memory { plan }) if plan == short));
    assert!(check_memory(&MemoryPlan { available: None, ..short }).is_ok());
}
