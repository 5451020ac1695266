//! States that become part of larger ones: behind others of their kind, or with dimensions padded.
//!
//! What an old state held lies in the new one at an offset. Reads become slices of it and writes updates
//! of that part. Where a function updates some places of what it has just read, as caches do, the same
//! places of the new state are updated, and nothing else moves.

use std::collections::HashMap;

use super::rewrite::Rewrite;
use crate::Result;
use crate::mil::view::View;
use crate::mil::{Arg, Function, Named, Op, TensorType, Type, Value, Var, slice_range};

/// Where a state's content is now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Home {
    /// The name of the new state.
    pub state: String,
    /// Its type, of the same rank.
    pub ty: TensorType,
    /// Where the old content begins in each dimension.
    pub offset: Vec<usize>,
}

/// The function with some of its states, by their names, in their new homes. How many updates could not
/// be made in place, but move all of what the state held.
pub(super) fn embed(
    function: &Function,
    homes: &HashMap<String, Home>,
) -> Result<(Function, usize)> {
    let mut inputs: Vec<Named> = Vec::new();
    for input in &function.inputs {
        let named = match homes.get(&input.name) {
            None => input.clone(),
            Some(home) => Named { name: home.state.clone(), ty: Type::State(home.ty.clone()) },
        };
        if inputs.iter().all(|other| other.name != named.name) {
            inputs.push(named);
        }
    }
    let rewrite = Rewrite::with_inputs(function, &inputs);
    let mut embedding = Embedding {
        view: View::new(function),
        homes,
        rewrite,
        within: HashMap::new(),
        versions: HashMap::new(),
        moved: 0,
    };
    for op in &function.body.ops {
        embedding.op(op)?;
    }
    Ok((embedding.rewrite.finish()?, embedding.moved))
}

struct Embedding<'a> {
    view: View<'a>,
    homes: &'a HashMap<String, Home>,
    rewrite: Rewrite<'a>,
    /// Values that are part of what a new state held, or was updated to: that, the old state, and how
    /// often the new one had been written when it was read.
    within: HashMap<String, (Var, &'a str, usize)>,
    /// How often each new state was written so far.
    versions: HashMap<String, usize>,
    moved: usize,
}

impl<'a> Embedding<'a> {
    fn op(&mut self, op: &'a Op) -> Result<()> {
        let state = op.input("input").and_then(|binding| binding.name());
        match (op.kind.as_str(), state) {
            ("read_state", Some(state)) if self.homes.contains_key(state) => {
                let whole = self.read(&op.outputs[0].name, state)?;
                let version = self.version(state);
                self.is_part(&op.outputs[0].name, whole, state, version)
            }
            ("write_state", Some(state)) if self.homes.contains_key(state) => self.write(op, state),
            ("slice_update", _) if self.update(op)? => Ok(()),
            ("slice_by_index", _) if self.slice(op)? => Ok(()),
            _ => {
                for name in op.operands() {
                    self.plain(name)?;
                }
                self.rewrite.keep(op)
            }
        }
    }

    fn home(&self, state: &str) -> &'a Home {
        &self.homes[state]
    }

    fn version(&self, state: &str) -> usize {
        self.versions.get(&self.home(state).state).copied().unwrap_or_default()
    }

    /// The shape that a state had.
    fn shape(&self, state: &str) -> &'a [usize] {
        &self.view.ty(state).expect("it is an input").shape
    }

    fn read(&mut self, name: &str, state: &str) -> Result<Var> {
        let state = self.rewrite.now(&self.home(state).state);
        self.rewrite.op("read_state", &format!("{name}_whole"), &[("input", (&state).into())])
    }

    /// The value `name` is the part of `whole` that belongs to a state.
    fn is_part(&mut self, name: &str, whole: Var, state: &'a str, version: usize) -> Result<()> {
        self.within.insert(name.to_owned(), (whole, state, version));
        if self.view.is_result(name) { self.plain(name) } else { Ok(()) }
    }

    /// Takes a value out of what it is a part of, unless that was done.
    fn plain(&mut self, name: &str) -> Result<()> {
        if let Some((whole, state, _)) = self.within.get(name).cloned()
            && self.rewrite.find(name).is_none()
        {
            let begin = &self.home(state).offset;
            let end: Vec<_> = begin.iter().zip(self.shape(state)).map(|(a, n)| a + n).collect();
            let part = self.rewrite.slice(name, &whole, begin, &end)?;
            self.rewrite.becomes(name, &part)?;
        }
        Ok(())
    }

    fn write(&mut self, op: &'a Op, state: &'a str) -> Result<()> {
        let data = op.input("data").and_then(|data| data.name());
        let current = self.version(state);
        let whole = match data.and_then(|data| self.within.get(data)) {
            // Nothing else has been written since.
            Some((whole, from, version)) if *from == state && *version == current => whole.clone(),
            _ => {
                data.map_or(Ok(()), |data| self.plain(data))?;
                self.moved += 1;
                let data = self.rewrite.operand(op, "data");
                let whole = self.read(op.name(), state)?;
                let begin = &self.home(state).offset;
                let end = begin.iter().zip(self.shape(state)).map(|(a, n)| Part::Fixed(a + n));
                let begin: Vec<_> = begin.iter().map(|&at| Part::Fixed(at)).collect();
                self.put(op.name(), &whole, &data, [&begin, &end.collect::<Vec<_>>()])?
            }
        };
        let new = self.rewrite.now(&self.home(state).state);
        let args = [("input", (&new).into()), ("data", (&whole).into())];
        self.rewrite.ops("write_state", op.name(), &args)?;
        *self.versions.entry(self.home(state).state.clone()).or_default() += 1;
        Ok(())
    }

    /// Updates places of the new state instead of those of the old, if they are known where it matters.
    fn update(&mut self, op: &'a Op) -> Result<bool> {
        let known = op.input("x").and_then(|x| self.within.get(x.name()?)).cloned();
        let Some((whole, state, version)) = known else { return Ok(false) };
        let Some(places) = self.places(op, state) else { return Ok(false) };
        if let Some(update) = op.input("update").and_then(|update| update.name()) {
            self.plain(update)?;
        }
        let update = self.rewrite.operand(op, "update");
        let result = &op.outputs[0].name;
        let updated = self.put(result, &whole, &update, [&places[0], &places[1]])?;
        self.is_part(result, updated, state, version)?;
        Ok(true)
    }

    /// Takes a part of an old state out of the new one at once.
    fn slice(&mut self, op: &'a Op) -> Result<bool> {
        let known = op.input("x").and_then(|x| self.within.get(x.name()?)).cloned();
        let Some((whole, state, _)) = known else { return Ok(false) };
        let fixed = |parts: &[Part]| -> Option<Vec<usize>> {
            let each = parts.iter().map(|part| match part {
                Part::Fixed(at) => Some(*at),
                Part::Named(_) => None,
            });
            each.collect()
        };
        let places = self.places(op, state);
        let Some((begin, end)) = places.and_then(|[a, b]| fixed(&a).zip(fixed(&b))) else {
            return Ok(false);
        };
        let result = &op.outputs[0].name;
        let part = self.rewrite.slice(result, &whole, &begin, &end)?;
        self.rewrite.becomes(result, &part)?;
        Ok(true)
    }

    /// The corners of a slice of an old state, in the new one.
    fn places(&self, op: &'a Op, state: &str) -> Option<[Vec<Part>; 2]> {
        let (home, shape) = (self.home(state), self.shape(state));
        let flags = |parameter: &str| match op.input(parameter) {
            None => Some(vec![false; shape.len()]),
            binding => Some(self.view.value(binding)?.as_bools()?.to_vec()),
        };
        if flags("squeeze_mask")?.contains(&true)
            || op.input("stride").is_some() && self.view.ints(op, "stride")?.iter().any(|&s| s != 1)
        {
            return None;
        }
        let masks = [flags("begin_mask")?, flags("end_mask")?];
        let corners = [corner(&self.view, op, "begin")?, corner(&self.view, op, "end")?];
        let mut places = [Vec::new(), Vec::new()];
        for (i, &dim) in shape.iter().enumerate() {
            let parts = [corners[0].get(i)?, corners[1].get(i)?];
            let known = [0, 1].map(|k| match (masks[k].get(i), parts[k]) {
                (Some(true), _) => Some(None),
                (_, Corner::Fixed(at)) => Some(Some(i64::from(*at))),
                (_, Corner::Named(_)) => None,
            });
            let stays = home.offset[i] == 0 && home.ty.shape[i] == dim;
            let [begin, end] = match known {
                [Some(begin), Some(end)] => {
                    let range = slice_range(dim, begin, end, 1).ok()?;
                    let start = range.start + home.offset[i];
                    [start, start + range.len].map(Part::Fixed)
                }
                _ if !stays => return None,
                _ => [0, 1].map(|k| match (known[k], parts[k]) {
                    (Some(None), _) => Part::Fixed(if k == 0 { 0 } else { dim }),
                    (_, Corner::Named(name)) => Part::Named(name.clone()),
                    // Counted from the end, it may lie before the beginning.
                    (_, Corner::Fixed(at)) => Part::Fixed(usize::try_from(*at).unwrap_or(dim)),
                }),
            };
            // Beside a place that is not known, one counted from the end is not either.
            let counted = parts.iter().any(|part| matches!(part, Corner::Fixed(at) if *at < 0));
            if counted && known.contains(&None) {
                return None;
            }
            places[0].push(begin);
            places[1].push(end);
        }
        Some(places)
    }

    /// `update` at a place of `x`.
    fn put(
        &mut self,
        name: &str,
        x: &Var,
        update: &Var,
        [begin, end]: [&[Part]; 2],
    ) -> Result<Var> {
        let rank = x.shape().len();
        let begin = self.make(&format!("{name}_begin"), begin)?;
        let end = self.make(&format!("{name}_end"), end)?;
        let flags = || Arg::from(Value::bools(&vec![false; rank]));
        let args = [
            ("x", Arg::from(x)),
            ("update", update.into()),
            ("begin", (&begin).into()),
            ("end", (&end).into()),
            ("stride", Value::sizes(&vec![1; rank]).into()),
            ("begin_mask", flags()),
            ("end_mask", flags()),
            ("squeeze_mask", flags()),
        ];
        self.rewrite.op("slice_update", &format!("{name}_updated"), &args)
    }

    /// A corner as a vector of integers.
    fn make(&mut self, name: &str, parts: &[Part]) -> Result<Var> {
        let fixed = parts.iter().map(|part| match part {
            Part::Fixed(at) => Some(*at),
            Part::Named(_) => None,
        });
        if let Some(fixed) = fixed.collect::<Option<Vec<_>>>() {
            return Ok(self.rewrite.constant(name, Value::sizes(&fixed)));
        }
        let mut values = Vec::new();
        for part in parts {
            values.push(match part {
                Part::Fixed(at) => self.rewrite.constant("at", Value::sizes(&[*at])),
                Part::Named(name) => self.rewrite.now(name),
            });
        }
        self.rewrite.concat(name, &values, 0)
    }
}

/// One number of a corner in the new state.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Fixed(usize),
    Named(String),
}

/// One number of a corner as it was.
#[derive(Clone, Debug, PartialEq)]
enum Corner {
    Fixed(i32),
    /// A value of one element.
    Named(String),
}

/// The numbers of a corner, each a constant or a value.
fn corner(view: &View<'_>, op: &Op, parameter: &str) -> Option<Vec<Corner>> {
    let binding = op.input(parameter);
    if let Some(ints) = view.value(binding).and_then(Value::as_ints) {
        return Some(ints.iter().map(|&at| Corner::Fixed(at)).collect());
    }
    let joined = view.made_by(binding).filter(|made| made.kind == "concat")?;
    let mut corner = Vec::new();
    for binding in joined.inputs.get("values")? {
        match view.value(Some(binding)).and_then(Value::as_ints) {
            Some(ints) => corner.extend(ints.iter().map(|&at| Corner::Fixed(at))),
            None => {
                let name = binding.name()?;
                let one = view.ty(name)?.shape == [1];
                corner.push(one.then(|| Corner::Named(name.to_owned()))?);
            }
        }
    }
    Some(corner)
}

#[cfg(test)]
pub(super) mod tests;
