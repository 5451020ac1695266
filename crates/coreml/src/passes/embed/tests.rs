use super::*;
use crate::mil::{DataType, FunctionBuilder};

const F16: DataType = DataType::Float16;
const HEADS: usize = 2;
const WIDTH: usize = 6;

/// A function of some layers with a cache of keys and one of values each, of so many places: the
/// input is written at `position`, and attends over all. If `whole`, all that a cache holds is changed
/// before it is written, and each cache is written when all were read.
pub fn cache(layers: usize, places: usize, whole: bool) -> Function {
    let mut b = FunctionBuilder::new();
    let f16 = |shape: &[usize]| TensorType::new(F16, shape);
    let mut x = b.input("x", f16(&[1, HEADS, 1, WIDTH]));
    let position = b.input("position", TensorType::new(DataType::Int32, &[1]));
    let one = Value::ints(&[1]);
    let next = b.op("add", "n", &[("x", (&position).into()), ("y", one.into())]).unwrap();
    let states: Vec<_> = (0..layers)
        .map(|i| {
            let state = |n: &str, b: &mut FunctionBuilder| {
                b.state(&format!("{n}_{i}"), f16(&[1, HEADS, places, WIDTH]))
            };
            [state("k", &mut b), state("v", &mut b)]
        })
        .collect();
    let corner = |b: &mut FunctionBuilder, at: &Var, rest: [usize; 3]| {
        let [i, j, k] = rest.map(|n| b.constant("c", Value::sizes(&[n])));
        let values = [i, j, at.clone(), k];
        let args = [("values", values[..].into()), ("axis", 0.into())];
        b.op("concat", "corner", &args).unwrap()
    };
    let begin = corner(&mut b, &position, [0, 0, 0]);
    // The last dimension ends where it ends.
    let end = corner(&mut b, &next, [1, HEADS, 0]);
    let mut writes = Vec::new();
    for pair in &states {
        let held = pair.clone().map(|state| {
            let read = [("input", Arg::from(&state))];
            let held = b.op("read_state", "held", &read).unwrap();
            let flags = [false, false, false, true];
            let args = [
                ("x", Arg::from(&held)),
                ("update", (&x).into()),
                ("begin", (&begin).into()),
                ("end", (&end).into()),
                ("end_mask", Value::bools(&flags).into()),
            ];
            let new = b.op("slice_update", "new", &args).unwrap();
            if whole {
                let half = Value::f16(0.5).into();
                let new = b.op("mul", "all", &[("x", (&new).into()), ("y", half)]).unwrap();
                writes.push((state, new.clone()));
                return new;
            }
            let write = [("input", Arg::from(&state)), ("data", (&new).into())];
            b.ops("write_state", "w", &write).unwrap();
            b.op("read_state", "now", &read).unwrap()
        });
        let matmul = |b: &mut FunctionBuilder, x: &Var, y: &Var, turned: bool| {
            let args = [("x", x.into()), ("y", y.into()), ("transpose_y", turned.into())];
            b.op("matmul", "p", &args).unwrap()
        };
        let scores = matmul(&mut b, &x, &held[0], true);
        let shares = b.op("softmax", "s", &[("x", (&scores).into())]).unwrap();
        x = matmul(&mut b, &shares, &held[1], false);
    }
    for (state, data) in &writes {
        b.ops("write_state", "w", &[("input", state.into()), ("data", data.into())]).unwrap();
    }
    b.finish(&[x])
}

#[test]
fn a_result_that_is_a_part_of_a_state_keeps_its_name() {
    let mut b = FunctionBuilder::new();
    let state = b.state("s", TensorType::new(F16, &[2, 3]));
    let y = b.op("read_state", "y", &[("input", (&state).into())]).unwrap();
    let home =
        Home { state: "larger".into(), ty: TensorType::new(F16, &[6, 4]), offset: vec![2, 0] };
    let (function, moved) = embed(&b.finish(&[y]), &[("s".to_owned(), home)].into()).unwrap();
    assert_eq!((moved, &function.body.outputs[..]), (0, &["y".to_owned()][..]));
    let kinds: Vec<_> = function.body.ops.iter().map(|op| op.kind.as_str()).collect();
    assert_eq!(kinds, ["read_state", "const", "const", "slice_by_index"]);
    assert_eq!(function.outputs().next().unwrap().1.shape, [2, 3]);
}
