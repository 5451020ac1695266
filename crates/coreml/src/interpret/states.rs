//! What a function keeps from call to call.

use std::collections::BTreeMap;

use super::tensor::Tensor;

/// The states of a function and what they hold, for one user of it.
#[derive(Clone, Debug, Default)]
pub struct States {
    pub(super) held: BTreeMap<String, Tensor>,
}

impl States {
    /// What a state holds. None if there is no such state, or a run that failed has left it behind.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.held.get(name)
    }

    /// As [`States::get`], to change some of it.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        self.held.get_mut(name)
    }

    /// Makes a state hold something else, rounded to half precision as all states are.
    pub fn set(&mut self, name: &str, mut tensor: Tensor) {
        tensor.round_to_f16();
        self.held.insert(name.to_owned(), tensor);
    }
}
