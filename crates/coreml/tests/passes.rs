//! Passes on packages that coremltools made of PyTorch: what is rewritten computes the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_coreml::Package;
use baton_coreml::interpret::{Interpreter, Precision, Tensor, Values};
use baton_coreml::passes::{Draft, Options, PASSES, pass};
use baton_coreml::report::{Report, Unit};
use baton_cpu::{Isa, Pool};
use serde_json::Value as Json;

/// Bounds so low that small packages reach them.
const OPTIONS: Options =
    Options { min_queries: 3, query_divider: 2, head_piece: 64, chunk_bytes: 12_000 };

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn draft(name: &str) -> Draft {
    Draft::new(Package::open(&path(&format!("{name}.mlpackage"))).unwrap())
}

/// The inputs of each call of a golden file.
fn calls(name: &str) -> Vec<BTreeMap<String, Tensor>> {
    let text = std::fs::read(path(&format!("{name}.json"))).unwrap();
    let golden: Json = serde_json::from_slice(&text).unwrap();
    let runs = golden["runs"].as_array().unwrap().iter();
    runs.map(|run| {
        let inputs = run["inputs"].as_object().unwrap().iter();
        inputs.map(|(name, json)| (name.clone(), tensor(json))).collect()
    })
    .collect()
}

fn tensor(json: &Json) -> Tensor {
    let list = |key: &str| json.get(key).and_then(Json::as_array);
    let shape = list("shape").unwrap().iter().map(|d| d.as_u64().unwrap() as usize);
    let shape: Vec<usize> = shape.collect();
    match (list("floats"), list("ints")) {
        (Some(v), _) => {
            Tensor::floats(&shape, v.iter().map(|v| v.as_f64().unwrap() as f32).collect())
        }
        (_, Some(v)) => {
            Tensor::ints(&shape, v.iter().map(|v| v.as_i64().unwrap() as i32).collect())
        }
        _ => panic!("no elements"),
    }
}

/// What the packages compute, one after the other, in each of some calls.
fn results(
    drafts: &[Draft],
    calls: &[BTreeMap<String, Tensor>],
    precision: Precision,
) -> Vec<BTreeMap<String, Tensor>> {
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let packages: Vec<Package> = drafts.iter().map(|draft| draft.package().unwrap()).collect();
    let interpreters: Vec<_> = packages
        .iter()
        .map(|package| Interpreter::new(package, precision, pool.clone()).unwrap())
        .collect();
    let mut states: Vec<_> = interpreters.iter().map(|i| i.states("main").unwrap()).collect();
    let mut all = Vec::new();
    for call in calls {
        let mut known = call.clone();
        for ((package, interpreter), states) in packages.iter().zip(&interpreters).zip(&mut states)
        {
            let inputs = package.model.program.functions["main"].tensor_inputs();
            let given: Vec<_> = inputs.map(|(name, _)| (name, known[name].clone())).collect();
            let made = interpreter.run("main", &given, states).unwrap();
            known.extend(made);
        }
        all.push(known);
    }
    all
}

/// The largest difference between results, of which the second may be in pieces along the last dimension,
/// over the largest value.
fn difference(
    before: &[BTreeMap<String, Tensor>],
    after: &[BTreeMap<String, Tensor>],
    outputs: &[String],
) -> f32 {
    let floats = |tensor: &Tensor| match tensor.values() {
        Values::Floats(values) => values.to_vec(),
        Values::Ints(values) => values.iter().map(|&v| v as f32).collect(),
        Values::Bools(values) => values.iter().map(|&v| f32::from(u8::from(v))).collect(),
    };
    let mut worst = 0f32;
    for (before, after) in before.iter().zip(after) {
        for name in outputs {
            let expected = &before[name];
            let pieces: Vec<&Tensor> = match after.get(name) {
                Some(whole) => vec![whole],
                None => (0..).map_while(|i| after.get(&format!("{name}_{i}"))).collect(),
            };
            let width = *expected.shape().last().unwrap_or(&1);
            let rows = expected.len() / width;
            let mut found = Vec::new();
            for row in 0..rows {
                for piece in &pieces {
                    let each = piece.len() / rows;
                    found.extend(floats(piece)[row * each..(row + 1) * each].to_vec());
                }
            }
            let expected = floats(expected);
            assert_eq!(expected.len(), found.len(), "{name}");
            let largest = expected.iter().fold(1f32, |m, v| m.max(v.abs()));
            for (a, b) in expected.iter().zip(&found) {
                worst = worst.max((a - b).abs() / largest);
            }
        }
    }
    worst
}

fn outputs(draft: &Draft) -> Vec<String> {
    draft.model().program.functions["main"].body.outputs.clone()
}

#[test]
fn every_pass_keeps_what_packages_of_coremltools_compute() {
    let mut changed = BTreeMap::new();
    for name in ["block", "decoder", "operations", "quantized", "stateful"] {
        let (before, calls) = (draft(name), calls(name));
        for each in &PASSES {
            let (after, changes) = before.clone().apply(each, &OPTIONS).unwrap();
            // Results are rounded to half precision, to one side or the other. What flows from chunk to
            // chunk is rounded too; where everything is, that changes nothing.
            let (precision, tolerance) = match each.name {
                "split_chunks" => (Precision::F16, 0.0),
                _ => (Precision::F32, 5e-4),
            };
            let [expected, found] =
                [std::slice::from_ref(&before), &after].map(|d| results(d, &calls, precision));
            let difference = difference(&expected, &found, &outputs(&before));
            assert!(difference <= tolerance, "{} of {name}: off by {difference}", each.name);
            let done = changes.iter().filter(|change| change.done).count();
            *changed.entry(each.name).or_insert(0) += done;
        }
    }
    let idle: Vec<_> =
        changed.iter().filter(|(_, done)| **done == 0).map(|(name, _)| *name).collect();
    // No package here has 64 tokens, or anything that nobody uses.
    assert_eq!(idle, ["eliminate_dead_code", "reshape_mlp_8x8"]);
}

#[test]
fn all_passes_together_keep_it_too() {
    for name in ["block", "decoder", "operations", "quantized", "stateful"] {
        let (before, calls) = (draft(name), calls(name));
        let mut drafts = vec![before.clone()];
        for each in PASSES.iter().filter(|pass| pass.default) {
            let applied = drafts.into_iter().flat_map(|d| d.apply(each, &OPTIONS).unwrap().0);
            drafts = applied.collect();
        }
        for (precision, tolerance) in [(Precision::F32, 2e-3), (Precision::F16, 4e-3)] {
            let expected = results(std::slice::from_ref(&before), &calls, precision);
            let found = results(&drafts, &calls, precision);
            let difference = difference(&expected, &found, &outputs(&before));
            assert!(difference <= tolerance, "{name}, {precision:?}: off by {difference}");
        }
    }
}

#[test]
fn a_layer_of_pytorch_comes_to_the_neural_engine() {
    let rewritten = |name: &str| {
        let mut drafts = vec![draft(name)];
        for each in PASSES.iter().filter(|pass| pass.default) {
            let applied = drafts.into_iter().flat_map(|d| {
                let options = Options { min_queries: 3, query_divider: 2, ..Options::default() };
                d.apply(each, &options).unwrap().0
            });
            drafts = applied.collect();
        }
        drafts.remove(0)
    };
    let report = |draft: &Draft| Report::of(&draft.package().unwrap());
    let kinds = |draft: &Draft, kind: &str| {
        let ops = &draft.model().program.functions["main"].body.ops;
        ops.iter().filter(|op| op.kind == kind).count()
    };
    // Powers and attention in one operation leave it; products and a softmax do not.
    let (before, after) = (draft("block"), rewritten("block"));
    let off = |draft: &Draft| {
        let report = report(draft);
        let ops = report.functions[0].ops.iter().filter(|op| op.unit != Unit::NeuralEngine);
        ops.map(|op| op.kind.clone()).collect::<Vec<_>>()
    };
    assert_eq!(off(&before), ["pow", "scaled_dot_product_attention", "pow"]);
    assert_eq!(off(&after), [""; 0]);
    assert_eq!((kinds(&after, "linear"), kinds(&after, "conv")), (0, 5));
    assert_eq!((kinds(&after, "add"), kinds(&after, "softmax")), (2 + 2, 2));
    // Four states of 20 places and 12 features are two of 32 and 32.
    let (before, after) = (draft("decoder"), rewritten("decoder"));
    assert_eq!((report(&before).least_share(), report(&after).least_share()), (0.0, 1.0));
    let states = &after.model().functions[0].states;
    let names: Vec<_> = states.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["key_cache", "value_cache"]);
    let function = &after.model().program.functions["main"];
    assert!(function.states().all(|(_, ty)| ty.shape == [2, 2, 32, 32]));
    // Each operation that is made in the place of another is written and read as before.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decoder.mlpackage");
    after.write(&path).unwrap();
    assert_eq!(Package::open(&path).unwrap().model.program.functions.len(), 1);
}

#[test]
fn passes_are_known_by_their_names() {
    for each in &PASSES {
        assert_eq!(pass(each.name).unwrap().about, each.about);
    }
    assert!(pass("nothing").is_none());
}
