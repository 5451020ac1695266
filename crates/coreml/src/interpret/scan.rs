//! How large results get, and which of them leave half precision.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use half::f16;

use super::tensor::Tensor;

/// The largest result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Extreme {
    /// The function that the operation is in.
    pub function: String,
    /// What it does.
    pub kind: String,
    /// Its name.
    pub op: String,
    /// The largest magnitude of a number that it has computed, before it was rounded; not a number if one
    /// was none.
    pub largest: f32,
}

impl Extreme {
    /// Whether a number was no longer one in half precision.
    pub fn overflows(&self) -> bool {
        // Also of what is rounded up to infinity, and of what is no number.
        !f16::from_f32(self.largest).is_finite()
    }
}

/// Sees results and keeps the largest of each operation.
#[derive(Debug, Default)]
pub(super) struct Scan {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    extremes: Vec<Extreme>,
    /// Where the function and operation of each are in the list.
    places: HashMap<(String, String), usize>,
}

impl Scan {
    pub fn see(&self, function: &str, kind: &str, op: &str, tensor: &Tensor) {
        let larger = |a: f32, b: f32| if a.is_nan() || a > b { a } else { b };
        let values = tensor.as_floats().unwrap_or(&[]);
        let largest = values.iter().fold(0.0, |most, value| larger(value.abs(), most));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { extremes, places } = &mut *seen;
        let place = *places.entry((function.to_owned(), op.to_owned())).or_insert(extremes.len());
        match extremes.get_mut(place) {
            Some(extreme) => extreme.largest = larger(largest, extreme.largest),
            None => extremes.push(Extreme {
                function: function.to_owned(),
                kind: kind.to_owned(),
                op: op.to_owned(),
                largest,
            }),
        }
    }

    pub fn extremes(&self) -> Vec<Extreme> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).extremes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_all_calls_is_kept_and_what_is_no_number_is_larger_than_all() {
        let scan = Scan::default();
        let see = |op: &str, values: &[f32]| {
            scan.see("f", "add", op, &Tensor::floats(&[values.len()], values.to_vec()));
        };
        see("a", &[1.0, -70_000.0]);
        see("b", &[3.0, 2.0]);
        see("a", &[2.0, 0.0]);
        see("c", &[f32::NAN, 5.0]);
        see("c", &[6.0]);
        let found = scan.extremes();
        let names: Vec<&str> = found.iter().map(|extreme| extreme.op.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!((found[0].largest, found[1].largest), (70_000.0, 3.0));
        assert!(found[2].largest.is_nan());
        let over: Vec<bool> = found.iter().map(Extreme::overflows).collect();
        assert_eq!(over, [true, false, true]);
        // What is nearer to the largest number than to the next, which there is none of.
        let edge = |largest| Extreme { largest, ..found[1].clone() }.overflows();
        assert!(!edge(65_504.0) && !edge(65_519.0) && edge(65_520.0));
    }
}
