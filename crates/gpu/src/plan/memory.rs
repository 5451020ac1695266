//! Gives each root value a buffer; roots whose steps do not overlap share one.

use baton_graph::{Life, share_slots};

use super::{Height, Plan, SlotShape};

/// Replaces root numbers in all views by buffers' numbers, and notes the buffers' shapes.
pub(super) fn assign(plan: &mut Plan) {
    let end = plan.steps.len();
    let mut lives: Vec<Option<Life<Height>>> = Vec::new();
    for (at, step) in plan.steps.iter_mut().enumerate() {
        step.views(|view, height| {
            if lives.len() <= view.slot {
                lives.resize(view.slot + 1, None);
            }
            Life::note(&mut lives[view.slot], at, view.stride, height);
        });
    }
    // The result is read when all steps are done.
    if let Some(Some(life)) = lives.get_mut(plan.result.slot) {
        life.last = end;
    }
    let (slot_of, slots) = share_slots(&lives);
    for step in &mut plan.steps {
        step.views(|view, _| view.slot = slot_of[view.slot]);
    }
    plan.result.slot = slot_of[plan.result.slot];
    plan.slots = slots.into_iter().map(|(width, height)| SlotShape { width, height }).collect();
}
