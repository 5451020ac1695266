//! What a package tells of its place among those of a model: what its maker has noted in it, which layers of a
//! cache it writes, and the numbers of layers in the names of its operations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::layout::names::{anemll::metadata, place};
use crate::mil::{Binding, Function, Op, Program};

/// What the names of layers begin with, in front of their numbers.
const LAYER: [&str; 3] = ["layers_", "layers.", "layer_"];
/// Operations that are followed to the number that one of them begins with.
const DEEPEST: usize = 8;
/// No cache has more rows, keys and values of all layers together, and no function more updates of them.
const MOST_ROWS: usize = 4096;

/// What is known of a package's place.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Origin {
    /// Those notes that say something of it.
    pub notes: BTreeMap<String, String>,
    /// The rows of the first dimension of its state that its functions write, if all of them are known.
    pub written: Option<BTreeSet<usize>>,
    /// The layers that operations are named after.
    pub named: Option<Range<usize>>,
}

impl Origin {
    /// That of a package with these notes, as far as they are of use.
    pub fn of_notes<'a>(notes: impl Iterator<Item = (&'a str, &'a str)>) -> Origin {
        let known =
            [place::MODEL, place::PART, place::LAYERS, metadata::CHUNK_NO, metadata::NUM_CHUNKS];
        let notes = notes.filter(|(key, _)| known.contains(key));
        let notes = notes.map(|(key, text)| (key.to_owned(), text.to_owned())).collect();
        Origin { notes, ..Origin::default() }
    }

    /// The same of one whose program is there.
    pub fn with_program(self, program: &Program) -> Origin {
        let (mut written, mut named) = (Some(BTreeSet::new()), None::<Range<usize>>);
        for function in program.functions.values() {
            written = written.zip(written_rows(function)).map(|(all, own)| &all | &own);
            for number in function.body.ops.iter().filter_map(|op| layer_of(op.name())) {
                let known = named.get_or_insert(number..number + 1);
                *known = known.start.min(number)..known.end.max(number + 1);
            }
        }
        Origin { written: written.filter(|rows| !rows.is_empty()), named, ..self }
    }

    /// The number that a note is.
    pub fn number(&self, key: &str) -> Option<usize> {
        self.notes.get(key)?.parse().ok()
    }

    /// The two numbers of a note such as `2 of 5`.
    pub fn part(&self) -> Option<(usize, usize)> {
        two_numbers(self.notes.get(place::PART)?, " of ")
    }

    /// The layers of the model that the package has, as its maker says.
    pub fn layers(&self) -> Option<Range<usize>> {
        let (first, end) = two_numbers(self.notes.get(place::LAYERS)?, "..")?;
        (first < end).then_some(first..end)
    }
}

fn two_numbers(text: &str, between: &str) -> Option<(usize, usize)> {
    let (one, other) = text.split_once(between)?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

/// The number of the layer that a name tells of.
fn layer_of(name: &str) -> Option<usize> {
    let rest = LAYER.iter().find_map(|start| Some(name.split_once(start)?.1))?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    // More digits are no number of a layer.
    (1..=4).contains(&digits).then(|| rest[..digits].parse().ok())?
}

/// The rows of the first dimension of its states that a function writes; none if it cannot be told of one.
fn written_rows(function: &Function) -> Option<BTreeSet<usize>> {
    let ops = &function.body.ops;
    if ops.iter().any(|op| !op.blocks.is_empty()) {
        return None;
    }
    let outputs = ops.iter().flat_map(|op| op.outputs.iter().map(move |out| (&out.name[..], op)));
    let made: HashMap<&str, &Op> = outputs.collect();
    let states: HashMap<&str, usize> = function
        .states()
        .filter_map(|(name, ty)| Some((name, ty.shape.first().copied()?)))
        .collect();
    let (mut rows, mut updates_left) = (BTreeSet::new(), MOST_ROWS);
    for write in ops.iter().filter(|op| op.kind == "write_state") {
        let most = *states.get(write.input("input")?.name()?).filter(|&&n| n <= MOST_ROWS)?;
        let mut data = write.input("data")?;
        let mut updates = 0;
        // One update of another, of what was read.
        loop {
            let op = *made.get(data.name()?)?;
            match op.kind.as_str() {
                "read_state" if updates > 0 => break,
                "slice_update" => rows.extend(updated(op, &made, most)?),
                _ => return None,
            }
            updates += 1;
            updates_left = updates_left.checked_sub(1)?;
            data = op.input("x")?;
        }
    }
    Some(rows)
}

/// The rows of the first dimension, of so many, that a `slice_update` replaces.
fn updated(op: &Op, made: &HashMap<&str, &Op>, rows: usize) -> Option<Range<usize>> {
    let is_open = |mask: &str| match op.input(mask) {
        None => Some(false),
        Some(mask) => first_value(mask, made, 0)?.as_bools()?.first().copied(),
    };
    let corner = |name: &str| usize::try_from(first_int(op.input(name)?, made, 0)?).ok();
    let begin = if is_open("begin_mask")? { 0 } else { corner("begin")? };
    let end = if is_open("end_mask")? { rows } else { corner("end")? };
    (begin < end && end <= rows).then_some(begin..end)
}

/// The constant that a binding is, or is made of at its beginning.
fn first_value<'a>(
    binding: &'a Binding,
    made: &HashMap<&str, &'a Op>,
    depth: usize,
) -> Option<&'a crate::mil::Value> {
    let name = match binding {
        Binding::Value(value) => return Some(value),
        Binding::Name(name) => name.as_str(),
    };
    let op = *made.get(name).filter(|_| depth < DEEPEST)?;
    match op.kind.as_str() {
        "const" => op.constant(),
        "concat" => first_value(op.input("values")?, made, depth + 1),
        "cast" | "expand_dims" | "reshape" | "squeeze" => {
            first_value(op.input("x")?, made, depth + 1)
        }
        _ => None,
    }
}

fn first_int(binding: &Binding, made: &HashMap<&str, &Op>, depth: usize) -> Option<i32> {
    first_value(binding, made, depth)?.as_ints()?.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mil::{DataType, FunctionBuilder, TensorType, Value};

    #[test]
    fn layers_are_read_of_names_and_of_nothing_else() {
        for (name, number) in [
            ("model_model_layers_12_self_attn_q", Some(12)),
            ("model.layers.3.mlp", Some(3)),
            ("layer_0", Some(0)),
            ("layer_norm_7", None),
            ("layers_123456", None),
            ("relayers", None),
        ] {
            assert_eq!(layer_of(name), number, "{name}");
        }
    }

    #[test]
    fn a_cache_of_more_rows_than_any_model_has_is_not_looked_at() {
        let written = |rows: usize| {
            let mut b = FunctionBuilder::new();
            let ty = TensorType::new(DataType::Float16, &[rows, 1]);
            let state = b.state("cache", ty);
            let held = b.op("read_state", "held", &[("input", (&state).into())]).unwrap();
            let row = b.input("row", TensorType::new(DataType::Float16, &[1, 1]));
            let args = [
                ("x", (&held).into()),
                ("update", (&row).into()),
                ("begin", Value::ints(&[1, 0]).into()),
                ("end", Value::ints(&[2, 1]).into()),
            ];
            let next = b.op("slice_update", "next", &args).unwrap();
            b.ops("write_state", "write", &[("input", (&state).into()), ("data", (&next).into())])
                .unwrap();
            written_rows(&b.finish(&[row]))
        };
        assert_eq!(written(MOST_ROWS), Some(BTreeSet::from([1])));
        assert_eq!(written(MOST_ROWS + 1), None);
    }

    #[test]
    fn notes_that_say_nothing_are_none() {
        let of =
            |key: &'static str, text: &'static str| Origin::of_notes([(key, text)].into_iter());
        assert_eq!(of(place::PART, "2 of 5").part(), Some((2, 5)));
        assert_eq!(of(place::LAYERS, "3..7").layers(), Some(3..7));
        for text in ["", "x", "7..3", "3..", "-1..4", "99999999999999999999..4"] {
            assert_eq!(of(place::LAYERS, text).layers(), None, "{text}");
        }
        assert!(of("com.example", "1").notes.is_empty());
    }
}
