//! The interpreter as a runtime: calls are over when they have begun, and arrays share their elements.

use std::collections::BTreeMap;

use half::slice::HalfFloatSliceExt;

use super::{ArrayId, Call, Job, Place, Rows, RowsMut, Runtime, Slots, StateId};
use crate::interpret::{Extreme, Interpreter, States, Tensor};
use crate::mil::TensorType;
use crate::{Error, Result, memory};

/// Runs packages in interpreters.
#[derive(Debug)]
pub struct Interpreted {
    packages: Vec<Interpreter>,
    arrays: Slots<Array>,
    states: Slots<States>,
}

/// An array, whose elements are there once somebody has set them.
#[derive(Debug)]
struct Array {
    ty: TensorType,
    tensor: Option<Tensor>,
}

fn no_rows() -> Error {
    Error::malformed("a tensor has not the rows that are wanted of it")
}

/// The zeros of an array that nobody has set.
fn zeros(ty: &TensorType) -> Result<Tensor> {
    Tensor::zeros(ty).ok_or_else(|| Error::Unsupported {
        what: format!("{ty}, for which there is no memory,"),
        instead: "run it on a machine with more memory, or compile the model for a shorter context"
            .to_owned(),
    })
}

/// Bytes of an array once its elements are there.
fn bytes(ty: &TensorType) -> u64 {
    memory::bytes(size_of::<f32>() as u64, &ty.shape)
}

fn package(packages: &[Interpreter], i: usize) -> Result<&Interpreter> {
    packages.get(i).ok_or_else(|| Error::malformed(format!("there is no package {i}")))
}

impl Interpreted {
    /// The runtime of packages by the interpreters that run them.
    pub fn new(packages: Vec<Interpreter>) -> Interpreted {
        Interpreted { packages, arrays: Slots::default(), states: Slots::default() }
    }

    /// What the arrays of a call's inputs hold.
    fn inputs<'a>(&self, call: &Call<'a>) -> Result<Vec<(&'a str, Tensor)>> {
        let tensor = |&(name, array): &(&'a str, ArrayId)| Ok((name, self.get(array)?));
        call.inputs.iter().map(tensor).collect()
    }

    fn store(&mut self, call: &Call<'_>, mut outputs: BTreeMap<String, Tensor>) -> Result<()> {
        for &(name, array) in &call.outputs {
            let tensor = outputs
                .remove(name)
                .ok_or_else(|| Error::malformed(format!("a function has no output {name:?}")))?;
            self.set(array, tensor)?;
        }
        Ok(())
    }
}

impl Runtime for Interpreted {
    fn array(&mut self, ty: &TensorType) -> Result<ArrayId> {
        let promised = self.arrays.values().filter(|array| array.tensor.is_none());
        let promised = promised.map(|array| bytes(&array.ty)).fold(0, u64::saturating_add);
        let needed = promised.saturating_add(bytes(ty));
        memory::check(format_args!("an array {ty}"), needed, memory::available())?;
        Ok(ArrayId(self.arrays.add(Array { ty: ty.clone(), tensor: None })))
    }

    fn release(&mut self, array: ArrayId) {
        self.arrays.remove(array.0);
    }

    fn state(&mut self, package: usize, function: &str) -> Result<StateId> {
        let states = self::package(&self.packages, package)?.states(function)?;
        Ok(StateId(self.states.add(states)))
    }

    fn release_state(&mut self, state: StateId) {
        self.states.remove(state.0);
    }

    fn set(&mut self, array: ArrayId, tensor: Tensor) -> Result<()> {
        let array = self.arrays.get_mut(array.0)?;
        if !tensor.is(&array.ty) {
            let (found, ty) = (tensor.shape(), &array.ty);
            return Err(Error::malformed(format!("a tensor {found:?} is set where a {ty} is")));
        }
        array.tensor = Some(tensor);
        Ok(())
    }

    fn get(&self, array: ArrayId) -> Result<Tensor> {
        let Array { ty, tensor } = self.arrays.get(array.0)?;
        tensor.clone().map_or_else(|| zeros(ty), Ok)
    }

    fn set_rows(&mut self, place: Place<'_>, rows: &mut Rows<'_>) -> Result<()> {
        let tensor = match place {
            Place::Array(array) => {
                let Array { ty, tensor } = self.arrays.get_mut(array.0)?;
                match tensor {
                    Some(tensor) => tensor,
                    None => tensor.insert(zeros(ty)?),
                }
            }
            Place::State(state, name) => {
                self.states.get_mut(state.0)?.get_mut(name).ok_or_else(no_rows)?
            }
        };
        let width = tensor.shape().last().copied().unwrap_or(1);
        let floats = tensor.floats_mut().ok_or_else(no_rows)?;
        for (row, values) in rows {
            let found = floats.get_mut(row * width..(row + 1) * width);
            let to = found.and_then(|to| to.get_mut(..values.len())).ok_or_else(no_rows)?;
            values.convert_to_f32_slice(to);
        }
        Ok(())
    }

    fn get_rows(&self, place: Place<'_>, rows: &mut RowsMut<'_>) -> Result<()> {
        let tensor = match place {
            Place::Array(array) => &self.get(array)?,
            Place::State(state, name) => self.states.get(state.0)?.get(name).ok_or_else(no_rows)?,
        };
        let width = tensor.shape().last().copied().unwrap_or(1);
        let floats = tensor.as_floats().ok_or_else(no_rows)?;
        for (row, to) in rows {
            let found = floats.get(row * width..(row + 1) * width);
            let from = found.and_then(|from| from.get(..to.len())).ok_or_else(no_rows)?;
            to.convert_from_f32_slice(from);
        }
        Ok(())
    }

    fn start(&mut self, calls: &[Call<'_>]) -> Result<Job> {
        let Some(first) = calls.first() else { return Ok(Job(0)) };
        match (first.state, calls) {
            (Some(state), [call]) => {
                let inputs = self.inputs(call)?;
                let package = package(&self.packages, call.package)?;
                let states = self.states.get_mut(state.0)?;
                let outputs = package.run(call.function, &inputs, states);
                self.store(call, outputs?)?;
            }
            (Some(_), _) => return Err(Error::malformed("several calls have one state")),
            (None, _) => {
                let inputs: Vec<_> =
                    calls.iter().map(|call| self.inputs(call)).collect::<Result<_>>()?;
                let outputs =
                    package(&self.packages, first.package)?.run_all(first.function, &inputs)?;
                for (call, outputs) in calls.iter().zip(outputs) {
                    self.store(call, outputs)?;
                }
            }
        }
        Ok(Job(0))
    }

    fn wait(&mut self, _: Job) -> Result<()> {
        Ok(())
    }

    fn together(&self) -> usize {
        usize::MAX
    }

    fn extremes(&self) -> Vec<Extreme> {
        self.packages.iter().flat_map(Interpreter::extremes).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_cpu::{Isa, Pool};
    use half::f16;

    use super::*;
    use crate::interpret::Precision;
    use crate::mil::DataType;
    use crate::{Blobs, Package, in_memory};

    fn runtime() -> Interpreted {
        let mut blobs = in_memory();
        let model = crate::testing::example(&mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        let package = Package::new(model, Some(blobs)).unwrap();
        let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
        Interpreted::new(vec![Interpreter::new(&package, Precision::F32, pool).unwrap()])
    }

    #[test]
    fn states_of_some_packages_are_given_back_if_another_has_none() {
        let mut runtime = runtime();
        assert!(super::super::states(&mut runtime, [0, 0, 1].into_iter(), "decode").is_err());
        assert_eq!(runtime.states.values().count(), 0);
        let made = super::super::states(&mut runtime, [0, 0].into_iter(), "decode").unwrap();
        assert_eq!((made.len(), runtime.states.values().count()), (2, 2));
    }

    #[test]
    fn arrays_that_would_not_be_in_memory_together_are_refused_before_there_is_any() {
        let mut runtime = runtime();
        let half = |n: u64| TensorType::new(DataType::Float16, &[usize::try_from(n).unwrap()]);
        // In single precision three quarters of what there is.
        let large = half(memory::available() / 16 * 3);
        let first = runtime.array(&large).unwrap();
        let error = runtime.array(&large).unwrap_err().to_string();
        assert!(
            error.contains("MiB are available") && error.contains("shorter context"),
            "{error}"
        );
        runtime.release(first);
        runtime.array(&large).unwrap();
        let endless = TensorType::new(DataType::Float16, &[usize::MAX / 2, 4]);
        assert!(runtime.array(&endless).is_err());
    }

    #[test]
    fn a_call_of_a_package_that_is_not_there_leaves_the_state_as_it_is() {
        let mut runtime = runtime();
        let state = runtime.state(0, "decode").unwrap();
        let place = Place::State(state, "cache");
        let row = [f16::from_f32(3.0); 2];
        runtime.set_rows(place, &mut std::iter::once((1, &row[..]))).unwrap();
        let call = Call {
            package: 1,
            function: "decode",
            inputs: Vec::new(),
            outputs: Vec::new(),
            state: Some(state),
        };
        let error = runtime.start(&[call]).unwrap_err().to_string();
        assert!(error.contains("no package 1"), "{error}");
        let mut found = [f16::ZERO; 2];
        runtime.get_rows(place, &mut std::iter::once((1, &mut found[..]))).unwrap();
        assert_eq!(found, row);
    }
}
