//! Memory for the values of a pass, and where in it they are: those that do not live at the same time
//! share a slot.

/// Columns `offset..offset + cols` of a matrix whose rows are `stride` apart: where a unit's plan finds a
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// While lowering the number of the value's root, afterwards that of its slot.
    pub slot: usize,
    /// Elements from a row to the next.
    pub stride: usize,
    /// The first column.
    pub offset: usize,
    /// Number of columns.
    pub cols: usize,
}

/// How many rows a step of a plan has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Height {
    /// One for each new token.
    Tokens,
    /// One for each row of logits.
    Wanted,
}

/// How long a value is needed, and what memory it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life<Kind> {
    /// The first step that names it.
    pub first: usize,
    /// The last.
    pub last: usize,
    /// Features of a row.
    pub width: usize,
    /// Values share slots with those of the same kind only.
    pub kind: Kind,
}

impl<Kind> Life<Kind> {
    /// Notes that step `at` names the value, whose life is `known` so far.
    pub fn note(known: &mut Option<Life<Kind>>, at: usize, width: usize, kind: Kind) {
        known.get_or_insert(Life { first: at, last: at, width, kind }).last = at;
    }
}

/// Gives each value that lives a slot. Returns the slots' numbers, `usize::MAX` for values that do not
/// live, and width and kind of each slot.
pub fn share_slots<Kind: Copy + PartialEq>(
    lives: &[Option<Life<Kind>>],
) -> (Vec<usize>, Vec<(usize, Kind)>) {
    let mut order: Vec<(usize, Life<Kind>)> =
        lives.iter().enumerate().filter_map(|(value, life)| Some((value, (*life)?))).collect();
    order.sort_by_key(|&(value, life)| (life.first, value));
    // Last step in which each slot is used, its width and kind.
    let mut slots: Vec<(usize, usize, Kind)> = Vec::new();
    let mut slot_of = vec![usize::MAX; lives.len()];
    for (value, life) in order {
        // Of the free slots the one whose width fits best.
        let free = (0..slots.len())
            .filter(|&slot| slots[slot].0 < life.first && slots[slot].2 == life.kind);
        let slot = free.min_by_key(|&slot| slots[slot].1.abs_diff(life.width));
        match slot {
            Some(slot) => {
                (slots[slot].0, slots[slot].1) = (life.last, slots[slot].1.max(life.width));
            }
            None => slots.push((life.last, life.width, life.kind)),
        }
        slot_of[value] = slot.unwrap_or(slots.len() - 1);
    }
    (slot_of, slots.into_iter().map(|(_, width, kind)| (width, kind)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(first: usize, last: usize, width: usize, kind: char) -> Option<Life<char>> {
        Some(Life { first, last, width, kind })
    }

    #[test]
    fn values_share_a_slot_only_if_one_is_done_before_the_other_begins() {
        let lives = [life(0, 2, 8, 'a'), life(2, 3, 4, 'a'), None, life(3, 5, 16, 'a')];
        let (slot_of, slots) = share_slots(&lives);
        assert_eq!(slot_of, [0, 1, usize::MAX, 0]);
        assert_eq!(slots, [(16, 'a'), (4, 'a')]);
    }

    #[test]
    fn kinds_have_slots_of_their_own_and_the_best_fit_is_taken() {
        let lives =
            [life(0, 0, 8, 'a'), life(0, 1, 90, 'a'), life(3, 4, 80, 'a'), life(2, 2, 8, 'b')];
        let (slot_of, slots) = share_slots(&lives);
        assert_eq!(slot_of, [0, 1, 1, 2]);
        assert_eq!(slots, [(8, 'a'), (90, 'a'), (8, 'b')]);
    }
}
