//! Packages made by coremltools, in `tests/golden`: read, checked, run, written again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision, Tensor, Values};
use baton_coreml::mil::Program;
use baton_coreml::{Model, Package};
use baton_cpu::{Isa, Pool};
use serde_json::Value as Json;

/// Rounding to half precision, once or twice more than there.
const TOLERANCE: f32 = 2e-3;

fn packages() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "mlpackage")).collect();
    found.sort();
    assert_eq!(found.len(), 6);
    found
}

fn tensor(json: &Json) -> Tensor {
    let list = |key: &str| json.get(key).map(|list| list.as_array().expect("a list").clone());
    let shape: Vec<usize> =
        list("shape").unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
    if let Some(values) = list("floats") {
        return Tensor::floats(&shape, values.iter().map(|v| v.as_f64().unwrap() as f32).collect());
    }
    if let Some(values) = list("ints") {
        return Tensor::ints(&shape, values.iter().map(|v| v.as_i64().unwrap() as i32).collect());
    }
    let values = list("bools").expect("elements");
    Tensor::bools(&shape, values.iter().map(|v| v.as_bool().unwrap()).collect())
}

fn check(what: &str, found: &Tensor, expected: &Tensor) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    match (found.values(), expected.values()) {
        (Values::Floats(found), Values::Floats(expected)) => {
            let largest = expected.iter().fold(1f32, |m, v| m.max(v.abs()));
            for (i, (f, e)) in found.iter().zip(expected.iter()).enumerate() {
                let difference = (f - e).abs();
                assert!(difference <= TOLERANCE * largest, "{what}: element {i} is {f}, not {e}");
            }
        }
        (found, expected) => assert_eq!(found, expected, "{what}"),
    }
}

#[test]
fn packages_of_coremltools_compute_what_coremltools_says() {
    let pool = Arc::new(Pool::new(2, Isa::detect()).unwrap());
    for path in packages() {
        let package = Package::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.file_stem().unwrap().to_string_lossy();
        let text = std::fs::read(path.with_extension("json")).unwrap();
        let golden: Json = serde_json::from_slice(&text).unwrap();
        for precision in [Precision::F32, Precision::F16] {
            let interpreter = Interpreter::new(&package, precision, pool.clone()).unwrap();
            let mut states = interpreter.states("main").unwrap();
            for (i, run) in golden["runs"].as_array().unwrap().iter().enumerate() {
                let inputs = run["inputs"].as_object().unwrap();
                let inputs: Vec<(&str, Tensor)> =
                    inputs.iter().map(|(name, json)| (name.as_str(), tensor(json))).collect();
                let found = match package.model.varies() {
                    false => interpreter.run("main", &inputs, &mut states),
                    // Each call with its own one of several shapes.
                    true => {
                        let (input, tensor) = &inputs[0];
                        let fixed = package.with_shape("main", input, tensor.shape()).unwrap();
                        let fixed = Interpreter::new(&fixed, precision, pool.clone()).unwrap();
                        fixed.run("main", &inputs, &mut states)
                    }
                };
                let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
                let expected = run["outputs"].as_object().unwrap();
                assert_eq!(found.len(), expected.len());
                for (output, json) in expected {
                    let what = format!("{name} in {precision:?}, call {i}, {output}");
                    check(&what, &found[output], &tensor(json));
                }
            }
        }
    }
}

#[test]
fn packages_of_coremltools_are_the_same_when_written_again() {
    for path in packages() {
        let bytes = std::fs::read(path.join("Data/com.apple.CoreML/model.mlmodel")).unwrap();
        let model = Model::from_bytes(&bytes).unwrap();
        let again = Model::from_bytes(&model.to_bytes()).unwrap();
        assert_eq!(again, model, "{}", path.display());
        let parsed: Program = model.program.to_string().parse().unwrap();
        assert_eq!(parsed, model.program, "{}", path.display());
    }
}
