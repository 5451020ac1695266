use super::*;
use crate::mil::{FunctionBuilder, Named};

const F16: DataType = DataType::Float16;

/// A function with a bit of everything: a state, constants, a list, two results of one operation.
fn sound() -> Program {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[1, 4]));
    let state = b.state("held", TensorType::new(F16, &[1, 4]));
    let read = b.op("read_state", "read", &[("input", (&state).into())]).unwrap();
    let sum = b.op("add", "sum", &[("x", (&x).into()), ("y", (&read).into())]).unwrap();
    let write = [("input", (&state).into()), ("data", (&sum).into())];
    b.ops("write_state", "write", &write).unwrap();
    let split = [("x", (&sum).into()), ("num_splits", 2.into()), ("axis", 1.into())];
    let halves = b.ops("split", "halves", &split).unwrap();
    let concat = [("values", halves[..].into()), ("axis", (-1).into())];
    let y = b.op("concat", "y", &concat).unwrap();
    let functions = [("main".to_owned(), b.finish(&[y]))];
    Program { functions: functions.into(), ..Program::default() }
}

fn main_of(program: &mut Program) -> &mut Function {
    program.functions.get_mut("main").unwrap()
}

fn op<'a>(program: &'a mut Program, kind: &str) -> &'a mut Op {
    main_of(program).body.ops.iter_mut().find(|op| op.kind == kind).unwrap()
}

fn name(name: &str) -> Vec<Binding> {
    vec![Binding::Name(name.into())]
}

#[test]
fn every_broken_rule_is_reported_where_it_is_broken() {
    verify(&sound()).unwrap();
    type Change = fn(&mut Program);
    let cases: &[(&str, Change)] = &[
        ("no function", |p| p.functions.clear()),
        ("opset: \"CoreML99\" is not known", |p| main_of(p).opset = "CoreML99".into()),
        ("main/1x: its name is no identifier", |p| main_of(p).inputs[0].name = "1x".into()),
        ("main/fp16: its name is no identifier", |p| op(p, "add").outputs[0].name = "fp16".into()),
        ("\"sum\" is used before it is defined", |p| op(p, "add").outputs[0].name = "other".into()),
        ("it is defined twice", |p| op(p, "add").outputs[0].name = "x".into()),
        ("\"y\" is used before", |p| drop(op(p, "add").inputs.insert("x".into(), name("y")))),
        ("add sum: y is missing", |p| drop(op(p, "add").inputs.remove("y"))),
        ("it takes no \"z\"", |p| drop(op(p, "add").inputs.insert("z".into(), name("x")))),
        ("x has not one operand", |p| op(p, "add").inputs.get_mut("x").unwrap().extend(name("x"))),
        ("axis must be constant", |p| {
            drop(op(p, "concat").inputs.insert("axis".into(), name("x")))
        }),
        ("axis cannot be", |p| drop(op(p, "concat").inputs.insert("axis".into(), name("x")))),
        ("y cannot be state", |p| drop(op(p, "add").inputs.insert("y".into(), name("held")))),
        ("input cannot be tensor", |p| {
            op(p, "write_state").inputs.insert("input".into(), name("x"));
        }),
        ("writes tensor<fp16, [1, 2]>", |p| {
            op(p, "write_state").inputs.insert("data".into(), name("halves_0"));
            let ops = &mut main_of(p).body.ops;
            let write = ops.iter().position(|op| op.kind == "write_state").unwrap();
            let write = ops.remove(write);
            ops.push(write);
        }),
        ("declared tensor<fp16, [1, 4]>, tensor<fp16, [1, 2]>, it yields", |p| {
            op(p, "split").outputs[0].ty = TensorType::new(F16, &[1, 4]).into();
        }),
        ("declared tensor<fp16, [1, 2]>, it yields", |p| drop(op(p, "split").outputs.pop())),
        ("write_state write: 1 results", |p| {
            let ty = TensorType::new(F16, &[1, 4]).into();
            op(p, "write_state").outputs.push(Named { name: "extra".into(), ty });
        }),
        ("the operation is not known", |p| op(p, "add").kind = "lstm".into()),
        ("an attribute \"val\"", |p| {
            op(p, "add").attributes.insert("val".into(), Value::int(1));
        }),
        ("blocks in it are not known", |p| op(p, "add").blocks.push(Block::default())),
        ("it has no value", |p| drop(op(p, "const").attributes.remove("val"))),
        ("its value is", |p| {
            op(p, "const").attributes.insert("val".into(), Value::ints(&[1, 2]));
        }),
        ("it has operands", |p| drop(op(p, "const").inputs.insert("x".into(), name("x")))),
        ("an input is a result", |p| main_of(p).body.outputs.push("x".into())),
        ("it is a result twice", |p| main_of(p).body.outputs.push("y".into())),
        ("it has no result", |p| main_of(p).body.outputs.clear()),
        ("this result is not computed", |p| main_of(p).body.outputs.push("w".into())),
        ("an input of type list", |p| {
            let list = Type::List(Box::new(TensorType::new(F16, &[]).into()), None);
            main_of(p).inputs[0].ty = list;
        }),
    ];
    for (text, change) in cases {
        let mut program = sound();
        change(&mut program);
        match verify(&program) {
            Err(Error::Invalid(problems)) => {
                let texts: Vec<_> = problems.iter().map(Problem::to_string).collect();
                let found =
                    texts.iter().any(|found| found.contains(text)) || text == &"no function";
                assert!(found, "{text:?} is not among {texts:?}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn errors_of_the_builder_name_the_operation() {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[1, 4]));
    let y = b.input("x", TensorType::new(F16, &[1, 3]));
    assert_eq!(y.name(), "x_1");
    let error = b.op("add", "sum", &[("x", (&x).into()), ("y", (&y).into())]).unwrap_err();
    assert!(error.to_string().contains("add sum: shapes [1, 4] and [1, 3]"), "{error}");
}
