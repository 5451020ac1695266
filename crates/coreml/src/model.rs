//! A model file: a program and the description of its functions.
//!
//! Fields of the description that are not understood, such as images' colour layouts, are kept as they
//! are; those of the program are refused (see [`mil`](crate::mil)).

mod features;
mod varying;

use std::collections::BTreeMap;

pub use features::{Array, ArrayType, Feature, FeatureKind, Metadata};

use crate::mil::varying::Varying;
use crate::mil::{Function, Program, TensorType, proto};
use crate::wire::{Field, Reader, Writer};
use crate::{Error, Problem, Result};

/// The specification that [`OPSET`](crate::mil::OPSET) goes with.
const SPECIFICATION: i32 = 9;
/// The function of a package that has one.
const MAIN: &str = "main";

/// The content of `model.mlmodel`.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Version of the specification: 9 for iOS 18.
    pub specification: i32,
    /// What is said of each function. A model that names no default function has one, `main`.
    pub functions: Vec<FunctionDescription>,
    /// The function that is meant if none is asked for, in models of several.
    pub default_function: Option<String>,
    /// What is said of the model.
    pub metadata: Metadata,
    /// What is computed.
    pub program: Program,
    /// Fields of the model and of its description that are not understood.
    unknown: [Vec<u8>; 2],
}

/// The inputs, outputs and states of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionDescription {
    /// The function's name.
    pub name: String,
    /// Its inputs but for states.
    pub inputs: Vec<Feature>,
    /// Its outputs.
    pub outputs: Vec<Feature>,
    /// Its states.
    pub states: Vec<Feature>,
    /// Fields that are not understood.
    unknown: Vec<u8>,
}

impl FunctionDescription {
    /// The description of a function.
    ///
    /// # Errors
    /// If a tensor of its has a type that cannot cross its border.
    pub fn of(name: &str, function: &Function) -> Result<FunctionDescription> {
        let feature = |(name, ty): (&str, &TensorType), kind: fn(Array) -> FeatureKind| {
            let array = Array::of(ty).ok_or_else(|| {
                let text = format!("{ty} cannot be an input or output; fp16, fp32 and int32 can");
                Error::Invalid(vec![Problem { place: name.to_owned(), text }])
            })?;
            Ok(Feature::new(name, kind(array)))
        };
        let all = |features: Vec<(&str, &TensorType)>, kind| -> Result<Vec<Feature>> {
            features.into_iter().map(|named| feature(named, kind)).collect()
        };
        Ok(FunctionDescription {
            name: name.to_owned(),
            inputs: all(function.tensor_inputs().collect(), FeatureKind::Array)?,
            outputs: all(function.outputs().collect(), FeatureKind::Array)?,
            states: all(function.states().collect(), FeatureKind::State)?,
            unknown: Vec::new(),
        })
    }

    /// Takes over what `old` says of features that are the same here.
    pub(crate) fn keep_of(&mut self, old: &FunctionDescription) {
        self.unknown.clone_from(&old.unknown);
        let lists = [
            (&mut self.inputs, &old.inputs),
            (&mut self.outputs, &old.outputs),
            (&mut self.states, &old.states),
        ];
        for (features, old) in lists {
            for feature in features {
                if let Some(same) = old.iter().find(|old| old.is_same(feature)) {
                    *feature = same.clone();
                }
            }
        }
    }

    fn read(field: &Field<'_>) -> Result<FunctionDescription> {
        let mut function = FunctionDescription::default();
        let mut reader = field.message("FunctionDescription")?;
        while let Some(field) = reader.next()? {
            match field.number {
                1 => function.name = field.string()?,
                2 => function.inputs.push(Feature::read(&field)?),
                3 => function.outputs.push(Feature::read(&field)?),
                6 => function.states.push(Feature::read(&field)?),
                _ => function.unknown.extend_from_slice(field.raw),
            }
        }
        Ok(function)
    }

    /// Writes the features under the numbers that their kinds have in the message around them. Outputs
    /// of varying shape have none.
    fn write_features(
        &self,
        [inputs, outputs, states]: [u32; 3],
        varying: Option<&Varying>,
        w: &mut Writer,
    ) {
        let open = |feature: &Feature| {
            let varies = varying.is_some_and(|varying| varying.contains_key(&feature.name));
            if varies { feature.without_shape() } else { feature.clone() }
        };
        let results: Vec<Feature> = self.outputs.iter().map(open).collect();
        let lists = [(inputs, &self.inputs), (outputs, &results), (states, &self.states)];
        for (number, features) in lists {
            for feature in features {
                w.message(number, |w| feature.write(w));
            }
        }
        w.raw(&self.unknown);
    }

    /// Checks the features against a function's inputs, outputs and states.
    fn check(&self, function: &Function, problems: &mut Vec<Problem>) {
        let mut check = |what: &str, features: &[Feature], wanted: Vec<(&str, &TensorType)>| {
            let place = |name: &str| format!("{}/{name}", self.name);
            for (name, ty) in &wanted {
                let found: Vec<_> = features.iter().filter(|f| f.name == *name).collect();
                let text = match found[..] {
                    [] => format!("the description lacks this {what}"),
                    [feature] => match &feature.kind {
                        FeatureKind::Array(array) if what != "state" && array.matches(ty) => {
                            continue;
                        }
                        FeatureKind::State(array)
                            if what == "state"
                                && array.dtype == ArrayType::Float16
                                && array.matches(ty) =>
                        {
                            continue;
                        }
                        _ => format!("the description of this {what} does not match {ty}"),
                    },
                    _ => format!("the description has this {what} twice"),
                };
                problems.push(Problem { place: place(name), text });
            }
            for feature in features {
                if !wanted.iter().any(|(name, _)| *name == feature.name) {
                    let text = format!("the description has this {what}, the function does not");
                    problems.push(Problem { place: place(&feature.name), text });
                }
            }
        };
        check("input", &self.inputs, function.tensor_inputs().collect());
        check("output", &self.outputs, function.outputs().collect());
        check("state", &self.states, function.states().collect());
    }
}

impl Model {
    /// The model of a program, each function described as it is. A program with more functions than
    /// `main` needs a default.
    ///
    /// # Errors
    /// If the program breaks a rule (see [`Model::verify`]).
    pub fn new(program: Program, default_function: Option<&str>) -> Result<Model> {
        let described = program.functions.iter();
        let functions = described.map(|(name, f)| FunctionDescription::of(name, f));
        let model = Model {
            specification: SPECIFICATION,
            functions: functions.collect::<Result<_>>()?,
            default_function: default_function.map(str::to_owned),
            metadata: Metadata::default(),
            program,
            unknown: Default::default(),
        };
        model.verify()?;
        Ok(model)
    }

    /// Checks the program by the rules of MIL and the description against it.
    ///
    /// # Errors
    /// [`Error::Invalid`] with everything that is wrong.
    pub fn verify(&self) -> Result<()> {
        let mut problems = match crate::mil::verify(&self.program) {
            Err(Error::Invalid(problems)) => problems,
            other => other.map(|()| Vec::new())?,
        };
        let mut report = |place: &str, text: String| {
            problems.push(Problem { place: place.to_owned(), text });
        };
        let names: Vec<&str> = self.functions.iter().map(|f| f.name.as_str()).collect();
        match &self.default_function {
            None if names != [MAIN] => {
                report("description", format!("functions {names:?} without a default"));
            }
            Some(_) if self.specification < SPECIFICATION => {
                report("description", format!("functions in specification {}", self.specification));
            }
            Some(name) if !names.contains(&name.as_str()) => {
                report("description", format!("the default function {name:?} is not there"));
            }
            _ => {}
        }
        let mut states: BTreeMap<&str, &TensorType> = BTreeMap::new();
        for (name, function) in &self.program.functions {
            let version = 6 + ["CoreML5", "CoreML6", "CoreML7", "CoreML8", "CoreML9"]
                .iter()
                .position(|opset| *opset == function.opset)
                .unwrap_or_default() as i32;
            if version > self.specification {
                let text = format!("{} in specification {}", function.opset, self.specification);
                report(name, text);
            }
            for (state, ty) in function.states() {
                if *states.entry(state).or_insert(ty) != ty {
                    report(&format!("{name}/{state}"), "a state of two types".into());
                }
            }
        }
        let mut sorted = names.clone();
        sorted.sort_unstable();
        if !sorted.iter().eq(self.program.functions.keys()) {
            report("description", format!("it describes {sorted:?}, the program has others"));
        }
        for description in &self.functions {
            if let Some(function) = self.program.functions.get(&description.name) {
                description.check(function, &mut problems);
                description.check_shapes(function, &mut problems);
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(Error::Invalid(problems)) }
    }

    /// Reads a model file. What it holds is not [verified](Model::verify).
    ///
    /// # Errors
    /// If the bytes are damaged, or no ML Program, or of a later format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model> {
        let mut specification = 0;
        let mut program = None;
        let mut unknown = <[Vec<u8>; 2]>::default();
        let mut description = Vec::new();
        let mut reader = Reader::new(bytes, "Model");
        while let Some(field) = reader.next()? {
            match field.number {
                1 => specification = field.int32()?,
                2 => description.push(field),
                502 => program = Some(field),
                // Between 200 and 3000 lie the other kinds of models.
                200..=3000 => {
                    return Err(Error::Unsupported {
                        what: "a model that is no ML Program".into(),
                        instead: "convert the original model to an ML Program".into(),
                    });
                }
                _ => unknown[0].extend_from_slice(field.raw),
            }
        }
        let program = program.ok_or_else(|| reader.error("has no program"))?;
        let program = proto::read_program(program.message("Program")?)?;
        let (mut functions, mut default_function) = (Vec::new(), None);
        let mut main = FunctionDescription { name: MAIN.into(), ..Default::default() };
        let mut metadata = Metadata::default();
        for field in description {
            let mut reader = field.message("ModelDescription")?;
            while let Some(field) = reader.next()? {
                match field.number {
                    1 => main.inputs.push(Feature::read(&field)?),
                    10 => main.outputs.push(Feature::read(&field)?),
                    13 => main.states.push(Feature::read(&field)?),
                    20 => functions.push(FunctionDescription::read(&field)?),
                    21 => default_function = Some(field.string()?).filter(|name| !name.is_empty()),
                    100 => metadata = Metadata::read(&field)?,
                    _ => unknown[1].extend_from_slice(field.raw),
                }
            }
        }
        let nothing = main.inputs.is_empty() && main.outputs.is_empty() && main.states.is_empty();
        match (default_function.is_some() || !functions.is_empty(), nothing) {
            (false, _) => functions.push(main),
            (true, true) => {}
            (true, false) => {
                return Err(Error::malformed(
                    "it describes functions and features outside of them",
                ));
            }
        }
        let mut model =
            Model { specification, functions, default_function, metadata, program, unknown };
        model.settle()?;
        Ok(model)
    }

    /// The bytes of the model file. Equal models have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let varying = self.varying();
        w.number(1, self.specification as u64);
        w.message(2, |w| {
            match &self.default_function {
                None => {
                    for function in &self.functions {
                        function.write_features([1, 10, 13], varying.get(&function.name), w);
                    }
                }
                Some(name) => {
                    for function in &self.functions {
                        w.message(20, |w| {
                            w.string(1, &function.name);
                            function.write_features([2, 3, 6], varying.get(&function.name), w);
                        });
                    }
                    w.string(21, name);
                }
            }
            if self.metadata != Metadata::default() {
                w.message(100, |w| self.metadata.write(w));
            }
            w.raw(&self.unknown[1]);
        });
        w.message(502, |w| proto::write_program(&self.program, &varying, w));
        w.raw(&self.unknown[0]);
        w.finish()
    }
}
