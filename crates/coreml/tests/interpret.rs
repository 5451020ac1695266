//! Running functions: states, errors, what is rounded.

use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision, Tensor};
use baton_coreml::mil::{
    Arg, DataType, Elements, FunctionBuilder, Program, TensorType, Value, Var,
};
use baton_coreml::testing::example;
use baton_coreml::{Blobs, Error, Model, Package, in_memory};
use baton_cpu::{Isa, Pool};
use baton_graph::testing::Random;

const F16: DataType = DataType::Float16;

fn pool() -> Arc<Pool> {
    Arc::new(Pool::new(1, Isa::detect()).unwrap())
}

fn interpreter(precision: Precision) -> Interpreter {
    let mut weights = in_memory();
    let model = example(&mut weights).unwrap();
    let blobs = Blobs::from_bytes(weights.finish().unwrap().into_inner()).unwrap();
    let package = Package::new(model, Some(blobs)).unwrap();
    Interpreter::new(&package, precision, pool()).unwrap()
}

fn token(seed: u64) -> Tensor {
    let mut random = Random::new(seed);
    Tensor::floats(&[1, 32, 1, 1], (0..32).map(|_| random.signed()).collect())
}

#[test]
fn a_state_holds_what_was_written_until_it_is_written_again() {
    for precision in [Precision::F32, Precision::F16] {
        let interpreter = interpreter(precision);
        let mut states = interpreter.states("decode").unwrap();
        let mut rows = Vec::new();
        for position in [0, 3, 1, 3] {
            let inputs =
                [("x", token(position as u64)), ("position", Tensor::ints(&[1], vec![position]))];
            interpreter.run("decode", &inputs, &mut states).unwrap();
            let cache = states.get("cache").unwrap().as_floats().unwrap();
            rows.push(cache[32 * position as usize..][..32].to_vec());
        }
        assert_eq!(rows[1], rows[3]);
        let cache = states.get("cache").unwrap().as_floats().unwrap();
        for (place, row) in [(0, &rows[0]), (1, &rows[2]), (3, &rows[1])] {
            assert!(row.iter().any(|&v| v != 0.0));
            assert_eq!(&cache[32 * place..][..32], row);
        }
        assert!(cache[64..96].iter().chain(&cache[128..]).all(|&v| v == 0.0));
    }
}

#[test]
fn what_leaves_a_function_is_rounded_in_any_precision() {
    let x = Tensor::floats(&[1, 32, 1, 8], (0..256).map(|i| (i as f32).sin()).collect());
    let run = |precision| {
        let interpreter = interpreter(precision);
        let mut states = interpreter.states("prefill").unwrap();
        interpreter.run("prefill", &[("x", x.clone())], &mut states).unwrap()
    };
    let (wide, half) = (run(Precision::F32), run(Precision::F16));
    for (name, wide) in &wide {
        let values = wide.as_floats().unwrap();
        assert!(values.iter().all(|&v| half::f16::from_f32(v).to_f32() == v), "{name}");
        assert_eq!(wide, &half[name], "one product of rounded inputs is the same either way");
    }
}

#[test]
fn steps_inside_of_operations_are_rounded_where_coremltools_rounds_them() {
    // What the value inference of coremltools 9.0 says of these numbers in half precision.
    let x = [0.3, -1.7, 2.9, 0.011, -3.3].map(|v| half::f16::from_f32(v).to_f32());
    let gelu = |mode: &str| vec![("mode", Arg::from(mode))];
    let cases = [
        (
            "softmax",
            vec![("axis", 0.into())],
            vec![0.06506348, 0.008789063, 0.87597656, 0.04876709, 0.0017728806],
        ),
        ("rsqrt", vec![], vec![1.8251953, 0.7670898, 0.5869141, 9.5390625, 0.55078125]),
        ("sigmoid", vec![], vec![0.574707, 0.15441895, 0.9482422, 0.50292969, 0.035522461]),
        ("softsign", vec![], vec![0.23083496, -0.62988281, 0.74365234, 0.010887146, -0.76757813]),
        (
            "gelu",
            gelu("EXACT"),
            vec![0.18542480, -0.075744629, 2.8945313, 0.0055503845, -0.0015916824],
        ),
        (
            "gelu",
            gelu("TANH_APPROXIMATION"),
            vec![0.18542480, -0.075866699, 2.8945313, 0.0055503845, -0.0013046265],
        ),
        (
            "gelu",
            gelu("SIGMOID_APPROXIMATION"),
            vec![0.1875, -0.089111328, 2.8808594, 0.0055541992, -0.011962891],
        ),
        ("reduce_sum_square", vec![("axes", Value::ints(&[0]).into())], vec![22.296875]),
    ];
    let mut other = 0;
    for (kind, args, expected) in cases {
        let mut b = FunctionBuilder::new();
        let input = b.input("x", TensorType::new(F16, &[5]));
        let args = [&[("x", (&input).into())], &args[..]].concat();
        let y = b.op(kind, "y", &args).unwrap();
        let package = package(b, &[y]).unwrap();
        let x = if kind == "rsqrt" { x.map(f32::abs) } else { x };
        let [once, steps] = [Precision::F16, Precision::F16Steps].map(|precision| {
            let interpreter = Interpreter::new(&package, precision, pool()).unwrap();
            let x = [("x", Tensor::floats(&[5], x.to_vec()))];
            let y = interpreter.run("main", &x, &mut Default::default()).unwrap().remove("y");
            y.unwrap().as_floats().unwrap().to_vec()
        });
        let expected: Vec<f32> =
            expected.iter().map(|&v| half::f16::from_f64(v).to_f32()).collect();
        assert_eq!(steps, expected, "{kind}");
        other += usize::from(once != steps);
    }
    assert!(other > 4, "rounding once gives other numbers, in {other} of 8 operations");
}

#[test]
fn calls_that_do_not_fit_are_errors_that_name_what_does_not() {
    let interpreter = interpreter(Precision::F32);
    let mut states = interpreter.states("decode").unwrap();
    let position = |p| ("position", Tensor::ints(&[1], vec![p]));
    let mut fails = |function: &str, inputs: &[(&str, Tensor)], text: &str| {
        let error = interpreter.run(function, inputs, &mut states).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    fails("none", &[], "no such function");
    fails("decode", &[position(0)], "x: this input is missing");
    fails("decode", &[("y", token(0)), position(0)], "y: there is no such input");
    let short = Tensor::floats(&[1, 31, 1, 1], vec![0.0; 31]);
    fails("decode", &[("x", short), position(0)], "[1, 31, 1, 1], not tensor<fp16");
    let floats = ("position", Tensor::floats(&[1], vec![0.0]));
    fails("decode", &[("x", token(0)), floats], "position");
    // There is no place 64: the state was taken out for the write, and is gone.
    fails("decode", &[("x", token(0)), position(64)], "slice_update");
    fails("decode", &[("x", token(0)), position(0)], "this state does not hold");
    let mut fresh = interpreter.states("decode").unwrap();
    interpreter.run("decode", &[("x", token(0)), position(0)], &mut fresh).unwrap();
}

fn package(b: FunctionBuilder, results: &[Var]) -> baton_coreml::Result<Package> {
    let functions = [("main".to_owned(), b.finish(results))];
    let program = Program { functions: functions.into(), ..Program::default() };
    Package::new(Model::new(program, None)?, None)
}

/// An update of one row of a tensor of (3, 2), at a place that is computed.
fn update(stride: &[i32]) -> baton_coreml::Result<Package> {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[3, 2]));
    let row = b.input("row", TensorType::new(F16, &[2]));
    let begin = b.input("begin", TensorType::new(DataType::Int32, &[2]));
    let end = Value::ints(&[0, 2]);
    let squeeze = Value::bools(&[true, false]);
    let place = [("begin", (&begin).into()), ("end", end.into())];
    let options = [("stride", Value::ints(stride).into()), ("squeeze_mask", squeeze.into())];
    let tensors = [("x", (&x).into()), ("update", (&row).into())];
    let y = b.op("slice_update", "y", &[&tensors[..], &place[..], &options[..]].concat())?;
    package(b, &[y])
}

#[test]
fn updates_at_computed_places_outside_of_a_tensor_are_errors() {
    let interpreter = Interpreter::new(&update(&[1, 1]).unwrap(), Precision::F32, pool()).unwrap();
    let run = |begin: i32| {
        let x = Tensor::floats(&[3, 2], vec![0.0; 6]);
        let row = Tensor::floats(&[2], vec![1.0, 2.0]);
        let begin = Tensor::ints(&[2], vec![begin, 0]);
        let inputs = [("x", x), ("row", row), ("begin", begin)];
        interpreter.run("main", &inputs, &mut interpreter.states("main").unwrap())
    };
    for (begin, at) in [(0, 0), (2, 4), (-1, 4)] {
        let y = &run(begin).unwrap()["y"];
        assert_eq!(y.as_floats().unwrap()[at..at + 2], [1.0, 2.0]);
    }
    for begin in [3, 4, i32::MAX] {
        let error = run(begin).unwrap_err().to_string();
        assert!(error.contains("slice_update y") && error.contains("begin"), "{error}");
    }
    for stride in [&[1][..], &[], &[1, 1, 1], &[1, 0]] {
        let error = update(stride).unwrap_err().to_string();
        assert!(error.contains("stride"), "{error}");
    }
}

#[test]
fn what_has_no_elements_to_work_with_is_refused_before_it_runs() {
    let refused = |kind: &str, shape: &[usize], args: &[(&str, Arg)], text: &str| {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(F16, shape));
        let error = b.op(kind, "y", &[&[("x", (&x).into())], args].concat()).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    };
    let axes = |axis| [("axes", Arg::from(Value::ints(&[axis])))];
    for kind in ["reduce_sum", "reduce_mean", "reduce_max"] {
        refused(kind, &[2, 0], &axes(0), "empty");
        refused(kind, &[2, 0], &axes(1), "empty");
    }
    refused("reduce_argmax", &[2, 0], &[("axis", 1.into())], "empty");
    let nothing = Value::tensor(DataType::Float16, &[0], Elements::Bytes(Vec::new()));
    let pad = ("pad", Value::ints(&[1, 1]).into());
    refused("pad", &[2], &[pad, ("constant_val", nothing.clone().into())], "constant_val");
    let mut b = FunctionBuilder::new();
    let args = [("shape", Value::ints(&[2]).into()), ("value", nothing.into())];
    let error = b.op("fill", "y", &args).unwrap_err().to_string();
    assert!(error.contains("value"), "{error}");
}

#[test]
fn inputs_and_states_too_large_to_hold_are_refused_even_if_a_dimension_is_empty() {
    for shape in [&[1 << 20, 1 << 20][..], &[1 << 40, 0], &[usize::MAX, 2]] {
        let mut b = FunctionBuilder::new();
        b.state("held", TensorType::new(F16, shape));
        let x = b.input("x", TensorType::new(F16, &[2]));
        let y = b.op("relu", "y", &[("x", (&x).into())]).unwrap();
        let error = package(b, &[y]).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}

#[test]
fn an_unknown_operation_is_named() {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[2]));
    let y = b.op("add", "y", &[("x", (&x).into()), ("y", Value::f16(1.0).into())]).unwrap();
    let mut function = b.finish(&[y]);
    function.body.ops.last_mut().unwrap().kind = "lstm".into();
    let functions = [("main".to_owned(), function)];
    let program = Program { functions: functions.into(), ..Program::default() };
    match Model::new(program, None) {
        Err(Error::Invalid(problems)) => {
            assert_eq!(problems[0].to_string(), "main/lstm y: the operation is not known");
        }
        other => panic!("{other:?}"),
    }
}
