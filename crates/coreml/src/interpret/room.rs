//! What calls of a function take of memory, known before anything is allocated for them.
//!
//! A few numbers of a small file can ask for more than any machine has, in one operation or in many whose
//! results wait for each other.

use std::collections::HashMap;

use super::constants::Constant;
use super::moves::only_moves;
use super::{Plan, Source, Step};
pub(super) use crate::memory::available;
use crate::mil::{DataType, TensorType};
use crate::{Result, memory};

/// An operation that computes has at most so many copies of its operands at once, in single precision: sums
/// are in double precision, matrices are turned, and orders beside the values that they are of.
const COPIES: u64 = 5;

/// Bytes of a tensor while functions run.
pub(super) fn bytes(ty: &TensorType) -> u64 {
    let each = if ty.dtype == DataType::Bool { 1 } else { size_of::<f32>() };
    let n = ty.elements().and_then(|n| n.checked_mul(each));
    n.map_or(u64::MAX, |n| n as u64)
}

/// That so many bytes for a function are in the room that there is.
pub(super) fn check(function: &str, needed: u64, room: u64) -> Result<()> {
    memory::check(format_args!("function {function:?}"), needed, room)
}

/// What a function takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// Bytes at most at once of inputs, results that are still wanted, and what operations need beside them.
    pub results: u64,
    /// Bytes of the constants that are kept from one operation to the next.
    pub kept: u64,
    /// Bytes for the constants of the one operation that has the largest, while they are made.
    pub making: u64,
}

impl Needs {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Needs {
        let mut needs = Needs::default();
        let mut kept: HashMap<(*const Constant, bool), u64> = HashMap::new();
        let mut places: HashMap<usize, &TensorType> = HashMap::new();
        let mut live = 0u64;
        for (_, ty, slot) in &plan.inputs {
            places.insert(*slot, ty);
            live = live.saturating_add(bytes(ty));
        }
        needs.results = live;
        for step in &plan.steps {
            let made = step.types.iter().map(bytes).fold(0, u64::saturating_add);
            let mut constants = 0u64;
            for (constant, is_matrix) in step.weighed() {
                let held = constant.held_bytes(is_matrix);
                kept.insert((constant, is_matrix), held);
                constants = constants.saturating_add(held).saturating_add(constant.making_bytes());
            }
            needs.making = needs.making.max(constants);
            let during = live.saturating_add(made).saturating_add(step.scratch(&places, made));
            needs.results = needs.results.max(during);
            for (slot, ty) in step.results.iter().zip(&step.types) {
                if let Some(slot) = slot {
                    places.insert(*slot, ty);
                    live = live.saturating_add(bytes(ty));
                }
            }
            for slot in &step.dropped {
                live = live.saturating_sub(places.get(slot).map_or(0, |ty| bytes(ty)));
            }
        }
        needs.kept = kept.into_values().fold(0, u64::saturating_add);
        needs
    }

    /// Bytes of so many calls at once.
    pub fn total(&self, calls: usize, keeps: bool) -> u64 {
        let constants = if keeps { self.kept.saturating_add(self.making) } else { self.making };
        self.results.saturating_mul(calls as u64).saturating_add(constants)
    }
}

impl Step {
    /// The constants among its operands, each with whether it is multiplied with as a matrix.
    fn weighed(&self) -> impl Iterator<Item = (&Constant, bool)> {
        let is_matrix = |parameter: &str, constant: &Constant| {
            let point = constant.shape().get(2..).is_none_or(|kernel| kernel == [1, 1]);
            parameter == "weight" && matches!(self.kind.as_str(), "linear" | "conv") && point
        };
        self.inputs.iter().flat_map(move |(parameter, sources)| {
            sources.iter().filter_map(move |source| match source {
                Source::Constant(constant) => Some((&**constant, is_matrix(parameter, constant))),
                Source::Slot(_) => None,
            })
        })
    }

    /// Bytes that it needs beside its operands and its results, which have `made` bytes: at most.
    fn scratch(&self, places: &HashMap<usize, &TensorType>, made: u64) -> u64 {
        if only_moves(&self.kind) {
            return made;
        }
        let mut operands = 0u64;
        for (_, source) in
            self.inputs.iter().flat_map(|(name, list)| list.iter().map(move |s| (name, s)))
        {
            if let Source::Slot(slot) = source {
                operands = operands.saturating_add(places.get(slot).map_or(0, |ty| bytes(ty)));
            }
        }
        let scores =
            if self.kind == "scaled_dot_product_attention" { self.scores(places) } else { 0 };
        operands.saturating_add(scores).saturating_mul(COPIES).saturating_add(made)
    }

    /// Bytes of the scores of an attention: queries times keys.
    fn scores(&self, places: &HashMap<usize, &TensorType>) -> u64 {
        let shape = |name: &str| {
            let (_, sources) = self.inputs.iter().find(|(known, _)| known == name)?;
            match sources.first()? {
                Source::Slot(slot) => places.get(slot).map(|ty| &ty.shape[..]),
                Source::Constant(constant) => Some(constant.shape()),
            }
        };
        let Some((query, key)) = shape("query").zip(shape("key")) else { return 0 };
        let (rows, keys) = (query.split_last(), key.iter().rev().nth(1));
        let Some(((_, rows), keys)) = rows.zip(keys) else { return 0 };
        bytes(&TensorType::new(DataType::Float32, &[rows, &[*keys]].concat()))
    }
}
