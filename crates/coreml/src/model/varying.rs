//! Models whose inputs may have one of several shapes: see [`varying`](crate::mil::varying).

use std::collections::BTreeMap;

use super::features::MAX_SHAPES;
use super::{FeatureKind, FunctionDescription, Model};
use crate::mil::Function;
use crate::mil::varying::{self, Shapes, Varying};
use crate::{Error, Problem, Result};

impl FunctionDescription {
    /// The shapes of inputs that have several, for each of them: the `k`-th of all go together.
    fn shapes(&self) -> Vec<Shapes> {
        let several = self.inputs.iter().filter_map(|input| match &input.kind {
            FeatureKind::Array(array) if !array.shapes.is_empty() => Some((&input.name, array)),
            _ => None,
        });
        let several: Vec<_> = several.collect();
        let most = several.iter().map(|(_, array)| array.shapes.len()).max().unwrap_or(0);
        let at = |k: usize| {
            let shape = |(name, array): &(&String, &super::Array)| {
                ((*name).clone(), array.shapes[k.min(array.shapes.len() - 1)].clone())
            };
            several.iter().map(shape).collect()
        };
        (0..most).map(at).collect()
    }

    /// Checks that the function can be had in each of its inputs' shapes.
    pub(super) fn check_shapes(&self, function: &Function, problems: &mut Vec<Problem>) {
        for input in &self.inputs {
            let FeatureKind::Array(array) = &input.kind else { continue };
            let mut report = |text: &str| {
                let place = format!("{}/{}", self.name, input.name);
                problems.push(Problem { place, text: text.to_owned() });
            };
            if !array.shapes.is_empty() && !array.shapes.contains(&array.shape) {
                report("its shape is not among those that it may have");
            }
            let fits = |s: &Vec<usize>| s.len() == array.shape.len() && !s.contains(&0);
            if !array.shapes.iter().all(fits) {
                report("a shape that it may have is empty, or of another rank than its own");
            }
        }
        for shapes in self.shapes() {
            if let Err(Error::Invalid(found)) = varying::with_shapes(function, &shapes) {
                let place = |at: &str| format!("{}/{at} with inputs of {shapes:?}", self.name);
                let moved = |p: Problem| Problem { place: place(&p.place), text: p.text };
                problems.extend(found.into_iter().map(moved));
            }
        }
    }
}

impl Model {
    /// Lets an input of a function have any of some shapes, of which its own is one.
    ///
    /// # Errors
    /// If there is no such input, the function cannot be had in one of them, or they are more than 128.
    pub fn let_vary(&mut self, function: &str, input: &str, shapes: &[Vec<usize>]) -> Result<()> {
        if shapes.len() > MAX_SHAPES {
            let text = format!("{} shapes, more than {MAX_SHAPES}", shapes.len());
            return Err(invalid(function, input, &text));
        }
        let mut model = self.clone();
        let functions = model.functions.iter_mut().filter(|f| f.name == function);
        let features = functions.flat_map(|f| &mut f.inputs).filter(|f| f.name == input);
        let mut arrays = features.filter_map(|feature| match &mut feature.kind {
            FeatureKind::Array(array) => Some(array),
            _ => None,
        });
        let Some(array) = arrays.next() else {
            return Err(invalid(function, input, "there is no such input"));
        };
        array.shapes = shapes.to_vec();
        drop(arrays);
        model.verify()?;
        *self = model;
        Ok(())
    }

    /// The model with one of the shapes that an input of a function may have, and no other.
    ///
    /// # Errors
    /// If it may not have that shape.
    pub fn with_shape(&self, function: &str, input: &str, shape: &[usize]) -> Result<Model> {
        let description = self.functions.iter().find(|f| f.name == function);
        let mut all = description.map(FunctionDescription::shapes).unwrap_or_default().into_iter();
        let found = all.find(|shapes| shapes.get(input).is_some_and(|own| own == shape));
        let (Some(shapes), Some(old)) = (found, self.program.functions.get(function)) else {
            let text = format!("it cannot have the shape {shape:?}");
            return Err(Error::Invalid(vec![Problem {
                place: format!("{function}/{input}"),
                text,
            }]));
        };
        let mut model = self.clone();
        let fixed = varying::with_shapes(old, &shapes)?;
        for description in model.functions.iter_mut().filter(|f| f.name == function) {
            *description = FunctionDescription::of(function, &fixed)?;
        }
        model.program.functions.insert(function.to_owned(), fixed);
        model.verify()?;
        Ok(model)
    }

    /// Whether an input of a function may have one of several shapes.
    pub fn varies(&self) -> bool {
        self.functions.iter().any(|function| !function.shapes().is_empty())
    }

    /// Dimensions of unknown size in the file, by function.
    pub(super) fn varying(&self) -> BTreeMap<String, Varying> {
        let of = |description: &FunctionDescription| {
            let function = self.program.functions.get(&description.name)?;
            let shapes = description.shapes();
            let forms = shapes.iter().map(|shapes| varying::with_shapes(function, shapes).ok());
            Some((description.name.clone(), varying::varying(forms)?))
        };
        self.functions.iter().filter_map(of).collect()
    }

    /// Gives dimensions that a file leaves open the size that they have if inputs have the shape of the
    /// description.
    pub(super) fn settle(&mut self) -> Result<()> {
        for (name, function) in &mut self.program.functions {
            if !varying::is_open(function) {
                continue;
            }
            let mut described = self.functions.iter_mut().filter(|f| f.name == *name);
            let mut described = described.next();
            let inputs = described.as_deref().into_iter().flat_map(|f| &f.inputs);
            let shapes = inputs.filter_map(|input| match &input.kind {
                FeatureKind::Array(array) if !array.shapes.is_empty() => {
                    Some((input.name.clone(), array.shape.clone()))
                }
                _ => None,
            });
            match varying::with_shapes(function, &shapes.collect()) {
                Ok(settled) if !varying::is_open(&settled) => {
                    *function = settled;
                    let outputs = described.as_mut().into_iter().flat_map(|f| &mut f.outputs);
                    for output in outputs {
                        let ty = function.outputs().find(|(name, _)| *name == output.name);
                        if let (FeatureKind::Array(array), Some((_, ty))) = (&mut output.kind, ty)
                            && array.shape.is_empty()
                        {
                            array.shape.clone_from(&ty.shape);
                        }
                    }
                }
                _ => {
                    return Err(Error::Unsupported {
                        what: "a tensor with a dimension of unknown size".into(),
                        instead: "convert the model with fixed input shapes, or a list of them"
                            .into(),
                    });
                }
            }
        }
        Ok(())
    }
}

fn invalid(function: &str, input: &str, text: &str) -> Error {
    let place = format!("{function}/{input}");
    Error::Invalid(vec![Problem { place, text: text.to_owned() }])
}
