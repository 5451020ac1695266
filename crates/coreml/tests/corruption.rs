//! Every field of a model file, taken out or changed: the verifier finds it, unless it says the same as before or
//! something that is as sound.

use std::collections::BTreeSet;
use std::fs;

use baton_coreml::testing::example;
use baton_coreml::{Package, PackageWriter};

/// The messages of the format that have fields of their own, and the fields that are messages.
const MESSAGES: &[(&str, &[(u64, &str)])] = &[
    ("Model", &[(2, "Description"), (502, "Program")]),
    ("Description", &[(20, "FunctionDescription")]),
    ("FunctionDescription", &[(2, "Feature"), (3, "Feature"), (6, "Feature")]),
    ("Feature", &[(3, "FeatureType")]),
    ("FeatureType", &[(5, "Array"), (8, "StateFeature")]),
    ("StateFeature", &[(1, "Array")]),
    ("Program", &[(2, "FunctionEntry")]),
    ("FunctionEntry", &[(2, "Function")]),
    ("Function", &[(1, "NamedType"), (3, "BlockEntry")]),
    ("BlockEntry", &[(2, "Block")]),
    ("Block", &[(3, "Operation")]),
    ("Operation", &[(2, "ArgumentEntry"), (3, "NamedType"), (5, "ValueEntry")]),
    ("ArgumentEntry", &[(2, "Argument")]),
    ("Argument", &[(1, "Binding")]),
    ("Binding", &[(2, "Value")]),
    ("ValueEntry", &[(2, "Value")]),
    ("NamedType", &[(2, "Type")]),
    ("Type", &[(1, "TensorType"), (5, "StateType")]),
    ("StateType", &[(1, "Type")]),
    ("TensorType", &[(3, "Dimension")]),
    ("Dimension", &[(1, "Constant")]),
    ("Constant", &[]),
    ("Array", &[]),
    ("Value", &[(2, "Type"), (5, "BlobFile")]),
    ("BlobFile", &[]),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Removed,
    Doubled,
    Changed,
}

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A message with its field `wanted`, counted over all of them from front to back, changed. `seen` counts; the
/// name of the field is told.
fn with(
    bytes: &[u8],
    message: &str,
    change: Change,
    wanted: usize,
    seen: &mut usize,
    name: &mut Option<String>,
) -> Vec<u8> {
    let known = MESSAGES.iter().find(|(known, _)| *known == message).map(|(_, fields)| *fields);
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        let tag = varint(bytes, &mut at);
        let (field, wire) = (tag >> 3, tag & 7);
        let mut written = Vec::new();
        put_varint(&mut written, tag);
        let own = *seen == wanted;
        *seen += 1;
        if own {
            *name = Some(format!("{message}.{field}"));
        }
        let changed = own && change == Change::Changed;
        match wire {
            0 => {
                let value = varint(bytes, &mut at);
                put_varint(&mut written, if changed { value + 1 } else { value });
            }
            2 => {
                let len = varint(bytes, &mut at) as usize;
                let inner = &bytes[at..at + len];
                at += len;
                let below = known.and_then(|fields| fields.iter().find(|(f, _)| *f == field));
                let inner = match below {
                    Some((_, below)) => with(inner, below, change, wanted, seen, name),
                    None => inner.to_vec(),
                };
                let inner = match (changed, below) {
                    // The last byte, or one where there was none.
                    (true, None) => match inner.split_last() {
                        Some((last, rest)) => [rest, &[last ^ 1]].concat(),
                        None => vec![b'x'],
                    },
                    // Of a message nothing is left.
                    (true, Some(_)) => Vec::new(),
                    (false, _) => inner,
                };
                put_varint(&mut written, inner.len() as u64);
                written.extend(inner);
            }
            1 | 5 => {
                at += if wire == 1 { 8 } else { 4 };
                written.extend(&bytes[at - if wire == 1 { 8 } else { 4 }..at]);
            }
            _ => panic!("wire type {wire} at {start}"),
        }
        match (own, change) {
            (true, Change::Removed) => {}
            (true, Change::Doubled) => out.extend([&written[..], &written].concat()),
            _ => out.extend(written),
        }
    }
    out
}

/// Fields that may be changed, and what is then said instead.
const MAY_CHANGE: &[(Change, &str)] = &[
    // Another version of the format, which has the same operations.
    (Change::Changed, "Model.1"),
    // Another value of a constant or of what only names something.
    (Change::Changed, "Value.3"),
    (Change::Changed, "ValueEntry.1"),
    (Change::Removed, "ValueEntry.1"),
    (Change::Removed, "Operation.5"),
    // Another operand of the same type.
    (Change::Changed, "Binding.1"),
    // A parameter that need not be given, or another of the same kind.
    (Change::Removed, "Operation.2"),
    (Change::Changed, "ArgumentEntry.1"),
    // A state is written twice, or not.
    (Change::Removed, "Block.3"),
    (Change::Doubled, "Block.3"),
];

#[test]
fn every_field_matters_or_is_known_not_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.mlpackage");
    let mut writer = PackageWriter::create(&path).unwrap();
    let model = example(&mut writer.weights).unwrap();
    writer.finish(&model).unwrap();
    let file = path.join("Data/com.apple.CoreML/model.mlmodel");
    let bytes = fs::read(&file).unwrap();
    assert_eq!(Package::open(&path).unwrap().model, model);
    let (mut survivors, mut fields) = (BTreeSet::new(), 0);
    for change in [Change::Removed, Change::Doubled, Change::Changed] {
        for wanted in 0.. {
            let (mut seen, mut name) = (0, None);
            let changed = with(&bytes, "Model", change, wanted, &mut seen, &mut name);
            let Some(name) = name else { break };
            fields += 1;
            fs::write(&file, &changed).unwrap();
            // What reads as it did before has lost nothing.
            if Package::open(&path).is_ok_and(|package| package.model != model) {
                survivors.insert((change, name));
            }
        }
    }
    assert!(fields > 1000, "{fields} fields");
    let known = |(change, name): &&(Change, String)| {
        MAY_CHANGE.iter().any(|(may, field)| (may, *field) == (change, name.as_str()))
    };
    let unknown: Vec<_> = survivors.iter().filter(|survivor| !known(survivor)).collect();
    assert!(unknown.is_empty(), "not found: {unknown:?}");
}
