use baton_graph::testing::{Tiny, random_weights};

use super::*;

fn plan(tiny: &Tiny) -> Plan {
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 1);
    Plan::new(&graph, &weights, &[]).unwrap()
}

#[test]
fn a_layer_takes_few_steps() {
    let plan = plan(&Tiny::default());
    let count = |is: fn(&Work) -> bool| plan.steps.iter().filter(|step| is(&step.work)).count();
    // Per layer: norm, qkv, heads, attention, output, norm, gate and up, gate, down.
    assert_eq!(count(|work| matches!(work, Work::Heads(_))), 3);
    assert_eq!(count(|work| matches!(work, Work::Norm(_))), 2 * 3 + 1);
    assert_eq!(count(|work| matches!(work, Work::Product(_))), 4 * 3 + 1);
    // Gates; rows of logits are picked of the residual and of the last attention, and put back.
    assert_eq!(count(|work| matches!(work, Work::Point(_))), 3 + 2 * 2);
    assert_eq!(count(Work::picks), 2 * 2);
}

#[test]
fn products_may_do_the_work_of_norms_and_gates_behind_them() {
    let plan = plan(&Tiny::default());
    let folded = |is: fn(&Work) -> bool| {
        plan.steps.iter().filter(|step| step.may_fold && is(&step.work)).count()
    };
    assert_eq!(folded(|work| matches!(work, Work::Point(_))), 3, "all gates");
    // The first has an embedding before it.
    assert_eq!(folded(|work| matches!(work, Work::Norm(_))), 7 - 1);
    for (at, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.may_fold) {
        assert!(foldable(&plan.steps[at - 1], step).is_some(), "step {at}");
    }
}

#[test]
fn no_step_reads_the_buffer_that_it_writes() {
    for tiny in [Tiny::default(), Tiny { layers: 1, sinks: true, ..Tiny::default() }] {
        let mut plan = plan(&tiny);
        for (at, step) in plan.steps.iter_mut().enumerate() {
            let mut slots = Vec::new();
            step.views(|view, _| slots.push(view.slot));
            let out = match &step.work {
                Work::Embed { .. } => continue,
                Work::Norm(step) => step.out,
                Work::Point(step) => step.out,
                Work::Heads(step) => step.out,
                Work::Attention(step) => step.out,
                Work::Product(step) => step.out,
                Work::Moe(step) => step.out,
                Work::Pool { out, .. } => *out,
            };
            let uses = slots.iter().filter(|&&slot| slot == out.slot).count();
            assert_eq!(uses, 1, "step {at}");
        }
    }
}

#[test]
fn values_that_do_not_meet_share_buffers() {
    let plan = plan(&Tiny { layers: 8, ..Tiny::default() });
    let tokens = plan.slots.iter().filter(|slot| slot.height == Height::Tokens).count();
    assert!(tokens <= 6, "{:?}", plan.slots);
}
