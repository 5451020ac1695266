//! The functions of a package with their tensors, opened here or compiled by Core ML.
//!
//! What is compiled has its description in `metadata.json`, from which alone it is known here.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::order::REMEDY;
use super::origin::Origin;
use super::{MOST_TOKENS, bounded_tensor};
use crate::layout::names::{COMPILED, PACKAGE};
use crate::mil::{DataType, TensorType};
use crate::package::{Package, read};
use crate::runtime::{ComputeUnits, Source};
use crate::{Error, FeatureKind, Result, files};

/// The description of what was compiled.
const METADATA: &str = "metadata.json";
/// What the one function of a package is called that has no other.
const MAIN: &str = "main";
/// No description is longer: it names features, not operations.
const MAX_METADATA: u64 = 16 << 20;
/// Dimensions of a tensor, in Core ML.
const MOST_DIMENSIONS: usize = 5;

/// The functions of a package by name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Signature {
    /// The name of its folder.
    pub file: String,
    pub functions: BTreeMap<String, Features>,
    /// What it tells of its place among others.
    pub origin: Origin,
}

/// The tensors of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Features {
    pub inputs: BTreeMap<String, TensorType>,
    /// The shapes that an input may have, of those that have several.
    pub shapes: BTreeMap<String, Vec<Vec<usize>>>,
    pub outputs: BTreeMap<String, TensorType>,
    pub states: BTreeMap<String, TensorType>,
}

/// Opens the package of that name; if there is none, what was compiled of it.
///
/// # Errors
/// If neither is there, or it is damaged.
pub(super) fn open(folder: &Path, stem: &str) -> Result<(Source, Signature)> {
    let path = folder.join(format!("{stem}.{PACKAGE}"));
    if path.is_dir() {
        // Only files are read of it, however deep its links lead.
        files::below(&path)?;
        let package = Package::open(&path).map_err(|error| in_file(&path, error))?;
        let signature = Signature::of(&path, &package)?;
        return Ok((Source::Package(path, Box::new(package)), signature));
    }
    let compiled = folder.join(format!("{stem}.{COMPILED}"));
    if !compiled.is_dir() {
        let problem = format!("is not there, and no {stem}.{COMPILED} either; {REMEDY}");
        return Err(Error::Folder { path, problem });
    }
    let bytes = read(&compiled.join(METADATA), MAX_METADATA);
    let bytes = bytes.map_err(|error| in_file(&compiled, error))?;
    let malformed = |text: String| Error::Folder {
        path: compiled.join(METADATA),
        problem: format!("{text}; {REMEDY}"),
    };
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| malformed(e.to_string()))?;
    let functions = of_metadata(&value).map_err(malformed)?;
    let units = match functions.values().all(|features| features.states.is_empty()) {
        // Looking up rows and moving them is nothing for the Neural Engine.
        true if functions.values().any(|features| features.inputs.contains_key("input_ids")) => {
            ComputeUnits::Cpu
        }
        _ => ComputeUnits::CpuAndNeuralEngine,
    };
    let file = file_name(&compiled);
    let names = functions.keys().cloned().collect();
    let source = Source::Compiled { path: compiled, functions: names, units };
    Ok((source, Signature { file, functions, origin: origin(&value) }))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// An error with the package that it is of, and with what to do.
fn in_file(path: &Path, error: Error) -> Error {
    let of = |path: &Path, problem: String| Error::Folder { path: path.to_owned(), problem };
    match error {
        Error::Io { path, source } if source.kind() == ErrorKind::NotFound => {
            of(&path, format!("is missing; {REMEDY}"))
        }
        Error::Malformed { .. } | Error::Unsupported { .. } => of(path, error.to_string()),
        Error::Invalid(_) => of(path, format!("is damaged; {REMEDY}; {error}")),
        other => other,
    }
}

impl Signature {
    /// That of an open package.
    ///
    /// # Errors
    /// If a tensor is too large.
    pub fn of(path: &Path, package: &Package) -> Result<Signature> {
        let tensors = |list: Vec<(&str, &TensorType)>| -> BTreeMap<String, TensorType> {
            list.into_iter().map(|(name, ty)| (name.to_owned(), ty.clone())).collect()
        };
        let mut functions = BTreeMap::new();
        for (name, function) in &package.model.program.functions {
            let described = package.model.functions.iter().find(|f| f.name == *name);
            let shapes = described.into_iter().flat_map(|function| &function.inputs);
            let shapes = shapes.filter_map(|feature| match &feature.kind {
                FeatureKind::Array(array) if !array.shapes.is_empty() => {
                    Some((feature.name.clone(), array.shapes.clone()))
                }
                _ => None,
            });
            let features = Features {
                inputs: tensors(function.tensor_inputs().collect()),
                shapes: shapes.collect(),
                outputs: tensors(function.outputs().collect()),
                states: tensors(function.states().collect()),
            };
            features.check()?;
            functions.insert(name.clone(), features);
        }
        let user = &package.model.metadata.user;
        let notes = Origin::of_notes(user.iter().map(|(key, text)| (&key[..], &text[..])));
        let origin = notes.with_program(&package.model.program);
        Ok(Signature { file: file_name(path), functions, origin })
    }

    /// The function of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn function(&self, name: &str) -> Result<&Features> {
        self.functions.get(name).ok_or_else(|| self.wrong(format!("has no function {name:?}")))
    }

    /// An error of this package, which is not what belongs in its place.
    pub fn wrong(&self, problem: impl Display) -> Error {
        Error::Folder { path: self.file.clone().into(), problem: format!("{problem}; {REMEDY}") }
    }

    /// The shape of a tensor of this package that must be there in this type and with so many dimensions.
    ///
    /// # Errors
    /// If it is not.
    pub fn shape<'a, const N: usize>(
        &self,
        tensors: &'a BTreeMap<String, TensorType>,
        name: &str,
        dtype: DataType,
    ) -> Result<&'a [usize; N]> {
        let found = tensors.get(name).filter(|ty| ty.dtype == dtype);
        let shape = found.and_then(|ty| <&[usize; N]>::try_from(&ty.shape[..]).ok());
        shape.ok_or_else(|| {
            let wanted = format!("a tensor {name:?} of type {} and {N} dimensions", dtype.name());
            self.wrong(match tensors.get(name) {
                None => {
                    let names: Vec<&str> = tensors.keys().map(String::as_str).collect();
                    format!("lacks {wanted}; it has {}", names.join(", "))
                }
                Some(ty) => format!("has {name:?} as {ty}, not {wanted}"),
            })
        })
    }

    /// That a tensor has a shape.
    ///
    /// # Errors
    /// If it is not there, or of another.
    pub fn expect<const N: usize>(
        &self,
        tensors: &BTreeMap<String, TensorType>,
        name: &str,
        dtype: DataType,
        wanted: [usize; N],
    ) -> Result<()> {
        let found = self.shape::<N>(tensors, name, dtype)?;
        match *found == wanted {
            true => Ok(()),
            false => Err(self.wrong(format!("has {name:?} of shape {found:?}, not {wanted:?}"))),
        }
    }
}

impl Features {
    fn check(&self) -> Result<()> {
        let lists = [&self.inputs, &self.outputs, &self.states];
        for (name, ty) in lists.into_iter().flatten() {
            bounded_tensor(name, &ty.shape)?;
        }
        let shapes = self.shapes.iter();
        shapes
            .flat_map(|(name, all)| all.iter().map(move |s| (name, s)))
            .try_for_each(|(name, shape)| bounded_tensor(name, shape))
    }
}

/// What was noted in what was compiled.
fn origin(value: &Value) -> Origin {
    let notes = value.get(0).unwrap_or(value)["userDefinedMetadata"].as_object();
    let notes = notes.into_iter().flatten();
    Origin::of_notes(notes.filter_map(|(key, text)| Some((&key[..], text.as_str()?))))
}

fn of_metadata(value: &Value) -> std::result::Result<BTreeMap<String, Features>, String> {
    let model = value.get(0).unwrap_or(value);
    let mut functions = BTreeMap::new();
    for function in model["functions"].as_array().into_iter().flatten() {
        let name = function["name"].as_str().ok_or("has a function without a name")?;
        functions.insert(name.to_owned(), features(function)?);
    }
    if functions.is_empty() {
        functions.insert(MAIN.to_owned(), features(model)?);
    }
    Ok(functions)
}

fn features(function: &Value) -> std::result::Result<Features, String> {
    let mut features = Features::default();
    let lists = [
        ("inputSchema", &mut features.inputs),
        ("outputSchema", &mut features.outputs),
        ("stateSchema", &mut features.states),
    ];
    for (key, tensors) in lists {
        for feature in function[key].as_array().into_iter().flatten() {
            let name = feature["name"].as_str().ok_or("has a feature without a name")?;
            let ty = tensor(feature)
                .ok_or_else(|| format!("has a feature {name:?} that is no array"))?;
            tensors.insert(name.to_owned(), ty);
            // Lists are in texts.
            let several = feature["enumeratedShapes"].as_str().map(serde_json::from_str);
            let several = several.transpose().map_err(|error| error.to_string())?;
            features.shapes.extend(several.map(|shapes| (name.to_owned(), shapes)));
        }
    }
    features.check().map_err(|error| error.to_string())?;
    Ok(features)
}

/// The type of a feature. One whose shape is not known has none.
fn tensor(feature: &Value) -> Option<TensorType> {
    let dtype = match feature["dataType"].as_str()? {
        "Float16" => DataType::Float16,
        "Float32" => DataType::Float32,
        "Int32" => DataType::Int32,
        _ => return None,
    };
    let shape: Vec<usize> = serde_json::from_str(feature["shape"].as_str()?).ok()?;
    let fits = shape.len() <= MOST_DIMENSIONS && shape.iter().all(|&dim| dim <= MOST_TOKENS);
    fits.then(|| TensorType::new(dtype, &shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_what_was_compiled_are_known_by_its_metadata() {
        let text = r#"[{ "metadataOutputVersion": "3.0", "functions": [
            { "name": "infer", "inputSchema": [
                { "name": "hidden_states", "type": "MultiArray", "dataType": "Float16", "shape": "[1, 1, 64]" },
                { "name": "current_pos", "type": "MultiArray", "dataType": "Int32", "shape": "[1]" } ],
              "outputSchema": [
                { "name": "output_hidden_states", "type": "MultiArray", "dataType": "Float16", "shape": "[1, 1, 64]" } ],
              "stateSchema": [
                { "name": "model_model_kv_cache_0", "type": "State", "dataType": "Float16", "shape": "[4, 2, 32, 32]" } ] } ],
            "inputSchema": [] }]"#;
        let functions = of_metadata(&serde_json::from_str(text).unwrap()).unwrap();
        let infer = &functions["infer"];
        assert_eq!(infer.inputs["hidden_states"], TensorType::new(DataType::Float16, &[1, 1, 64]));
        assert_eq!(infer.states["model_model_kv_cache_0"].shape, [4, 2, 32, 32]);
        let single = r#"[{ "inputSchema": [{ "name": "input_ids", "dataType": "Int32", "shape": "[1, 1]",
            "hasShapeFlexibility": "1", "enumeratedShapes": "[[1, 1], [1, 64]]" }],
            "outputSchema": [{ "name": "hidden_states", "dataType": "Float16", "shape": "[]" }] }]"#;
        let functions = of_metadata(&serde_json::from_str(single).unwrap()).unwrap();
        let main = &functions[MAIN];
        assert_eq!(main.shapes["input_ids"], [[1, 1], [1, 64]]);
        assert!(main.outputs["hidden_states"].shape.is_empty());
        for bad in [
            r#"{ "inputSchema": [{ "name": "x", "dataType": "Image", "shape": "[1]" }] }"#,
            r#"{ "inputSchema": [{ "name": "x", "dataType": "Int32", "shape": "[1, -1]" }] }"#,
            r#"{ "inputSchema": [{ "name": "x", "dataType": "Int32", "shape": "[99999999, 99999999]" }] }"#,
            r#"{ "inputSchema": [{ "dataType": "Int32", "shape": "[1]" }] }"#,
            r#"{ "functions": [{ "inputSchema": [] }] }"#,
        ] {
            assert!(of_metadata(&serde_json::from_str(bad).unwrap()).is_err(), "{bad}");
        }
    }
}
