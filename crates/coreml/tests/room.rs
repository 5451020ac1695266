//! Functions that ask for more memory than there is.

use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision, Tensor};
use baton_coreml::mil::{
    Arg, Binding, DataType, Elements, FunctionBuilder, Program, TensorType, Value, Var,
};
use baton_coreml::{Model, Package};
use baton_cpu::{Isa, Pool};

const F16: DataType = DataType::Float16;
const MIB: u64 = 1 << 20;

/// A package of one function, whose only input is a number.
fn package(make: impl FnOnce(&mut FunctionBuilder, &Var) -> Var) -> Package {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[1, 1]));
    let y = make(&mut b, &x);
    let functions = [("main".to_owned(), b.finish(&[y]))];
    let program = Program { functions: functions.into(), ..Program::default() };
    Package::new(Model::new(program, None).unwrap(), None).unwrap()
}

fn interpreter(package: &Package) -> Interpreter {
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    Interpreter::new(package, Precision::F32, pool).unwrap()
}

fn run(interpreter: &Interpreter) -> Result<Tensor, String> {
    let x = Tensor::floats(&[1, 1], vec![2.0]);
    let mut states = interpreter.states("main").map_err(|error| error.to_string())?;
    let results = interpreter.run("main", &[("x", x)], &mut states);
    Ok(results.map_err(|error| error.to_string())?.remove("y").unwrap())
}

fn tile(b: &mut FunctionBuilder, x: &Var, name: &str, times: i32) -> Var {
    b.op("tile", name, &[("x", x.into()), ("reps", Value::ints(&[1, times]).into())]).unwrap()
}

fn mean(b: &mut FunctionBuilder, x: &Var) -> Var {
    let args = [("x", x.into()), ("axes", Value::ints(&[1]).into()), ("keep_dims", true.into())];
    b.op("reduce_mean", "y", &args).unwrap()
}

type Make = Box<dyn Fn(&mut FunctionBuilder, &Var) -> Var>;

#[test]
fn results_larger_than_the_memory_are_an_error_that_names_the_function() {
    const ALL: i32 = 1 << 30;
    let fill = Value::ints(&[1, ALL]);
    let makes: [(&str, Make); 3] = [
        ("tile", Box::new(|b, x| tile(b, x, "large", ALL))),
        (
            "fill",
            Box::new(move |b, _| {
                let args = [("shape", fill.clone().into()), ("value", Value::f16(1.0).into())];
                b.op("fill", "large", &args).unwrap()
            }),
        ),
        (
            // Each is small, and their sum is a table.
            "broadcast",
            Box::new(|b, x| {
                let row = tile(b, x, "row", 1 << 15);
                let args = [("x", (&row).into()), ("axes", Value::ints(&[0]).into())];
                let row = b.op("squeeze", "line", &args).unwrap();
                let args = [("x", (&row).into()), ("axes", Value::ints(&[1]).into())];
                let column = b.op("expand_dims", "column", &args).unwrap();
                b.op("add", "large", &[("x", (&row).into()), ("y", (&column).into())]).unwrap()
            }),
        ),
    ];
    for (name, make) in makes {
        let package = package(|b, x| {
            let large = make(b, x);
            mean(b, &large)
        });
        let error = run(&interpreter(&package).within(64 * MIB)).unwrap_err();
        assert!(error.contains("\"main\"") && error.contains("MiB"), "{name}: {error}");
        assert!(error.contains("64 MiB are available"), "{name}: {error}");
    }
}

#[test]
fn results_that_wait_for_each_other_count_together_and_those_that_are_over_do_not() {
    const EACH: i32 = 1 << 20;
    let together = package(|b, x| {
        let large: Vec<Var> = (0..8).map(|i| tile(b, x, &format!("t{i}"), EACH)).collect();
        let sum = large[1..].iter().enumerate().fold(large[0].clone(), |sum, (i, next)| {
            let args = [("x", (&sum).into()), ("y", next.into())];
            b.op("add", &format!("s{i}"), &args).unwrap()
        });
        mean(b, &sum)
    });
    let one_by_one = package(|b, x| {
        let mut sum = x.clone();
        for i in 0..8 {
            let large = tile(b, &sum, &format!("t{i}"), EACH);
            let args = [
                ("x", (&large).into()),
                ("axes", Value::ints(&[1]).into()),
                ("keep_dims", true.into()),
            ];
            sum = b.op("reduce_mean", &format!("m{i}"), &args).unwrap();
        }
        mean(b, &sum)
    });
    // Eight of 4 MiB each, beside what sums take.
    let room = 28 * MIB;
    assert!(run(&interpreter(&together).within(room)).unwrap_err().contains("MiB"));
    assert_eq!(run(&interpreter(&one_by_one).within(room)).unwrap().as_floats(), Some(&[2.0][..]));
    let all = run(&interpreter(&together).within(128 * MIB)).unwrap();
    assert_eq!(all.as_floats(), Some(&[16.0][..]));
}

#[test]
fn operations_whose_results_nobody_reads_are_not_run() {
    let package = package(|b, x| {
        for i in 0..100 {
            tile(b, x, &format!("unread{i}"), 1 << 30);
        }
        mean(b, x)
    });
    assert_eq!(run(&interpreter(&package).within(MIB)).unwrap().as_floats(), Some(&[2.0][..]));
}

#[test]
fn nothing_repeated_takes_nothing() {
    let package = package(|b, x| {
        let reps = Value::ints(&[0, 1 << 30]).into();
        b.op("tile", "y", &[("x", x.into()), ("reps", reps)]).unwrap()
    });
    assert_eq!(run(&interpreter(&package).within(MIB)).unwrap().as_floats(), Some(&[][..]));
}

#[test]
fn states_larger_than_the_memory_are_an_error() {
    let mut b = FunctionBuilder::new();
    b.state("held", TensorType::new(F16, &[1 << 15, 1 << 15]));
    let x = b.input("x", TensorType::new(F16, &[1, 1]));
    let y = mean(&mut b, &x);
    let functions = [("main".to_owned(), b.finish(&[y]))];
    let program = Program { functions: functions.into(), ..Program::default() };
    let package = Package::new(Model::new(program, None).unwrap(), None).unwrap();
    let error = run(&interpreter(&package).within(64 * MIB)).unwrap_err();
    assert!(error.contains("4096 MiB"), "{error}");
}

#[test]
fn many_weights_that_are_expanded_of_few_bytes_count_too() {
    const N: usize = 1 << 15;
    let package = package(|b, x| {
        let mut sum = x.clone();
        for i in 0..64 {
            // Each a table of its own, so that none stands for another.
            let table = [i as f32, 1.0];
            let bits = Value::tensor(DataType::UInt1, &[1, N], Elements::Bytes(vec![0; N / 8]));
            let halves = table.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes());
            let lut = Value::tensor(F16, &[1, 1, 2, 1], Elements::Bytes(halves.collect()));
            let args: [(&str, Arg); 2] = [("indices", bits.into()), ("lut", lut.into())];
            let weight = b.op("constexpr_lut_to_dense", &format!("w{i}"), &args).unwrap();
            let args = [("x", (&weight).into()), ("y", (&sum).into())];
            let next = b.op("add", &format!("s{i}"), &args).unwrap();
            let args = [
                ("x", (&next).into()),
                ("axes", Value::ints(&[1]).into()),
                ("keep_dims", true.into()),
            ];
            sum = b.op("reduce_max", &format!("m{i}"), &args).unwrap();
        }
        mean(b, &sum)
    });
    // 64 of 128 KiB each.
    let room = 4 * MIB;
    assert!(run(&interpreter(&package).within(room)).unwrap_err().contains("MiB"));
    let streaming = interpreter(&package).streaming().within(room);
    assert_eq!(run(&streaming).unwrap().as_floats(), Some(&[2018.0][..]));
}

#[test]
fn weights_are_not_expanded_of_each_other_without_end() {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[1, 1]));
    let one = |v: f32| {
        Value::tensor(F16, &[1, 1], Elements::Bytes(half::f16::from_f32(v).to_le_bytes().to_vec()))
    };
    let data = Value::tensor(DataType::Int8, &[1, 1], Elements::Bytes(vec![1]));
    let mut scale: Arg = one(1.0).into();
    let mut last = None;
    for i in 0..100 {
        let args = [("data", Arg::from(data.clone())), ("scale", scale)];
        let var = b.op("constexpr_blockwise_shift_scale", &format!("w{i}"), &args).unwrap();
        scale = (&var).into();
        last = Some(var);
    }
    let y = b.op("add", "y", &[("x", (&x).into()), ("y", (&last.unwrap()).into())]).unwrap();
    let function = b.finish(&[y]);
    assert!(function.body.ops.iter().any(|op| matches!(op.input("scale"), Some(Binding::Name(_)))));
    let program =
        Program { functions: [("main".to_owned(), function)].into(), ..Program::default() };
    let package = Package::new(Model::new(program, None).unwrap(), None).unwrap();
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let error = Interpreter::new(&package, Precision::F32, pool).unwrap_err().to_string();
    assert!(error.contains("times over"), "{error}");
}
