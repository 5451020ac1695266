use std::collections::BTreeMap;

use super::*;
use crate::mil::{
    Arg, DataType, Elements, Function, FunctionBuilder, Program, TensorType, Value, Var,
};
use crate::{Blobs, Model, in_memory};

const F16: DataType = DataType::Float16;

fn package<const N: usize>(functions: [(&str, Function); N]) -> Package {
    let functions: BTreeMap<_, _> = functions.map(|(name, f)| (name.to_owned(), f)).into();
    let default = if N == 1 { None } else { functions.keys().next().cloned() };
    let program = Program { functions, ..Program::default() };
    let blobs = Blobs::from_bytes(in_memory().finish().unwrap().into_inner()).unwrap();
    Package::new(Model::new(program, default.as_deref()).unwrap(), Some(blobs)).unwrap()
}

pub(super) fn report(make: impl FnOnce(&mut FunctionBuilder) -> Vec<Var>) -> FunctionReport {
    let mut b = FunctionBuilder::new();
    let outputs = make(&mut b);
    Report::of(&package([("main", b.finish(&outputs))])).functions.remove(0)
}

pub(super) fn f16(shape: &[usize]) -> TensorType {
    TensorType::new(F16, shape)
}

pub(super) fn unary(b: &mut FunctionBuilder, kind: &str, x: &Var, more: &[(&str, Arg)]) -> Var {
    b.op(kind, kind, &[&[("x", x.into())], more].concat()).unwrap()
}

/// The rules that a function of one operation, and maybe what makes its operands, falls under.
fn rules(make: impl FnOnce(&mut FunctionBuilder) -> Vec<Var>) -> Vec<&'static str> {
    let report = report(make);
    let names = report.warnings.iter().map(|w| w.rule.name);
    names.filter(|name| *name != "small-function").collect()
}

/// A product with a weight made by a `constexpr` operation.
fn product(kind: &str, args: &[(&str, Value)]) -> Vec<&'static str> {
    rules(|b| {
        let x = b.input("x", f16(&[1, 4]));
        let args: Vec<_> = args.iter().map(|(name, v)| (*name, Arg::from(v.clone()))).collect();
        let weight = b.op(kind, "weight", &args).unwrap();
        vec![unary(b, "linear", &x, &[("weight", (&weight).into())])]
    })
}

fn integers(dtype: DataType) -> Value {
    let bytes = dtype.bytes(8 * 4).unwrap();
    Value::tensor(dtype, &[8, 4], Elements::Bytes(vec![0; bytes]))
}

/// A function with states of some shapes, each read and written.
fn with_states(shapes: &[&[usize]]) -> Vec<&'static str> {
    rules(|b| {
        let mut outputs = Vec::new();
        for (i, shape) in shapes.iter().enumerate() {
            let state = b.state(&format!("s{i}"), f16(shape));
            let held = b.op("read_state", "held", &[("input", (&state).into())]).unwrap();
            let next = unary(b, "tanh", &held, &[]);
            let write = [("input", (&state).into()), ("data", (&next).into())];
            b.ops("write_state", "w", &write).unwrap();
            outputs.push(next);
        }
        outputs
    })
}

#[test]
fn plain_half_precision_is_for_the_neural_engine() {
    let report = report(|b| {
        let x = b.input("x", f16(&[1, 4, 1, 8]));
        let weight = Value::f16s(&[6, 4, 1, 1], &[0.5; 24]).into();
        let y = unary(b, "conv", &x, &[("weight", weight)]);
        vec![unary(b, "silu", &y, &[])]
    });
    assert_eq!(report.share(), (1.0, 1.0));
    assert!(report.ops.iter().all(|op| op.unit == Unit::NeuralEngine && op.rule.is_none()));
    // 48 results of 4 products and sums each; one for each element behind it.
    assert_eq!(report.ops[0].cost, Cost { flops: 48 * 8, bytes: 2 * (32 + 24 + 48) });
    assert_eq!(report.ops[1].cost, Cost { flops: 48, bytes: 2 * 2 * 48 });
    assert_eq!(report.ops[1].after, [0]);
}

/// A test of each rule: that it applies, and next to it that it does not.
#[test]
fn operations_that_leave_the_neural_engine_fall_under_their_rules() {
    let one = |kind: &'static str, ty: TensorType, more: Vec<(&'static str, Arg)>| {
        rules(move |b| {
            let x = b.input("x", ty);
            vec![unary(b, kind, &x, &more)]
        })
    };
    let none: [&str; 0] = [];
    assert_eq!(one("tanh", f16(&[2]), vec![]), none);
    assert_eq!(one("tanh", TensorType::new(DataType::Float32, &[2]), vec![]), ["single-precision"]);
    let int = TensorType::new(DataType::Int32, &[2]);
    assert_eq!(one("add", int.clone(), vec![("y", Value::ints(&[1]).into())]), ["integers"]);
    assert_eq!(one("cast", int, vec![("dtype", "fp16".into())]), ["integers"]);
    assert_eq!(one("reduce_argmax", f16(&[2, 3]), vec![]), ["integers"]);
    assert_eq!(one("pow", f16(&[2]), vec![("y", Value::f16(2.0).into())]), ["power"]);
    assert_eq!(one("mul", f16(&[2]), vec![("y", Value::f16(2.0).into())]), none);
    assert_eq!(
        one("gather", f16(&[4, 2]), vec![("indices", Value::ints(&[1]).into())]),
        ["gather"]
    );
    assert_eq!(one("tanh", f16(&[1, 16384]), vec![]), none);
    assert_eq!(one("tanh", f16(&[1, 16385]), vec![]), ["long-dimension"]);
    let attention = rules(|b| {
        let x = b.input("x", f16(&[1, 2, 4]));
        let args = ["query", "key", "value"].map(|name| (name, Arg::from(&x)));
        vec![b.op("scaled_dot_product_attention", "a", &args).unwrap()]
    });
    assert_eq!(attention, ["attention-operation"]);
    let deep = |channels: usize| {
        rules(move |b| {
            let x = b.input("x", f16(&[1, channels, 1, 4]));
            let weight = b.input("w", f16(&[2, channels, 1, 2]));
            vec![unary(b, "conv", &x, &[("weight", (&weight).into())])]
        })
    };
    assert_eq!(deep(8192), none);
    assert_eq!(deep(8193), ["deep-product"]);
}

#[test]
fn quantized_weights_fall_under_their_rules() {
    let none: [&str; 0] = [];
    let scaled = |dtype, blocks: [usize; 2]| {
        let scale = Value::f16s(&blocks, &vec![1.0; blocks[0] * blocks[1]]);
        product("constexpr_blockwise_shift_scale", &[("data", integers(dtype)), ("scale", scale)])
    };
    assert_eq!(scaled(DataType::Int4, [8, 1]), ["int4-scales"]);
    assert_eq!(scaled(DataType::Int8, [8, 1]), ["int8-scales"]);
    assert_eq!(scaled(DataType::Int8, [8, 2]), ["block-scales"]);
    let table = |groups: [usize; 2]| {
        let shape = [groups[0], groups[1], 16, 1];
        let table = Value::f16s(&shape, &vec![1.0; shape.iter().product()]);
        product("constexpr_lut_to_dense", &[("indices", integers(DataType::UInt4)), ("lut", table)])
    };
    assert_eq!(table([4, 1]), none);
    assert_eq!(table([4, 2]), ["column-tables"]);
    let scaled_table = rules(|b| {
        let x = b.input("x", f16(&[1, 4]));
        let table = Value::tensor(DataType::Int8, &[1, 1, 16, 1], Elements::Bytes(vec![1; 16]));
        let scale = Value::f16s(&[1, 1, 1, 1], &[0.5]);
        let args = [("data", table.into()), ("scale", scale.into())];
        let lut = b.op("constexpr_blockwise_shift_scale", "lut", &args).unwrap();
        let args = [("indices", integers(DataType::UInt4).into()), ("lut", (&lut).into())];
        let weight = b.op("constexpr_lut_to_dense", "weight", &args).unwrap();
        vec![unary(b, "linear", &x, &[("weight", (&weight).into())])]
    });
    assert_eq!(scaled_table, ["scaled-table"]);
}

#[test]
fn states_fall_under_their_rules() {
    let none: [&str; 0] = [];
    assert_eq!(with_states(&[&[3, 2, 8, 64], &[3, 2, 8, 64]]), none);
    assert_eq!(with_states(&[&[2, 32], &[2, 32], &[2, 32]]), ["three-states"]);
    assert_eq!(with_states(&[&[2, 3, 32]]), ["state-dimensions"]);
    assert_eq!(with_states(&[&[2, 2, 16]]), ["state-width"]);
    assert_eq!(with_states(&[&[2, 32], &[4, 32]]), ["states-differ"]);
    let unused = rules(|b| {
        let state = b.state("s", f16(&[2, 32]));
        vec![b.op("read_state", "r", &[("input", (&state).into())]).unwrap()]
    });
    assert_eq!(unused, ["state-unused"]);
    let tables = rules(|b| {
        let state = b.state("s", f16(&[1, 32]));
        let held = b.op("read_state", "r", &[("input", (&state).into())]).unwrap();
        let write = [("input", (&state).into()), ("data", (&held).into())];
        b.ops("write_state", "w", &write).unwrap();
        let indices = Value::tensor(DataType::UInt4, &[2, 32], Elements::Bytes(vec![0; 32]));
        let table = Value::f16s(&[1, 1, 16, 1], &[1.0; 16]);
        let args = [("indices", indices.into()), ("lut", table.into())];
        let weight = b.op("constexpr_lut_to_dense", "weight", &args).unwrap();
        vec![unary(b, "linear", &held, &[("weight", (&weight).into())])]
    });
    assert_eq!(tables, ["tables-and-states"]);
}

/// A function that writes so many rows to a state at once.
fn writes(rows: usize) -> Function {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", f16(&[1, rows, 32]));
    let state = b.state("s", f16(&[1, 64, 32]));
    let held = b.op("read_state", "r", &[("input", (&state).into())]).unwrap();
    let (begin, end) = (Value::ints(&[0, 0, 0]), Value::sizes(&[1, rows, 32]));
    let more = [("update", Arg::from(&x)), ("begin", begin.into()), ("end", end.into())];
    let next = unary(&mut b, "slice_update", &held, &more);
    b.ops("write_state", "w", &[("input", (&state).into()), ("data", (&next).into())]).unwrap();
    let y = unary(&mut b, "tanh", &next, &[]);
    b.finish(&[y])
}

#[test]
fn updates_of_states_and_packages_fall_under_their_rules() {
    let of = |rows| {
        let report = Report::of(&package([("main", writes(rows))]));
        report.functions[0].warnings.iter().map(|w| w.rule.name).collect::<Vec<_>>()
    };
    assert_eq!(of(32), ["small-function"]);
    assert_eq!(of(33), ["small-function", "many-rows-into-state"]);
    let warned = |package: &Package| {
        Report::of(package).warnings.iter().map(|w| w.rule.name).collect::<Vec<_>>()
    };
    assert!(warned(&package([("main", writes(2))])).is_empty());
    assert!(warned(&package([("a", writes(1)), ("b", writes(1))])).is_empty());
    assert_eq!(warned(&package([("a", writes(2)), ("b", writes(1))])), ["stateful-chunk"]);
    let many = ["a", "b", "c", "d", "e"].map(|name| (name, writes(1)));
    assert_eq!(warned(&package(many)), ["many-functions"]);
}

#[test]
fn heavy_functions_fall_under_their_rules() {
    // A table stands for each weight: what counts is what it is expanded to.
    let heavy = |rows: usize| {
        let n = rows * 16384;
        let mut weights = in_memory();
        let indices = weights.add(DataType::UInt1, &[rows, 16384], &vec![0; n / 8]).unwrap();
        let mut b = FunctionBuilder::new();
        let x = b.input("x", f16(&[1, 16384]));
        let args =
            [("indices", indices.into()), ("lut", Value::f16s(&[1, 1, 2, 1], &[0.0, 1.0]).into())];
        let weight = b.op("constexpr_lut_to_dense", "w", &args).unwrap();
        let y = unary(&mut b, "linear", &x, &[("weight", (&weight).into())]);
        let program =
            Program { functions: [("main".into(), b.finish(&[y]))].into(), ..Program::default() };
        let blobs = Blobs::from_bytes(weights.finish().unwrap().into_inner()).unwrap();
        let package = Package::new(Model::new(program, None).unwrap(), Some(blobs)).unwrap();
        let report = Report::of(&package).functions.remove(0);
        let names = report.warnings.iter().map(|w| w.rule.name).filter(|n| n.contains("heavy"));
        (names.collect::<Vec<_>>(), report.share().0)
    };
    assert_eq!(heavy(1024).0, [""; 0]);
    assert_eq!(heavy(30_000).0, ["heavy-function"]);
    assert_eq!(heavy(62_000), (vec!["too-heavy-function"], 0.0));
}

#[test]
fn every_rule_says_what_follows_and_who_found_it() {
    let mut names: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RULES.len());
    for rule in RULES {
        let kinds = [rule.op.is_some(), rule.function.is_some(), rule.package.is_some()];
        assert_eq!(kinds.iter().filter(|kind| **kind).count(), 1, "{rule:?}");
        let texts = [rule.name, rule.reason, rule.instead, rule.source];
        assert!(texts.iter().all(|text| !text.is_empty()), "{rule:?}");
    }
    // What a rule's advice names is there.
    let passes = RULES.iter().filter_map(|rule| rule.instead.split_once("(pass "));
    for (_, name) in passes {
        assert!(crate::passes::pass(name.trim_end_matches(')')).is_some(), "{name}");
    }
}

/// Layers of a few operations each, one of them on the CPU, and a head.
fn layered(layers: usize) -> Package {
    let mut b = FunctionBuilder::new();
    let mut x = b.input("x", f16(&[1, 4]));
    for _ in 0..layers {
        let weight = || Value::f16s(&[4, 4], &[0.5; 16]).into();
        let up = unary(&mut b, "linear", &x, &[("weight", weight())]);
        let gate = unary(&mut b, "linear", &x, &[("weight", weight())]);
        let gate = unary(&mut b, "silu", &gate, &[]);
        let both = unary(&mut b, "mul", &gate, &[("y", (&up).into())]);
        let power = unary(&mut b, "pow", &both, &[("y", Value::f16(2.0).into())]);
        let sum = unary(&mut b, "tanh", &power, &[]);
        let sum = unary(&mut b, "sigmoid", &sum, &[]);
        x = unary(&mut b, "add", &sum, &[("y", (&x).into())]);
    }
    let y = unary(&mut b, "exp", &x, &[]);
    package([("main", b.finish(&[y]))])
}

#[test]
fn a_report_has_rows_shares_and_a_picture_of_one_layer() {
    let report = Report::of(&layered(5));
    let function = &report.functions[0];
    let rows = function.rows();
    let linear = &rows[0];
    assert_eq!((linear.kind.as_str(), linear.count, linear.cost.flops), ("linear", 10, 10 * 32));
    let pow = rows.iter().find(|row| row.kind == "pow").unwrap();
    assert_eq!((pow.unit, pow.rule.unwrap().name, pow.cost.flops), (Unit::Cpu, "power", 5 * 4));
    let all = 5 * (2 * 32 + 6 * 4) + 4;
    assert_eq!(function.share().0, (all - 20) as f64 / all as f64);
    assert_eq!(report.least_share(), function.share().0);
    assert_eq!(layer::layer(&function.ops), (8..16, 5));
    let html = report.to_html("a <name>");
    assert!(html.contains("a &lt;name&gt;") && html.contains(NOTE));
    assert!(html.contains("One of 5 layers"));
    assert_eq!(html.matches("<rect").count(), 8);
    assert!(!html.contains("<script") && !html.contains("src=") && !html.contains("<link"));
    let json = report.to_json();
    assert_eq!(json["note"], NOTE);
    assert_eq!(json["functions"][0]["rows"].as_array().unwrap().len(), rows.len());
    let warnings = json["functions"][0]["warnings"].as_array().unwrap();
    let power = warnings.iter().find(|warning| warning["rule"] == "power").unwrap();
    assert_eq!(power["count"], 5);
    // A function that repeats nothing is shown whole.
    let small = Report::of(&layered(1));
    assert_eq!(layer::layer(&small.functions[0].ops), (0..9, 1));
}

#[test]
fn a_rule_about_a_function_keeps_all_of_it_from_the_neural_engine() {
    let report = report(|b| {
        let state = b.state("s", f16(&[2, 8]));
        let held = b.op("read_state", "held", &[("input", (&state).into())]).unwrap();
        let next = unary(b, "tanh", &held, &[]);
        b.ops("write_state", "w", &[("input", (&state).into()), ("data", (&next).into())]).unwrap();
        vec![unary(b, "exp", &next, &[])]
    });
    assert!(report.ops.iter().all(|op| op.unit == Unit::Fails));
    assert_eq!(report.share(), (0.0, 0.0));
}
