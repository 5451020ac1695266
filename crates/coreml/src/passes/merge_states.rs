//! `merge_kv_states`: states of equal shape become one, one behind the other in the first dimension.
//!
//! Caches of keys go into one state and those of values into another. Which a cache is follows from how
//! it is used: values are what the result of a softmax is multiplied with.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::embed::{Home, embed};
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::view::{View, is_elementwise};
use crate::mil::{Function, Program, TensorType};

/// States that a function may have.
const MOST: usize = 2;

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    let homes = plan(&draft.model.program);
    draft.each(|name, function, _| {
        let states: Vec<&str> = function.states().map(|(state, _)| state).collect();
        let mut here = homes.clone();
        here.retain(|state, _| states.contains(&state.as_str()));
        let mut changes = Vec::new();
        let (mut made, mut left) = (None, states.len());
        if !here.is_empty() {
            let (function, moved) = embed(function, &here)?;
            left = function.states().count();
            let text = format!("{} states are {left}", states.len());
            changes.push(Change::done(name, "states", text));
            if moved > 0 {
                let text = format!("{moved} writes move all of a state, not only what they change");
                changes.push(Change::left(name, "write_state", text));
            }
            made = Some(function);
        }
        if left > MOST {
            let text = format!("{left} states, which differ in shape, use or functions, remain");
            changes.push(Change::left(name, "states", text));
        }
        Ok((made, changes))
    })
}

/// How states are put together: those of one type and use that the same functions have. Nothing, if no
/// function has too many.
fn plan(program: &Program) -> HashMap<String, Home> {
    let mut states: BTreeMap<&str, (&TensorType, Vec<&str>, Use)> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    for (name, function) in &program.functions {
        let view = View::new(function);
        for (state, ty) in function.states() {
            if !states.contains_key(state) {
                order.push(state);
            }
            let entry = states.entry(state).or_insert((ty, Vec::new(), Use::Unknown));
            entry.1.push(name);
            if entry.2 == Use::Unknown {
                entry.2 = use_of(&view, state);
            }
        }
    }
    if program.functions.values().all(|function| function.states().count() <= MOST) {
        return HashMap::new();
    }
    let mut groups: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for state in order {
        let (ty, functions, role) = &states[state];
        groups.entry((*role, *ty, functions)).or_default().push(state);
    }
    let taken: HashSet<&str> = program.functions.values().flat_map(names).collect();
    let mut homes = HashMap::new();
    let mut called = Vec::new();
    for ((role, ty, _), members) in &groups {
        if members.len() < 2 || ty.shape.is_empty() {
            continue;
        }
        let mut name = role.name().to_owned();
        while taken.contains(name.as_str()) || called.contains(&name) {
            name += "_merged";
        }
        let mut shape = ty.shape.clone();
        shape[0] *= members.len();
        for (i, member) in members.iter().enumerate() {
            let mut offset = vec![0; shape.len()];
            offset[0] = i * ty.shape[0];
            let ty = TensorType::new(ty.dtype, &shape);
            homes.insert((*member).to_owned(), Home { state: name.clone(), ty, offset });
        }
        called.push(name);
    }
    homes
}

/// All names in a function.
fn names(function: &Function) -> impl Iterator<Item = &str> {
    let made = function.body.ops.iter().flat_map(|op| &op.outputs);
    function.inputs.iter().chain(made).map(|named| named.name.as_str())
}

/// What a state is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Keys,
    Values,
    Unknown,
}

impl Use {
    fn name(self) -> &'static str {
        match self {
            Use::Keys => "key_cache",
            Use::Values => "value_cache",
            Use::Unknown => "merged_states",
        }
    }
}

/// Whether an operation keeps the elements of its first operand, whatever it does with them else.
fn passes_on(kind: &str) -> bool {
    let moves = matches!(
        kind,
        "reshape"
            | "transpose"
            | "expand_dims"
            | "squeeze"
            | "tile"
            | "concat"
            | "split"
            | "stack"
            | "slice_by_index"
            | "slice_by_size"
            | "slice_update"
    );
    moves || is_elementwise(kind)
}

/// How what a state holds is first multiplied.
fn use_of(view: &View<'_>, state: &str) -> Use {
    let mut seen = HashSet::new();
    let mut next: Vec<&str> = vec![state];
    while let Some(name) = next.pop() {
        for &user in view.users(name) {
            let op = view.op(user);
            let is = |parameter: &str| op.input(parameter).and_then(|b| b.name()) == Some(name);
            match op.kind.as_str() {
                "scaled_dot_product_attention" if is("key") => return Use::Keys,
                "scaled_dot_product_attention" if is("value") => return Use::Values,
                "matmul" => {
                    let other = if is("x") { "y" } else { "x" };
                    let other = op.input(other).and_then(|b| b.name());
                    return match other.is_some_and(|other| is_shares(view, other)) {
                        true => Use::Values,
                        false => Use::Keys,
                    };
                }
                kind if (kind == "read_state" || passes_on(kind)) && seen.insert(user) => {
                    next.extend(op.outputs.iter().map(|output| output.name.as_str()));
                }
                _ => {}
            }
        }
    }
    Use::Unknown
}

/// Whether a value is the result of a softmax, however it was moved since.
fn is_shares(view: &View<'_>, name: &str) -> bool {
    let mut name = name;
    while let Some(op) = view.maker(name).map(|i| view.op(i)) {
        if op.kind == "softmax" {
            return true;
        }
        match op.input("x").and_then(|x| x.name()) {
            Some(x) if passes_on(&op.kind) => name = x,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::embed::tests::cache;
    use super::super::testing::{apply, check, draft, kinds, same};
    use crate::in_memory;

    #[test]
    fn caches_of_layers_become_one_of_keys_and_one_of_values() {
        let (function, changes) = check("merge_kv_states", cache(3, 8, false));
        assert_eq!(changes, 1);
        let states: Vec<_> = function.states().map(|(n, ty)| (n, ty.shape.clone())).collect();
        assert_eq!(states, [("key_cache", vec![3, 2, 8, 6]), ("value_cache", vec![3, 2, 8, 6])]);
        // Each is updated at its own places, which moves nothing else.
        assert_eq!(kinds(&function, "slice_update"), 6);
        assert_eq!(kinds(&function, "read_state"), 12);
    }

    #[test]
    fn states_that_are_written_whole_are_merged_too() {
        let (function, changes) = check("merge_kv_states", cache(2, 8, true));
        assert_eq!((changes, function.states().count()), (1, 2));
    }

    #[test]
    fn two_states_and_none_are_left_as_they_are() {
        assert_eq!(check("merge_kv_states", cache(1, 8, false)).1, 0);
    }

    #[test]
    fn functions_that_share_their_states_share_the_merged_ones() {
        let functions = [("one", cache(2, 8, false)), ("two", cache(2, 8, true))];
        let before = draft(functions, in_memory());
        let (after, _) = apply(&before, "merge_kv_states", &Options::default());
        same(&before, &after[0]);
        let names = |name: &str| {
            let function = &after[0].model().program.functions[name];
            function.states().map(|(state, ty)| (state.to_owned(), ty.clone())).collect::<Vec<_>>()
        };
        assert_eq!(names("one"), names("two"));
    }
}
