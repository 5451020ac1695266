//! Functions with their names resolved, and what is known of each step beforehand.

use std::collections::{HashMap, HashSet};

use super::constants::Constants;
use super::moves::only_moves;
use super::tensor::Tensor;
use super::{Needs, Plan, Rounding, Source, States, Step};
use crate::Result;
use crate::mil::{Binding, DataType, Function, Op, TensorType};
use crate::passes::dead_code::eliminate;

impl Plan {
    pub(super) fn new(function: &Function, constants: &mut Constants<'_>) -> Result<Plan> {
        let function = &{
            let mut function = function.clone();
            eliminate(&mut function);
            function
        };
        let mut sources: HashMap<&str, Source> = HashMap::new();
        let mut slots = 0;
        let mut slot = || {
            slots += 1;
            slots - 1
        };
        let mut inputs = Vec::new();
        for (name, ty) in function.tensor_inputs() {
            let slot = slot();
            inputs.push((name.to_owned(), ty.clone(), slot));
            sources.insert(name, Source::Slot(slot));
        }
        let states: Vec<(String, TensorType)> =
            function.states().map(|(name, ty)| (name.to_owned(), ty.clone())).collect();
        let rounded = rounded(function);
        let mut steps = Vec::new();
        for op in &function.body.ops {
            if op.is_constant() {
                let earlier = |name: &str| match sources.get(name) {
                    Some(Source::Constant(constant)) => Some(constant.clone()),
                    _ => None,
                };
                let constant = match op.constant() {
                    Some(value) => constants.value(value)?,
                    None => constants.expression(op, &earlier)?,
                };
                sources.insert(&op.outputs[0].name, Source::Constant(constant));
                continue;
            }
            let results: Vec<usize> = op.outputs.iter().map(|_| slot()).collect();
            let leaves = op.outputs.iter().any(|output| rounded.contains(output.name.as_str()));
            let rounding = match (only_moves(&op.kind), leaves) {
                (true, _) => Rounding::Never,
                (false, true) => Rounding::Always,
                (false, false) => Rounding::InHalf,
            };
            steps.push(Step::new(op, &sources, constants, &results, rounding)?);
            for (output, slot) in op.outputs.iter().zip(results) {
                sources.insert(&output.name, Source::Slot(slot));
            }
        }
        let result = |name: &String| (name.clone(), sources[name.as_str()].clone());
        let outputs: Vec<_> = function.body.outputs.iter().map(result).collect();
        let needs = Needs::default();
        let mut plan = Plan { inputs, states, steps, outputs, slots, needs };
        plan.mark_last_uses();
        plan.mark_moved_states();
        plan.needs = Needs::of(&plan);
        Ok(plan)
    }

    /// The places of a call with its inputs in them, or what is wrong with which of them.
    pub(super) fn begin(
        &self,
        inputs: &[(&str, Tensor)],
        states: &States,
    ) -> std::result::Result<Vec<Option<Tensor>>, (String, String)> {
        let known = |name: &str| self.inputs.iter().any(|(known, ..)| known == name);
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !known(name)) {
            return Err((name.to_string(), "there is no such input".into()));
        }
        let mut slots: Vec<Option<Tensor>> = vec![None; self.slots];
        for (name, ty, slot) in &self.inputs {
            let given = inputs.iter().find(|(given, _)| given == name);
            let Some((_, tensor)) = given else {
                return Err((name.clone(), "this input is missing".into()));
            };
            if !tensor.is(ty) {
                return Err((
                    name.clone(),
                    format!("this input is {:?}, not {ty}", tensor.shape()),
                ));
            }
            let mut tensor = tensor.clone();
            if ty.dtype == DataType::Float16 {
                tensor.round_to_f16();
            }
            slots[*slot] = Some(tensor);
        }
        for (name, ty) in &self.states {
            if !states.get(name).is_some_and(|tensor| tensor.is(ty)) {
                return Err((name.clone(), format!("this state does not hold {ty}")));
            }
        }
        Ok(slots)
    }

    /// Finds out where each place is read for the last time, and which are never read.
    fn mark_last_uses(&mut self) {
        let kept = self.outputs.iter().filter_map(|(_, source)| match source {
            Source::Slot(slot) => Some(*slot),
            Source::Constant(_) => None,
        });
        let mut seen: HashSet<usize> = kept.collect();
        for step in self.steps.iter_mut().rev() {
            for result in &mut step.results {
                *result = result.filter(|slot| seen.contains(slot));
            }
            for source in step.inputs.iter().flat_map(|(_, sources)| sources) {
                if let Source::Slot(slot) = source
                    && seen.insert(*slot)
                {
                    step.dropped.push(*slot);
                }
            }
        }
    }

    /// Finds the reads after which a state is written before it is read again.
    fn mark_moved_states(&mut self) {
        let mut written: HashSet<String> = HashSet::new();
        for step in self.steps.iter_mut().rev() {
            let Some(state) = &step.state else { continue };
            match step.kind.as_str() {
                "write_state" => drop(written.insert(state.clone())),
                _ => step.moves_state = written.remove(state),
            }
        }
    }
}

impl Step {
    fn new(
        op: &Op,
        sources: &HashMap<&str, Source>,
        constants: &mut Constants<'_>,
        results: &[usize],
        rounding: Rounding,
    ) -> Result<Step> {
        let mut state = None;
        let mut inputs = Vec::new();
        for (parameter, bindings) in &op.inputs {
            let mut list = Vec::new();
            for binding in bindings {
                match binding {
                    Binding::Value(value) => list.push(Source::Constant(constants.value(value)?)),
                    Binding::Name(name) => match sources.get(name.as_str()) {
                        Some(source) => list.push(source.clone()),
                        // All that is left are the states.
                        None => state = Some(name.clone()),
                    },
                }
            }
            inputs.push((parameter.clone(), list));
        }
        let types = op.outputs.iter().map(|output| output.ty.tensor().expect("verified").clone());
        Ok(Step {
            kind: op.kind.clone(),
            name: op.name().to_owned(),
            inputs,
            state,
            moves_state: false,
            types: types.collect(),
            results: results.iter().copied().map(Some).collect(),
            dropped: Vec::new(),
            rounding,
        })
    }
}

/// The values that leave a function or are kept in its states, and those they are only moved from.
/// They are rounded where they are made, so that the function itself goes on with what others will
/// find.
fn rounded(function: &Function) -> HashSet<&str> {
    let mut rounded: HashSet<&str> = function.body.outputs.iter().map(String::as_str).collect();
    for op in function.body.ops.iter().rev() {
        let leaves = op.outputs.iter().any(|output| rounded.contains(output.name.as_str()));
        if op.kind == "write_state" || leaves && only_moves(&op.kind) {
            rounded.extend(op.operands());
        }
    }
    rounded
}
