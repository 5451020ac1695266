//! What the layouts of others have in common.

use std::io::{Seek, Write};

use baton_graph::Lookup;

use super::{Task, refused};
use crate::blob::BlobWriter;
use crate::lower::{
    Anatomy, Embedding, Emitter, FunctionLowering, Part, PartLowering, WEIGHTS_NOTE,
};
use crate::mil::{Arg, Function, FunctionBuilder, Program, Value, Var};
use crate::{Model, Result};

/// What to do with models that no other layout has a form for.
pub(super) const OWN_LAYOUT: &str = "compile it with --layout baton";

/// The one embedding of a model: the token's row of a matrix.
pub(super) fn embedding(anatomy: &Anatomy) -> Result<&Embedding> {
    match &anatomy.embeddings[..] {
        [embedding] if embedding.lookup == Lookup::Token => Ok(embedding),
        _ => Err(refused("a model with embeddings of more than its tokens", OWN_LAYOUT)),
    }
}

/// A package of one function over so many columns, a part of the model; `body` adds its inputs and
/// operations, and gives its outputs.
pub(super) fn of_part<W: Write + Seek>(
    task: Task<'_>,
    part: &Part,
    blobs: &mut BlobWriter<W>,
    columns: usize,
    body: impl FnOnce(&mut FunctionLowering<'_, '_, '_, W>) -> Result<Vec<Var>>,
) -> Result<Model> {
    let Task { graph, weights, lowering } = task;
    let mut lowering = PartLowering::new(lowering, graph, weights, part, blobs)?;
    let mut f = lowering.function(columns);
    let outputs = body(&mut f)?;
    let model = single(f.b.finish(&outputs))?;
    Ok(noted(model, &lowering.emitter))
}

/// The layers, key-value heads and features of a head of a model's cache.
pub(super) fn cache(anatomy: &Anatomy) -> Result<[usize; 3]> {
    anatomy.cache.ok_or_else(|| refused("a model that caches nothing", OWN_LAYOUT))
}

/// Parts of `x` along an axis, by their numbers.
pub(super) fn gather(
    b: &mut FunctionBuilder,
    name: &str,
    x: &Var,
    indices: &Var,
    axis: i32,
) -> Result<Var> {
    b.op(
        "gather",
        name,
        &[
            ("x", x.into()),
            ("indices", indices.into()),
            ("axis", axis.into()),
            ("batch_dims", 0.into()),
            ("validate_indices", false.into()),
        ],
    )
}

/// `x` in another shape.
pub(super) fn reshape(
    b: &mut FunctionBuilder,
    name: &str,
    x: &Var,
    shape: &[usize],
) -> Result<Var> {
    b.op("reshape", name, &[("x", x.into()), ("shape", Value::sizes(shape).into())])
}

/// Rows beside each other as rows below each other, and the other way: `(1, a, b)` as `(1, b, a)`.
pub(super) fn turned(b: &mut FunctionBuilder, name: &str, x: &Var) -> Result<Var> {
    b.op("transpose", name, &[("x", x.into()), ("perm", Value::ints(&[0, 2, 1]).into())])
}

/// `(1, tokens, features)` as `(1, features, 1, tokens)`.
pub(super) fn columns(b: &mut FunctionBuilder, name: &str, x: &Var) -> Result<Var> {
    let &[_, tokens, features] = x.shape() else { unreachable!("three dimensions") };
    let x = match tokens {
        1 => x.clone(),
        _ => turned(b, &format!("{name}_turned"), x)?,
    };
    reshape(b, name, &x, &[1, features, 1, tokens])
}

/// `(1, features, 1, tokens)` as `(1, tokens, features)`.
pub(super) fn rows(b: &mut FunctionBuilder, name: &str, x: &Var) -> Result<Var> {
    let &[_, features, _, tokens] = x.shape() else { unreachable!("four dimensions") };
    match tokens {
        1 => reshape(b, name, x, &[1, 1, features]),
        _ => {
            let x = reshape(b, &format!("{name}_flat"), x, &[1, features, tokens])?;
            turned(b, name, &x)
        }
    }
}

/// The logits of a hidden state in pieces, `(1, columns, rows)` each, by their names.
pub(super) fn logits<W: Write + Seek>(
    f: &mut FunctionLowering<'_, '_, '_, W>,
    hidden: Var,
    name: impl Fn(usize, usize) -> String,
) -> Result<Vec<Var>> {
    let pieces = f.head(hidden)?;
    let mut outputs = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        outputs.push(rows(&mut f.b, &name(i, pieces.len()), piece)?);
    }
    Ok(outputs)
}

/// Either of two tensors, element by element.
pub(super) fn select(
    b: &mut FunctionBuilder,
    name: &str,
    [cond, yes, no]: [Arg; 3],
) -> Result<Var> {
    b.op("select", name, &[("cond", cond), ("a", yes), ("b", no)])
}

/// What the function of a package is called that has no other.
pub(super) const SINGLE: &str = "main";

/// The model of one function.
pub(super) fn single(function: Function) -> Result<Model> {
    let functions = [(SINGLE.to_owned(), function)].into();
    Model::new(Program { functions, ..Program::default() }, None)
}

/// The model with a note of what has become of its quantized weights.
pub(super) fn noted<W: Write + Seek>(mut model: Model, emitter: &Emitter<'_, '_, W>) -> Model {
    let note = emitter.note().map(|note| (WEIGHTS_NOTE.to_owned(), note));
    model.metadata.user.extend(note);
    model
}
