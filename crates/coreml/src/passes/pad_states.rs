//! `pad_state_dims_to_power_of_two`: states get dimensions that the Neural Engine takes.

use std::collections::HashMap;

use super::embed::{Home, embed};
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::TensorType;

/// What the last dimension of a state must be a multiple of.
const LAST: usize = 32;

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, _| {
        let (mut homes, mut changes) = (HashMap::new(), Vec::new());
        for (state, ty) in function.states() {
            let shape = padded(&ty.shape);
            if shape != ty.shape {
                changes.push(Change::done(name, state, format!("{:?} is {shape:?}", ty.shape)));
                let offset = vec![0; shape.len()];
                let ty = TensorType::new(ty.dtype, &shape);
                homes.insert(state.to_owned(), Home { state: state.to_owned(), ty, offset });
            }
        }
        if homes.is_empty() {
            return Ok((None, changes));
        }
        let (function, moved) = embed(function, &homes)?;
        if moved > 0 {
            let text = format!("{moved} writes move all of a state, not only what they change");
            changes.push(Change::left(name, "write_state", text));
        }
        Ok((Some(function), changes))
    })
}

/// A shape whose dimensions behind the first are powers of two, the last one at least [`LAST`].
pub(crate) fn padded(shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    let last = shape.len().saturating_sub(1);
    for (i, dim) in shape.iter_mut().enumerate() {
        if i == last {
            *dim = dim.next_power_of_two().max(LAST);
        } else if i > 0 {
            *dim = dim.next_power_of_two();
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::super::embed::tests::cache;
    use super::super::testing::{check, kinds};

    #[test]
    fn a_state_is_padded_and_updated_in_place() {
        let (function, changes) = check("pad_state_dims_to_power_of_two", cache(1, 8, false));
        assert_eq!(changes, 2);
        let shapes: Vec<_> = function.states().map(|(_, ty)| ty.shape.clone()).collect();
        assert_eq!(shapes, [[1, 2, 8, 32], [1, 2, 8, 32]]);
        // A read, an update and a write of each, and a read again.
        assert_eq!(kinds(&function, "slice_update"), 2);
        assert_eq!(kinds(&function, "read_state"), 4);
        assert_eq!(check("pad_state_dims_to_power_of_two", function).1, 0);
    }

    #[test]
    fn a_state_whose_places_are_not_known_where_it_grows_is_written_whole() {
        for whole in [false, true] {
            let (function, changes) = check("pad_state_dims_to_power_of_two", cache(1, 5, whole));
            assert_eq!(changes, 2);
            // The update of what it was, and that of the part where it lies now, of each.
            assert_eq!(kinds(&function, "slice_update"), 4);
        }
    }

    #[test]
    fn shapes_are_those_that_the_neural_engine_takes() {
        assert_eq!(super::padded(&[20, 8, 512, 80]), [20, 8, 512, 128]);
        assert_eq!(super::padded(&[3, 4, 64]), [3, 4, 64]);
        assert_eq!(super::padded(&[1]), [32]);
    }
}
