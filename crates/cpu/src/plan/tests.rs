use baton_graph::testing::{Tiny, random_weights};

use super::*;

fn plan(fuse: bool) -> Plan {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 1);
    Plan::new(&graph, &weights, Switches { fuse, disabled_passes: &[] }).unwrap()
}

#[test]
fn residuals_are_added_by_the_product_and_row_steps_are_joined() {
    let plan = plan(true);
    let products = plan.steps.iter().filter_map(|step| match &step.work {
        Work::Product(product) => Some(product),
        _ => None,
    });
    // Per layer attention output and down projection.
    assert_eq!(products.filter(|product| product.accumulate).count(), 2 * 3);
    let row_steps = plan.steps.iter().filter(|step| matches!(step.work, Work::Rows { .. })).count();
    // Per layer: before qkv, before attention, before gate and up, before down; the last norm.
    assert!(row_steps <= 4 * 3 + 1, "{row_steps} steps on rows");
}

#[test]
fn memory_is_shared_between_values_that_do_not_meet() {
    let plan = plan(true);
    // The residual stream, its norm, and what a layer is in the midst of.
    assert!(plan.slot_widths.len() <= 5, "{:?}", plan.slot_widths);
    for (at, step) in plan.steps.iter().enumerate() {
        if let Work::Product(product) = &step.work {
            assert_ne!(product.x.slot, product.out.slot, "step {at}");
        }
    }
}

#[test]
fn unfused_plans_have_a_step_for_each_operation() {
    let plan = plan(false);
    let many = |work: &Work| matches!(work, Work::Rows { ops, .. } if ops.len() > 1);
    assert!(plan.steps.iter().all(|step| !many(&step.work)));
}
