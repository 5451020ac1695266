//! Gives each root value a memory slot; roots whose steps do not overlap share one.

use super::{LOGITS, Plan};

/// Replaces root numbers in all views by slots and notes the slots' widths. Roots numbered
/// [`LOGITS`] keep their number.
pub(super) fn assign(plan: &mut Plan) {
    // Per root: first and last step that names it, and its width.
    let mut lives: Vec<Option<(usize, usize, usize)>> = Vec::new();
    for (at, step) in plan.steps.iter_mut().enumerate() {
        step.work.views(|view| {
            if view.slot == LOGITS {
                return;
            }
            if lives.len() <= view.slot {
                lives.resize(view.slot + 1, None);
            }
            let life = lives[view.slot].get_or_insert((at, at, view.stride));
            life.1 = at;
        });
    }
    let mut order: Vec<(usize, (usize, usize, usize))> =
        lives.iter().enumerate().filter_map(|(root, life)| Some((root, (*life)?))).collect();
    order.sort_by_key(|&(root, (first, ..))| (first, root));
    // Last step in which each slot is used, and its width.
    let mut slots: Vec<(usize, usize)> = Vec::new();
    let mut slot_of = vec![LOGITS; lives.len()];
    for (root, (first, last, width)) in order {
        // Of the free slots the one whose width fits best.
        let free = (0..slots.len()).filter(|&slot| slots[slot].0 < first);
        let slot = free.min_by_key(|&slot| slots[slot].1.abs_diff(width));
        match slot {
            Some(slot) => slots[slot] = (last, slots[slot].1.max(width)),
            None => slots.push((last, width)),
        }
        slot_of[root] = slot.unwrap_or(slots.len() - 1);
    }
    for step in &mut plan.steps {
        step.work.views(|view| {
            if view.slot != LOGITS {
                view.slot = slot_of[view.slot];
            }
        });
    }
    plan.slot_widths = slots.into_iter().map(|(_, width)| width).collect();
}
