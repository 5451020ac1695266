//! Gives each root value a memory slot; roots whose steps do not overlap share one.

use baton_graph::{Life, share_slots};

use super::{LOGITS, Plan};

/// Replaces root numbers in all views by slots and notes the slots' widths. Roots numbered
/// [`LOGITS`] keep their number.
pub(super) fn assign(plan: &mut Plan) {
    let mut lives: Vec<Option<Life<()>>> = Vec::new();
    for (at, step) in plan.steps.iter_mut().enumerate() {
        step.work.views(|view| {
            if view.slot == LOGITS {
                return;
            }
            if lives.len() <= view.slot {
                lives.resize(view.slot + 1, None);
            }
            Life::note(&mut lives[view.slot], at, view.stride, ());
        });
    }
    let (slot_of, slots) = share_slots(&lives);
    for step in &mut plan.steps {
        step.work.views(|view| {
            if view.slot != LOGITS {
                view.slot = slot_of[view.slot];
            }
        });
    }
    plan.slot_widths = slots.into_iter().map(|(width, ())| width).collect();
}
