//! Running a pass on a function and comparing what it computes before and after.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_cpu::{Isa, Pool};
use baton_graph::testing::Random;

use super::{Change, Draft, Options, pass};
use crate::interpret::{Interpreter, Precision, Tensor, Values};
use crate::mil::{DataType, Function, Program};
use crate::{BlobWriter, Blobs, Model, Package, in_memory};

/// Runs a pass on a function without weights: the function made, and how many things were changed.
pub(super) fn check(name: &str, function: Function) -> (Function, usize) {
    check_with(name, function, in_memory(), &Options::default())
}

/// As [`check`], with weights and options.
pub(super) fn check_with(
    name: &str,
    function: Function,
    weights: BlobWriter<std::io::Cursor<Vec<u8>>>,
    options: &Options,
) -> (Function, usize) {
    let draft = draft([("main", function)], weights);
    let (mut after, changes) = apply(&draft, name, options);
    assert_eq!(after.len(), 1);
    let after = after.remove(0);
    same(&draft, &after);
    let done = changes.iter().filter(|change| change.done).count();
    (after.model().program.functions["main"].clone(), done)
}

/// A draft of some functions.
pub(super) fn draft<const N: usize>(
    functions: [(&str, Function); N],
    weights: BlobWriter<std::io::Cursor<Vec<u8>>>,
) -> Draft {
    let functions: BTreeMap<_, _> = functions.map(|(name, f)| (name.to_owned(), f)).into();
    let default = if N == 1 { None } else { functions.keys().next().cloned() };
    let program = Program { functions, ..Program::default() };
    let model = Model::new(program, default.as_deref()).unwrap();
    let blobs = Blobs::from_bytes(weights.finish().unwrap().into_inner()).unwrap();
    Draft::new(Package::new(model, Some(blobs)).unwrap())
}

/// A pass on a copy of a draft.
pub(super) fn apply(draft: &Draft, name: &str, options: &Options) -> (Vec<Draft>, Vec<Change>) {
    draft.clone().apply(pass(name).expect("there is such a pass"), options).unwrap()
}

/// How many operations of a kind a function has.
pub(super) fn kinds(function: &Function, kind: &str) -> usize {
    function.body.ops.iter().filter(|op| op.kind == kind).count()
}

/// Random inputs of a function.
pub(super) fn inputs(function: &Function, random: &mut Random) -> Vec<(String, Tensor)> {
    let mut tensor = |dtype: DataType, shape: &[usize]| {
        let n = shape.iter().product();
        match dtype {
            DataType::Int32 => {
                Tensor::ints(shape, (0..n).map(|_| random.below(3) as i32).collect())
            }
            DataType::Bool => Tensor::bools(shape, (0..n).map(|_| random.below(2) > 0).collect()),
            _ => Tensor::floats(shape, (0..n).map(|_| random.signed()).collect()),
        }
    };
    let named = function.tensor_inputs();
    named.map(|(name, ty)| (name.to_owned(), tensor(ty.dtype, &ty.shape))).collect()
}

/// The results of some calls of each function of a draft, each beginning with empty states.
pub(super) fn results(draft: &Draft, precision: Precision) -> Vec<BTreeMap<String, Tensor>> {
    let package = draft.package().unwrap();
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let interpreter = Interpreter::new(&package, precision, pool).unwrap();
    let mut all = Vec::new();
    for (name, function) in &package.model.program.functions {
        let mut states = interpreter.states(name).unwrap();
        let mut random = Random::new(3);
        for _ in 0..3 {
            let given = inputs(function, &mut random);
            let given: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
            all.push(interpreter.run(name, &given, &mut states).unwrap());
        }
    }
    all
}

/// Both compute the same, in single precision.
pub(super) fn same(before: &Draft, after: &Draft) {
    let [before, after] = [before, after].map(|draft| results(draft, Precision::F32));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.len(), after.len());
        for (name, tensor) in before {
            close(name, tensor, &after[name]);
        }
    }
}

/// Tensors are the same to 1e-5 of their largest value, or to the last bits of half precision where they
/// were rounded to it.
pub(super) fn close(name: &str, expected: &Tensor, found: &Tensor) {
    assert_eq!(expected.shape(), found.shape(), "{name}");
    match (expected.values(), found.values()) {
        (Values::Floats(a), Values::Floats(b)) => {
            let largest = a.iter().fold(1f32, |m, v| m.max(v.abs()));
            for (a, b) in a.iter().zip(b.iter()) {
                let half = half::f16::from_f32(*a).to_f32() == *a
                    && half::f16::from_f32(*b).to_f32() == *b;
                let tolerance = 1e-5 * largest + if half { a.abs() * 1e-3 } else { 0.0 };
                let same = (a - b).abs() <= tolerance || a.is_nan() && b.is_nan();
                assert!(same, "{name}: {b}, not {a}");
            }
        }
        (a, b) => assert_eq!(a, b, "{name}"),
    }
}
