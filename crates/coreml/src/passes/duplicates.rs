//! `deduplicate_constants`: equal tensors of the weight file are one, and so are equal constants of a
//! function.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::rewrite::Rewrite;
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::{BlobRef, Data};

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    let mut changes = one_record(draft)?;
    changes.extend(draft.each(|name, function, _| {
        let (mut rewrite, mut n) = (Rewrite::new(function), 0);
        let mut known: HashMap<String, String> = HashMap::new();
        for op in &function.body.ops {
            if !op.is_constant() || function.body.outputs.contains(&op.outputs[0].name) {
                rewrite.keep(op)?;
                continue;
            }
            // All of the operation but its name, with operands as they are called now.
            let mut text = op.kind.clone();
            for (parameter, bindings) in &op.inputs {
                let now = |name: &str| rewrite.now(name).name().to_owned();
                let bindings = bindings.iter();
                let each = bindings.map(|b| b.name().map_or_else(|| b.to_string(), now));
                text += &format!(" {parameter} = {:?}", each.collect::<Vec<_>>());
            }
            text += &op.constant().map(ToString::to_string).unwrap_or_default();
            let result = &op.outputs[0].name;
            match known.get(&text) {
                Some(first) => {
                    let first = rewrite.now(first);
                    rewrite.becomes(result, &first)?;
                    n += 1;
                }
                None => {
                    rewrite.keep(op)?;
                    known.insert(text, result.clone());
                }
            }
        }
        let change = Change::done(name, "body", format!("{n} constants are another one"));
        Ok((Some(rewrite.finish()?).filter(|_| n > 0), Vec::from_iter((n > 0).then_some(change))))
    })?);
    Ok(changes)
}

/// Makes all references to tensors of equal type and bytes refer to the first of them.
fn one_record(draft: &mut Draft) -> Result<Vec<Change>> {
    let Draft { model, store, .. } = draft;
    let mut first: HashMap<[u8; 32], BlobRef> = HashMap::new();
    let mut known: HashMap<BlobRef, BlobRef> = HashMap::new();
    let (mut n, mut bytes) = (0, 0);
    for (value, ty) in model.program.blobs_mut() {
        let Data::Blob(blob) = &mut value.data else { continue };
        if !known.contains_key(blob) {
            let data = store.read(blob, &ty)?;
            let kind = [ty.dtype.code(), ty.elements().unwrap_or_default() as u64];
            let kind = kind.map(u64::to_le_bytes).concat();
            let digest = Sha256::new().chain_update(kind).chain_update(&data).finalize().into();
            let same = first.entry(digest).or_insert_with(|| blob.clone());
            if same != blob {
                n += 1;
                bytes += data.len();
            }
            known.insert(blob.clone(), same.clone());
        }
        blob.clone_from(&known[blob]);
    }
    let text = format!("{n} tensors are another one, {bytes} bytes less");
    let change = Change { place: "weights".into(), text, done: true };
    Ok(Vec::from_iter((n > 0).then_some(change)))
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::testing::{apply, check, draft, kinds, same};
    use crate::in_memory;
    use crate::mil::{Arg, Binding, DataType, FunctionBuilder, Op, TensorType, Value};

    #[test]
    fn equal_constants_of_a_function_are_one() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float32, &[2]));
        let y = b.op("mul", "y", &[("x", (&x).into()), ("y", Value::f32(3.0).into())]).unwrap();
        let z = b.op("add", "z", &[("x", (&y).into()), ("y", Value::f32(4.0).into())]).unwrap();
        let mut function = b.finish(&[z]);
        // The builder makes equal constants one already: the second becomes equal here.
        let constants = function.body.ops.iter_mut().filter(|op| op.kind == "const");
        for op in constants {
            op.attributes.insert("val".into(), Value::f32(5.0));
        }
        let (function, changes) = check("deduplicate_constants", function);
        assert_eq!((changes, kinds(&function, "const")), (1, 1));
        let operands = |op: &Op| op.inputs["y"][0].clone();
        let used: Vec<Binding> =
            function.body.ops.iter().filter(|op| op.kind != "const").map(operands).collect();
        assert_eq!(used[0], used[1]);
    }

    #[test]
    fn equal_tensors_of_the_weight_file_are_one() {
        // Each writer knows only its own tensors: two files, one behind the other.
        let mut weights = in_memory();
        let data: Vec<u8> = (0..64).collect();
        let a = weights.add(DataType::Float16, &[4, 8], &data).unwrap();
        weights.forget();
        let b_ = weights.add(DataType::Float16, &[4, 8], &data).unwrap();
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float16, &[1, 8]));
        let linear = |b: &mut FunctionBuilder, w: &Value| {
            b.op("linear", "l", &[("x", (&x).into()), ("weight", Arg::from(w.clone()))]).unwrap()
        };
        let outputs = [linear(&mut b, &a), linear(&mut b, &b_)];
        let before = draft([("main", b.finish(&outputs))], weights);
        let (after, changes) = apply(&before, "deduplicate_constants", &Options::default());
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert!(changes[0].text.contains("1 tensors are another one, 64 bytes"), "{changes:?}");
        let blobs = after[0].model().program.blobs();
        assert_eq!(blobs.len(), 1);
        same(&before, &after[0]);
    }
}
