//! `split_chunks`: functions with more weights than the Neural Engine takes become several in turn.
//!
//! A function is cut where little flows from one part to the next. Each part is a function of the same
//! name in a package of its own; what flows on is a result of one and an input of the next, by its name.
//! Parts of several functions that share weights stay in one package.

mod cuts;

use std::collections::{BTreeMap, HashMap, HashSet};

use sha2::{Digest, Sha256};

use self::cuts::cuts;
use super::{Applied, Change, Draft, Options};
use crate::Result;
use crate::mil::view::View;
use crate::mil::{Binding, Block, Data, Function, Named, Op, Type};

/// What a package's metadata say of each function that was cut: `2 of 3`.
const PART: &str = "baton.chunk.";

pub(super) fn run(draft: Draft, options: &Options) -> Result<Applied> {
    let functions = draft.model.program.functions.values();
    let all: BTreeMap<Key, u64> =
        functions.flat_map(|function| Weights::of(&View::new(function)).all()).collect();
    if all.values().copied().fold(0, u64::saturating_add) <= options.chunk_bytes {
        return Ok((vec![draft], Vec::new()));
    }
    let (mut pieces, mut changes) = (Vec::new(), Vec::new());
    for (name, function) in &draft.model.program.functions {
        let view = View::new(function);
        let weights = Weights::of(&view);
        match cuts(&view, &weights, options.chunk_bytes) {
            Err(reason) => {
                changes.push(Change::left(name, "body", reason));
                pieces.push(Piece::whole(name, function, &weights));
            }
            Ok(cuts) if cuts.is_empty() => pieces.push(Piece::whole(name, function, &weights)),
            Ok(cuts) => {
                let parts = Piece::cut(name, &view, &weights, &cuts);
                if parts.iter().any(|part| part.function.body.outputs.is_empty()) {
                    let text = "a part of it would have no result";
                    changes.push(Change::left(name, "body", text));
                    pieces.push(Piece::whole(name, function, &weights));
                    continue;
                }
                let sizes = parts.iter().map(|part| format!("{} MB", part.bytes() / 1_000_000));
                let sizes: Vec<_> = sizes.collect();
                let text = format!("{} functions in turn, of {}", parts.len(), sizes.join(", "));
                changes.push(Change::done(name, "body", text));
                pieces.extend(parts);
            }
        }
    }
    // The largest first, so that others find what they share.
    pieces.sort_by_key(|piece| (piece.of == 1, std::cmp::Reverse(piece.of), piece.index));
    let mut packages: Vec<Vec<Piece>> = Vec::new();
    for piece in pieces {
        let shared = |package: &Vec<Piece>| -> u64 {
            let theirs: HashSet<&Key> = package.iter().flat_map(|p| p.weights.keys()).collect();
            piece.weights.iter().filter(|(key, _)| theirs.contains(key)).map(|(_, n)| n).sum()
        };
        let takes = |package: &&mut Vec<Piece>| {
            let all: BTreeMap<&Key, &u64> =
                package.iter().chain([&piece]).flat_map(|p| &p.weights).collect();
            let fits = all.values().copied().sum::<u64>() <= options.chunk_bytes;
            package.iter().all(|p| p.name != piece.name)
                && fits
                && (shared(package) > 0 || piece.weights.is_empty())
        };
        match packages.iter_mut().filter(takes).max_by_key(|package| shared(package)) {
            Some(package) => package.push(piece),
            None => packages.push(vec![piece]),
        }
    }
    if packages.len() < 2 {
        return Ok((vec![draft], changes));
    }
    if changes.iter().all(|change| !change.done) {
        let text = format!("its functions are in {} packages", packages.len());
        changes.push(Change { place: "package".into(), text, done: true });
    }
    let numbered = packages.into_iter().enumerate();
    Ok((numbered.map(|(i, pieces)| package(&draft, i + 1, pieces)).collect(), changes))
}

/// A package of some pieces of the draft's functions.
fn package(draft: &Draft, number: usize, pieces: Vec<Piece>) -> Draft {
    let mut made = draft.clone();
    let before = &draft.part;
    made.part = match before.is_empty() {
        true => format!("chunk_{number}"),
        false => format!("{before}_{number}"),
    };
    let default = made.model.default_function.take();
    made.model.program.functions.clear();
    for piece in pieces {
        if piece.of > 1 {
            let part = format!("{} of {}", piece.index + 1, piece.of);
            made.model.metadata.user.insert(format!("{PART}{}", piece.name), part);
        }
        made.model.program.functions.insert(piece.name, piece.function);
    }
    let functions = &made.model.program.functions;
    made.model.default_function = default.map(|default| match functions.contains_key(&default) {
        true => default,
        false => functions.keys().next().expect("no package is empty").clone(),
    });
    made
}

/// What tells the weights of a package apart: where they lie, or a digest of the constant itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Blob(String, u64),
    Constant([u8; 32]),
}

/// The weights of a function: for each of its operations the constants that it is the first to need, and
/// bytes of each as in half precision.
pub(super) struct Weights {
    by_op: Vec<Vec<(Key, u64)>>,
}

/// Constants of fewer bytes are not counted.
const SMALL: u64 = 256;

impl Weights {
    pub fn of(view: &View<'_>) -> Weights {
        let mut seen = HashSet::new();
        let ops = &view.function.body.ops;
        let by_op = ops.iter().map(|op| {
            let mut found = Vec::new();
            if !op.is_constant() {
                for constant in view.constants(op) {
                    let elements = view.result_type(constant).and_then(|ty| ty.elements());
                    let bytes = 2 * elements.unwrap_or_default() as u64;
                    if bytes >= SMALL {
                        let key = key(constant);
                        if seen.insert(key.clone()) {
                            found.push((key, bytes));
                        }
                    }
                }
            }
            found
        });
        Weights { by_op: by_op.collect() }
    }

    /// All of them together.
    pub fn bytes(&self) -> u64 {
        self.by_op.iter().flatten().map(|(_, bytes)| bytes).sum()
    }

    /// Each of them.
    fn all(&self) -> BTreeMap<Key, u64> {
        self.within(0, self.by_op.len())
    }

    /// Those of the operations from `from` up to `to`.
    fn within(&self, from: usize, to: usize) -> BTreeMap<Key, u64> {
        self.by_op[from..to].iter().flatten().cloned().collect()
    }
}

fn key(constant: &Op) -> Key {
    let blob = constant.values().find_map(|value| match &value.data {
        Data::Blob(blob) => Some(Key::Blob(blob.file.clone(), blob.offset)),
        _ => None,
    });
    let digest = || {
        let values = constant.values().map(ToString::to_string);
        values.fold(Sha256::new(), |digest, text| digest.chain_update(text)).finalize().into()
    };
    blob.unwrap_or_else(|| Key::Constant(digest()))
}

/// A part of a function.
struct Piece {
    name: String,
    function: Function,
    index: usize,
    of: usize,
    weights: BTreeMap<Key, u64>,
}

impl Piece {
    fn whole(name: &str, function: &Function, weights: &Weights) -> Piece {
        let weights = weights.all();
        Piece { name: name.to_owned(), function: function.clone(), index: 0, of: 1, weights }
    }

    fn bytes(&self) -> u64 {
        self.weights.values().sum()
    }

    /// The parts between some cuts.
    fn cut(name: &str, view: &View<'_>, weights: &Weights, cuts: &[usize]) -> Vec<Piece> {
        let end = view.function.body.ops.len();
        let begins = [&[0], cuts].concat();
        let ends = [cuts, &[end]].concat();
        let ranges = begins.iter().zip(&ends).enumerate();
        ranges
            .map(|(index, (&from, &to))| Piece {
                name: name.to_owned(),
                function: part(view, from, to),
                index,
                of: begins.len(),
                weights: weights.within(from, to),
            })
            .collect()
    }
}

/// The function of the operations from `from` up to `to`, with the constants that they need.
fn part(view: &View<'_>, from: usize, to: usize) -> Function {
    let whole = view.function;
    let ops = &whole.body.ops;
    let is_last = to == ops.len();
    let mut taken: HashSet<usize> = (from..to).filter(|&i| !ops[i].is_constant()).collect();
    let mut constants = HashSet::new();
    for &i in &taken {
        let needed = view.constants(&ops[i]).into_iter();
        constants.extend(needed.filter_map(|op| view.maker(&op.outputs[0].name)));
    }
    // Results that are constants have no place; they come last.
    if is_last {
        let results = whole.body.outputs.iter().filter_map(|name| view.maker(name));
        constants.extend(results.filter(|&i| ops[i].is_constant()));
    }
    taken.extend(&constants);
    let mut order: Vec<usize> = taken.iter().copied().collect();
    order.sort_unstable();
    let made: HashMap<&str, usize> = order
        .iter()
        .flat_map(|&i| ops[i].outputs.iter().map(move |output| (output.name.as_str(), i)))
        .collect();
    let used: HashSet<&str> = order.iter().flat_map(|&i| ops[i].operands()).collect();
    let own = whole.inputs.iter().filter(|input| used.contains(input.name.as_str())).cloned();
    let mut inputs: Vec<Named> = own.collect();
    let mut arrived = HashSet::new();
    for op in order.iter().map(|&i| &ops[i]) {
        for name in op.inputs.values().flatten().filter_map(Binding::name) {
            if !made.contains_key(name) && view.maker(name).is_some() && arrived.insert(name) {
                let ty = view.ty(name).expect("it is a tensor").clone();
                inputs.push(Named { name: name.to_owned(), ty: Type::Tensor(ty) });
            }
        }
    }
    let mut outputs: Vec<String> = whole
        .body
        .outputs
        .iter()
        .filter(|name| made.contains_key(name.as_str()))
        .cloned()
        .collect();
    for output in (from..to).filter(|i| !ops[*i].is_constant()).flat_map(|i| &ops[i].outputs) {
        if view.users(&output.name).iter().any(|&user| user >= to)
            && !outputs.contains(&output.name)
        {
            outputs.push(output.name.clone());
        }
    }
    let ops = order.iter().map(|&i| ops[i].clone()).collect();
    let attributes = whole.body.attributes.clone();
    let body = Block { outputs, ops, attributes, ..Block::default() };
    Function { inputs, body, opset: whole.opset.clone(), attributes: whole.attributes.clone() }
}

#[cfg(test)]
mod tests;
