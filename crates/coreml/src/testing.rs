//! Small programs for tests.

use std::io::{Seek, Write};

use baton_graph::testing::Random;

use crate::mil::{Arg, DataType, Function, FunctionBuilder, Program, TensorType, Value, Var};
use crate::{BlobWriter, Model, Result};

const F16: DataType = DataType::Float16;
const C: usize = 32;
const CONTEXT: usize = 64;

fn f16(shape: &[usize]) -> TensorType {
    TensorType::new(F16, shape)
}

/// A product with a matrix of 4-bit integers that both functions of [`example`] share.
fn project(b: &mut FunctionBuilder, weights: &[Value; 2], x: &Var, name: &str) -> Result<Var> {
    let [data, scale] = weights.clone().map(Arg::from);
    let w = b.op("constexpr_blockwise_shift_scale", "w", &[("data", data), ("scale", scale)])?;
    b.op(
        "conv",
        name,
        &[
            ("x", x.into()),
            ("weight", (&w).into()),
            ("strides", Value::ints(&[1, 1]).into()),
            ("pad_type", "valid".into()),
            ("pad", Value::ints(&[0; 4]).into()),
            ("dilations", Value::ints(&[1, 1]).into()),
            ("groups", 1.into()),
        ],
    )
}

fn prefill(weights: &[Value; 2]) -> Result<Function> {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", f16(&[1, C, 1, 8]));
    let y = project(&mut b, weights, &x, "y")?;
    let perm = Value::ints(&[0, 2, 3, 1]);
    let keys = b.op("transpose", "keys", &[("x", (&y).into()), ("perm", perm.into())])?;
    Ok(b.finish(&[y, keys]))
}

/// Writes the new key to a cache and attends over it.
fn decode(weights: &[Value; 2]) -> Result<Function> {
    let mut b = FunctionBuilder::new();
    let x = b.input("x", f16(&[1, C, 1, 1]));
    let position = b.input("position", TensorType::new(DataType::Int32, &[1]));
    let cache = b.state("cache", f16(&[1, 1, CONTEXT, C]));
    let q = project(&mut b, weights, &x, "q")?;
    let shape = Value::ints(&[1, 1, 1, -1]);
    let key = b.op("reshape", "key", &[("x", (&q).into()), ("shape", shape.into())])?;
    let next =
        b.op("add", "next", &[("x", (&position).into()), ("y", Value::ints(&[1]).into())])?;
    let at = |b: &mut FunctionBuilder, name: &str, i: &Var, rest: [i32; 3]| {
        let [first, second, last] = rest.map(|n| b.constant("n", Value::ints(&[n])));
        let values = [first, second, i.clone(), last];
        b.op(
            "concat",
            name,
            &[("values", values[..].into()), ("axis", 0.into()), ("interleave", false.into())],
        )
    };
    let begin = at(&mut b, "begin", &position, [0, 0, 0])?;
    let end = at(&mut b, "end", &next, [1, 1, C as i32])?;
    let held = b.op("read_state", "held", &[("input", (&cache).into())])?;
    let mask = || Arg::from(Value::bools(&[false; 4]));
    let updated = b.op(
        "slice_update",
        "updated",
        &[
            ("x", (&held).into()),
            ("update", (&key).into()),
            ("begin", (&begin).into()),
            ("end", (&end).into()),
            ("stride", Value::ints(&[1; 4]).into()),
            ("begin_mask", mask()),
            ("end_mask", mask()),
            ("squeeze_mask", mask()),
        ],
    )?;
    let write = [("input", (&cache).into()), ("data", (&updated).into())];
    b.ops("write_state", "cache_write", &write)?;
    let keys = b.op("read_state", "keys", &[("input", (&cache).into())])?;
    let product = |b: &mut FunctionBuilder, name: &str, x: &Var, swapped: bool| {
        let flags = [("transpose_x", false.into()), ("transpose_y", swapped.into())];
        let values = [("x", x.into()), ("y", (&keys).into())];
        b.op("matmul", name, &[&values[..], &flags[..]].concat())
    };
    let scores = product(&mut b, "scores", &key, true)?;
    let shares = b.op("softmax", "shares", &[("x", (&scores).into()), ("axis", (-1).into())])?;
    let y = product(&mut b, "y", &shares, false)?;
    Ok(b.finish(&[y]))
}

/// A model of two functions that share a matrix of 4-bit integers: `prefill`, and `decode`, which writes
/// to a state and reads it back.
///
/// # Errors
/// If writing the weights fails.
pub fn example<W: Write + Seek>(weights: &mut BlobWriter<W>) -> Result<Model> {
    let mut random = Random::new(1);
    let data: Vec<u8> = (0..C * C / 2).map(|_| random.bits() as u8).collect();
    let data = weights.add(DataType::Int4, &[C, C, 1, 1], &data)?;
    let scale = weights.add(F16, &[C, 1, 1, 1], &[0x1e, 0x21].repeat(C))?;
    let weights = [data, scale];
    let functions =
        [("prefill".to_owned(), prefill(&weights)?), ("decode".to_owned(), decode(&weights)?)];
    let program = Program { functions: functions.into(), ..Program::default() };
    Model::new(program, Some("decode"))
}
