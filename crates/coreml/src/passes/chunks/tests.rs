use std::collections::BTreeMap;
use std::sync::Arc;

use baton_cpu::{Isa, Pool};
use baton_graph::testing::Random;

use super::super::testing::{apply, close, draft, inputs, results};
use super::super::{Draft, Options};
use crate::in_memory;
use crate::interpret::{Interpreter, Precision, Tensor};
use crate::mil::{DataType, Function, FunctionBuilder, TensorType, Value};

const F16: DataType = DataType::Float16;
const WIDTH: usize = 64;
/// Bytes of a matrix.
const MATRIX: u64 = 2 * (WIDTH * WIDTH) as u64;

fn options(matrices: u64) -> Options {
    Options { chunk_bytes: matrices * MATRIX, ..Options::default() }
}

/// Matrices in the program, so that functions need not share a weight file.
fn matrix(seed: usize) -> Value {
    let numbers = (0..WIDTH * WIDTH).map(|i| ((i * 31 + seed * 7) % 23) as f32 / 92.0 - 0.1);
    Value::f16s(&[WIDTH, WIDTH], &numbers.collect::<Vec<_>>())
}

/// Layers of two matrices each, with what is added around them; each layer's inner values flow nowhere.
fn layers(n: usize, state: bool) -> Function {
    let mut b = FunctionBuilder::new();
    let mut x = b.input("x", TensorType::new(F16, &[1, WIDTH]));
    let scale = b.input("scale", TensorType::new(F16, &[1]));
    let held = state.then(|| b.state("held", TensorType::new(F16, &[1, WIDTH])));
    for i in 0..n {
        let wide = b.op("mul", "wide", &[("x", (&x).into()), ("y", (&scale).into())]).unwrap();
        let args = [("x", (&wide).into()), ("weight", matrix(2 * i).into())];
        let mut inner = b.op("linear", "up", &args).unwrap();
        if let Some(state) = &held {
            let read = b.op("read_state", "r", &[("input", state.into())]).unwrap();
            inner = b.op("add", "a", &[("x", (&inner).into()), ("y", (&read).into())]).unwrap();
            let write = [("input", state.into()), ("data", (&inner).into())];
            b.ops("write_state", "w", &write).unwrap();
        }
        let args = [("x", (&inner).into()), ("weight", matrix(2 * i + 1).into())];
        let down = b.op("linear", "down", &args).unwrap();
        x = b.op("add", "sum", &[("x", (&x).into()), ("y", (&down).into())]).unwrap();
    }
    b.finish(&[x])
}

/// Runs the chunks of a function in turn, each with what it takes of what is there by then.
fn chain(
    drafts: &[Draft],
    name: &str,
    mut known: BTreeMap<String, Tensor>,
) -> BTreeMap<String, Tensor> {
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    for draft in drafts {
        let package = draft.package().unwrap();
        let Some(function) = package.model.program.functions.get(name) else { continue };
        let interpreter = Interpreter::new(&package, Precision::F32, pool.clone()).unwrap();
        let given = function.tensor_inputs().map(|(name, _)| (name, known[name].clone()));
        let given: Vec<_> = given.collect();
        let mut states = interpreter.states(name).unwrap();
        known.extend(interpreter.run(name, &given, &mut states).unwrap());
    }
    known
}

#[test]
fn a_function_is_cut_between_its_layers_and_its_parts_compute_the_same_in_turn() {
    for (layers_, matrices, parts) in [(6, 4, 3), (5, 4, 3), (4, 3, 4), (2, 4, 1)] {
        let function = layers(layers_, false);
        let before = draft([("main", function.clone())], in_memory());
        let (after, changes) = apply(&before, "split_chunks", &options(matrices));
        assert_eq!(after.len(), parts, "{layers_} layers: {changes:?}");
        for draft in &after {
            let function = &draft.model().program.functions["main"];
            // One value flows from chunk to chunk, of all that a layer computes.
            assert_eq!((function.body.outputs.len(), function.inputs.len()), (1, 2));
        }
        let given: BTreeMap<_, _> = inputs(&function, &mut Random::new(3)).into_iter().collect();
        let found = chain(&after, "main", given);
        let expected = &results(&before, Precision::F32)[0];
        for (name, tensor) in expected {
            close(name, tensor, &found[name]);
        }
    }
}

#[test]
fn parts_of_functions_that_share_weights_are_in_one_package() {
    // The writer makes equal matrices one record, which both functions refer to.
    let mut weights = in_memory();
    let mut share = |mut function: Function| {
        for op in function.body.ops.iter_mut().filter(|op| op.kind == "const") {
            let value = op.attributes.get_mut("val").unwrap();
            if let (Some(ty), Some(crate::mil::Elements::Bytes(bytes))) =
                (value.ty.tensor().cloned(), value.elements().cloned())
                && ty.shape.len() == 2
            {
                *value = weights.add(ty.dtype, &ty.shape, &bytes).unwrap();
            }
        }
        function
    };
    let functions = [("one", share(layers(4, false))), ("two", share(layers(4, false)))];
    let before = draft(functions, weights);
    let (after, _) = apply(&before, "split_chunks", &options(4));
    assert_eq!(after.len(), 2);
    for (i, draft) in after.iter().enumerate() {
        let model = draft.model();
        assert_eq!(draft.part, format!("chunk_{}", i + 1));
        assert!(model.program.functions.keys().eq(["one", "two"]));
        assert_eq!(model.metadata.user["baton.chunk.two"], format!("{} of 2", i + 1));
        assert!(draft.package().unwrap().weight_bytes() < 5 * MATRIX);
    }
}

#[test]
fn a_package_that_is_small_enough_stays_one_whatever_its_functions_share() {
    // As layers and a head are: functions without a weight in common.
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[1, WIDTH]));
    let args = [("x", (&x).into()), ("weight", matrix(99).into())];
    let head = b.op("linear", "head", &args).unwrap();
    let head = b.finish(&[head]);
    let before = draft([("layers", layers(2, false)), ("head", head)], in_memory());
    let (after, changes) = apply(&before, "split_chunks", &options(5));
    assert_eq!((after.len(), changes.len()), (1, 0), "{changes:?}");
    // One matrix less, and it would be too large.
    assert!(apply(&before, "split_chunks", &options(4)).0.len() > 1);
}

#[test]
fn what_cannot_be_cut_is_left_whole_with_the_reason() {
    let left = |function: Function, matrices| {
        let before = draft([("main", function)], in_memory());
        let (after, changes) = apply(&before, "split_chunks", &options(matrices));
        assert_eq!((after.len(), changes.len(), changes[0].done), (1, 1, false));
        changes[0].text.clone()
    };
    // Nothing but the last layer's second matrix could be cut off.
    assert!(left(layers(4, true), 3).contains("a state is used on both sides"));
    let options = Options { chunk_bytes: MATRIX / 2, ..Options::default() };
    let before = draft([("main", layers(1, false))], in_memory());
    let (_, changes) = apply(&before, "split_chunks", &options);
    assert!(changes[0].text.contains("one operation alone"), "{changes:?}");
}
