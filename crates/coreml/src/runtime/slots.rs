//! Things that others name by a number.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// Things by number; numbers are used again.
#[derive(Debug)]
pub struct Slots<T> {
    held: BTreeMap<usize, T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { held: BTreeMap::new() }
    }
}

impl<T> Slots<T> {
    /// Adds a thing, and says its number.
    pub fn add(&mut self, item: T) -> usize {
        let id = (0..).find(|id| !self.held.contains_key(id)).expect("numbers do not end");
        self.held.insert(id, item);
        id
    }

    /// The thing of that number.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, id: usize) -> Result<&T> {
        self.held.get(&id).ok_or_else(gone)
    }

    /// As [`Slots::get`], to change it.
    ///
    /// # Errors
    /// If there is none.
    pub fn get_mut(&mut self, id: usize) -> Result<&mut T> {
        self.held.get_mut(&id).ok_or_else(gone)
    }

    /// All that are there.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.held.values()
    }

    /// Takes a thing out.
    pub fn remove(&mut self, id: usize) -> Option<T> {
        self.held.remove(&id)
    }
}

fn gone() -> Error {
    Error::malformed("an array or a state was given back and is used again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_what_is_gone_is_an_error() {
        let mut slots = Slots::default();
        assert_eq!([slots.add("a"), slots.add("b")], [0, 1]);
        assert_eq!(slots.remove(0), Some("a"));
        assert!(slots.get(0).is_err() && slots.get_mut(0).is_err());
        assert_eq!(slots.add("c"), 0);
        assert_eq!(*slots.get(0).unwrap(), "c");
        assert_eq!(slots.values().collect::<Vec<_>>(), [&"c", &"b"]);
    }
}
