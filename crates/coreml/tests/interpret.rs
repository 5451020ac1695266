//! Running functions: states, errors, what is rounded.

use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision, Tensor};
use baton_coreml::mil::{DataType, FunctionBuilder, Program, TensorType, Value};
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
