//! Functions that are loaded when they are first called, and their calls.

use std::collections::HashMap;
use std::path::Path;

use baton_coreml::interpret::{Tensor, Values};
use baton_coreml::mil::{DataType, TensorType};
use baton_coreml::runtime::{
    ArrayId, Call, Compiled, ComputeUnits, Job, Place, RowLayout, Rows, RowsMut, Runtime, Setup,
    Slots, StateId, with_fallback,
};
use baton_coreml::{Error, Result};
use block2::RcBlock;
use half::f16;
use half::slice::HalfFloatSliceExt;
use objc2::AnyThread;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2_core_ml::{
    MLDictionaryFeatureProvider, MLFeatureProvider, MLFeatureValue, MLModel, MLMultiArray,
    MLPredictionOptions, MLState,
};
use objc2_foundation::{NSDictionary, NSError, NSString};

use super::answer::{Answer, Shared, Told, failure, outcome};
use super::{array, configuration, failed, file_url};

/// The functions of compiled packages.
#[derive(Debug)]
pub(super) struct Models {
    packages: Vec<Compiled>,
    loaded: HashMap<(usize, String), Shared<MLModel>>,
    arrays: Slots<Array>,
    states: Slots<Retained<MLState>>,
    /// What the arrays of calls are bound to, made once for each set of them.
    bound: HashMap<Key, Bound>,
    running: Slots<Running>,
}

#[derive(Debug)]
struct Array {
    ty: TensorType,
    array: Shared<MLMultiArray>,
}

/// The arrays of a call.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    package: usize,
    function: String,
    arrays: Vec<ArrayId>,
}

/// Inputs and options of a call.
#[derive(Debug)]
struct Bound {
    inputs: Shared<MLDictionaryFeatureProvider>,
    options: Shared<MLPredictionOptions>,
}

/// A call that was begun.
#[derive(Debug)]
struct Running {
    told: Told<Shared<ProtocolObject<dyn MLFeatureProvider>>>,
    doing: String,
    outputs: Vec<(String, ArrayId)>,
    /// All that it uses, which nobody else may until it has ended.
    arrays: Vec<ArrayId>,
    state: Option<StateId>,
}

impl Models {
    pub(super) fn new(packages: Vec<Compiled>) -> Models {
        Models {
            packages,
            loaded: HashMap::new(),
            arrays: Slots::default(),
            states: Slots::default(),
            bound: HashMap::new(),
            running: Slots::default(),
        }
    }

    /// The model of a function, which is loaded if it is not yet.
    fn model(&mut self, package: usize, function: &str) -> Result<Retained<MLModel>> {
        let key = (package, function.to_owned());
        if let Some(Shared(model)) = self.loaded.get(&key) {
            return Ok(model.clone());
        }
        let compiled = self.packages.get(package);
        let found =
            compiled.and_then(|compiled| Some((&compiled.path, compiled.functions.get(function)?)));
        let (path, setup) = found
            .ok_or_else(|| failed(format!("load function {function:?}"), "there is none".into()))?;
        let model = loaded(path, function, setup)?;
        self.loaded.insert(key, Shared(model.clone()));
        Ok(model)
    }

    /// An array that no call uses.
    fn held(&self, array: ArrayId) -> Result<&Array> {
        if self.running.values().any(|running| running.arrays.contains(&array)) {
            return Err(failed("use an array".into(), "a call has not ended that uses it".into()));
        }
        self.arrays.get(array.0)
    }

    /// A state that no call uses.
    fn held_state(&self, state: StateId) -> Result<&MLState> {
        if self.running.values().any(|running| running.state == Some(state)) {
            return Err(failed("use a state".into(), "a call has not ended that uses it".into()));
        }
        Ok(self.states.get(state.0)?)
    }

    /// The arrays of a call as Core ML takes them.
    fn bind(
        &mut self,
        call: &Call<'_>,
    ) -> Result<(Retained<MLDictionaryFeatureProvider>, Retained<MLPredictionOptions>)> {
        let all = call.inputs.iter().chain(&call.outputs);
        let key = Key {
            package: call.package,
            function: call.function.to_owned(),
            arrays: all.map(|(_, array)| *array).collect(),
        };
        if let Some(Bound { inputs, options }) = self.bound.get(&key) {
            return Ok((inputs.0.clone(), options.0.clone()));
        }
        let names = |features: &[(&str, ArrayId)]| -> Vec<Retained<NSString>> {
            features.iter().map(|(name, _)| NSString::from_str(name)).collect()
        };
        let (mut values, mut backings) = (Vec::new(), Vec::new());
        for &(_, id) in &call.inputs {
            let array = &self.arrays.get(id.0)?.array.0;
            // SAFETY: the array is a valid object.
            let value = unsafe { MLFeatureValue::featureValueWithMultiArray(array) };
            values.push(value.into());
        }
        for &(_, id) in &call.outputs {
            backings.push(self.arrays.get(id.0)?.array.0.clone().into());
        }
        let inputs = dictionary(&names(&call.inputs), &values);
        let backings = dictionary(&names(&call.outputs), &backings);
        let doing = || format!("bind the inputs of {:?}", call.function);
        // SAFETY: names with values of the classes that are expected.
        let (inputs, options) = unsafe {
            let provider = MLDictionaryFeatureProvider::alloc();
            let inputs = MLDictionaryFeatureProvider::initWithDictionary_error(provider, &inputs)
                .map_err(|error| failed(doing(), failure(&error)))?;
            let options = MLPredictionOptions::new();
            options.setOutputBackings(&backings);
            (inputs, options)
        };
        let bound = Bound { inputs: Shared(inputs.clone()), options: Shared(options.clone()) };
        self.bound.insert(key, bound);
        Ok((inputs, options))
    }

    fn begin(&mut self, call: &Call<'_>) -> Result<Running> {
        let model = self.model(call.package, call.function)?;
        let (inputs, options) = self.bind(call)?;
        let all = call.inputs.iter().chain(&call.outputs);
        let arrays: Vec<ArrayId> = all.map(|(_, array)| *array).collect();
        arrays.iter().try_for_each(|&array| self.held(array).map(drop))?;
        let state = call.state.map(|state| self.held_state(state)).transpose()?;
        let (answer, told) = Answer::new();
        let handler = RcBlock::new(
            move |results: *mut ProtocolObject<dyn MLFeatureProvider>, error: *mut NSError| {
                // SAFETY: Core ML hands over a valid object or nil in each place.
                answer.tell(unsafe { outcome(results, error) }.map(Shared));
            },
        );
        let inputs = ProtocolObject::from_ref(&*inputs);
        // SAFETY: Core ML holds all that is bound until the call ends, and until then nobody else gets at its
        // arrays and its state: see `held`. The block owns all that it uses.
        unsafe {
            match state {
                Some(state) => model.predictionFromFeatures_usingState_options_completionHandler(
                    inputs, state, &options, &handler,
                ),
                None => model
                    .predictionFromFeatures_options_completionHandler(inputs, &options, &handler),
            }
        }
        let outputs = call.outputs.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect();
        let doing = format!("run {:?}", call.function);
        Ok(Running { told, doing, outputs, arrays, state: call.state })
    }

    fn end(&self, running: Running) -> Result<()> {
        let Running { told, doing, outputs, .. } = running;
        let Shared(results): Shared<_> =
            told.wait().map_err(|problem| failed(doing.clone(), problem))?;
        for (name, id) in outputs {
            let expected: &MLMultiArray = &self.held(id)?.array.0;
            let found = output(&results, &name)
                .ok_or_else(|| failed(doing.clone(), format!("it has no output {name:?}")))?;
            // Where Core ML could not use the array that it was given, it has made another.
            if !std::ptr::eq(&*found, expected) {
                let shapes = [array::shape(&found), array::shape(expected)];
                if shapes[0] != shapes[1] {
                    let problem = format!("{name:?} is {:?}, not {:?}", shapes[0], shapes[1]);
                    return Err(failed(doing, problem));
                }
                // SAFETY: both are valid and of the same shape.
                unsafe { found.transferToMultiArray(expected) };
            }
        }
        Ok(())
    }

    /// Lets `work` at a tensor of half precision.
    fn access<R>(
        &self,
        place: Place<'_>,
        work: impl FnOnce(&mut [f16], &RowLayout) -> Result<R>,
    ) -> Result<R> {
        match place {
            Place::Array(id) => array::access(&self.held(id)?.array.0, work)?,
            Place::State(state, name) => {
                let state = self.held_state(state)?;
                let work = std::cell::Cell::new(Some(work));
                let result = std::cell::Cell::new(None);
                let each = |array: std::ptr::NonNull<MLMultiArray>| {
                    let Some(work) = work.take() else { return };
                    // SAFETY: it is valid while the block runs.
                    let array = unsafe { array.as_ref() };
                    result.set(Some(array::access(array, work).and_then(|result| result)));
                };
                // SAFETY: Core ML calls the block before it returns, and does not keep it; no call that
                // uses the state is under way.
                unsafe {
                    let name = NSString::from_str(name);
                    state.getMultiArrayForStateNamed_handler(&name, &RcBlock::new(each));
                }
                result.take().unwrap_or_else(|| {
                    let problem = "it did not call the block that was given";
                    Err(failed(format!("show the state {name:?}"), problem.into()))
                })
            }
        }
    }
}

/// A function of a compiled package, loaded for its units or those that are tried instead.
pub(super) fn loaded(path: &Path, function: &str, setup: &Setup) -> Result<Retained<MLModel>> {
    with_fallback(function, setup.units, |units| load(path, setup, units))
}

fn load(path: &Path, setup: &Setup, units: ComputeUnits) -> Result<Retained<MLModel>> {
    autoreleasepool(|_| {
        let (url, configuration) = (file_url(path)?, configuration(setup, units));
        // SAFETY: both are valid objects.
        let model =
            unsafe { MLModel::modelWithContentsOfURL_configuration_error(&url, &configuration) };
        let name = setup.name.as_deref().unwrap_or("main");
        let doing = || format!("load function {name:?} of {} for {units}", path.display());
        model.map_err(|error| failed(doing(), failure(&error)))
    })
}

fn dictionary(
    names: &[Retained<NSString>],
    values: &[Retained<AnyObject>],
) -> Retained<NSDictionary<NSString, AnyObject>> {
    let names: Vec<&NSString> = names.iter().map(|name| &**name).collect();
    NSDictionary::from_retained_objects(&names, values)
}

fn output(
    results: &ProtocolObject<dyn MLFeatureProvider>,
    name: &str,
) -> Option<Retained<MLMultiArray>> {
    // SAFETY: plain properties of valid objects.
    unsafe { results.featureValueForName(&NSString::from_str(name))?.multiArrayValue() }
}

fn no_rows() -> Error {
    failed("use an array".into(), "it has not the rows that are wanted of it".into())
}

/// The beginning of a row.
fn row<'a, E>(
    elements: &'a mut [E],
    layout: &RowLayout,
    row: usize,
    len: usize,
) -> Result<&'a mut [E]> {
    let at = layout.row(row).filter(|_| len <= layout.width()).ok_or_else(no_rows)?;
    elements.get_mut(at..at + len).ok_or_else(no_rows)
}

impl Runtime for Models {
    fn array(&mut self, ty: &TensorType) -> Result<ArrayId> {
        let array = autoreleasepool(|_| array::zeros(ty))?;
        Ok(ArrayId(self.arrays.add(Array { ty: ty.clone(), array: Shared(array) })))
    }

    fn release(&mut self, array: ArrayId) {
        self.bound.retain(|key, _| !key.arrays.contains(&array));
        self.arrays.remove(array.0);
    }

    fn state(&mut self, package: usize, function: &str) -> Result<StateId> {
        let model = self.model(package, function)?;
        // SAFETY: the model is a valid object.
        Ok(StateId(self.states.add(unsafe { model.newState() })))
    }

    fn release_state(&mut self, state: StateId) {
        self.states.remove(state.0);
    }

    fn set(&mut self, array: ArrayId, tensor: Tensor) -> Result<()> {
        let Array { ty, array } = self.held(array)?;
        if tensor.shape() != ty.shape {
            let problem = format!("a tensor {:?} is set where a {ty} is", tensor.shape());
            return Err(failed("set an array".into(), problem));
        }
        match (tensor.values(), ty.dtype) {
            (Values::Floats(values), DataType::Float16) => {
                array::access::<f16, _>(&array.0, |elements, layout| {
                    let rows = values.chunks_exact(layout.width().max(1)).enumerate();
                    for (i, values) in rows {
                        row(elements, layout, i, values.len())?.convert_from_f32_slice(values);
                    }
                    Ok(())
                })?
            }
            (Values::Ints(values), DataType::Int32) => {
                array::access::<i32, _>(&array.0, |elements, layout| {
                    let rows = values.chunks_exact(layout.width().max(1)).enumerate();
                    for (i, values) in rows {
                        row(elements, layout, i, values.len())?.copy_from_slice(values);
                    }
                    Ok(())
                })?
            }
            _ => Err(failed("set an array".into(), format!("it is of type {ty}"))),
        }
    }

    fn get(&self, array: ArrayId) -> Result<Tensor> {
        let Array { ty, array } = self.held(array)?;
        match ty.dtype {
            DataType::Int32 => array::access::<i32, _>(&array.0, |elements, layout| {
                let mut values = vec![0; layout.rows() * layout.width()];
                for (i, to) in values.chunks_exact_mut(layout.width().max(1)).enumerate() {
                    to.copy_from_slice(row(elements, layout, i, to.len())?);
                }
                Ok(Tensor::ints(&ty.shape, values))
            })?,
            _ => array::access::<f16, _>(&array.0, |elements, layout| {
                let mut values = vec![0.0; layout.rows() * layout.width()];
                for (i, to) in values.chunks_exact_mut(layout.width().max(1)).enumerate() {
                    row(elements, layout, i, to.len())?.convert_to_f32_slice(to);
                }
                Ok(Tensor::floats(&ty.shape, values))
            })?,
        }
    }

    fn set_rows(&mut self, place: Place<'_>, rows: &mut Rows<'_>) -> Result<()> {
        self.access(place, |elements, layout| {
            for (i, values) in rows {
                row(elements, layout, i, values.len())?.copy_from_slice(values);
            }
            Ok(())
        })
    }

    fn get_rows(&self, place: Place<'_>, rows: &mut RowsMut<'_>) -> Result<()> {
        self.access(place, |elements, layout| {
            for (i, to) in rows {
                to.copy_from_slice(row(elements, layout, i, to.len())?);
            }
            Ok(())
        })
    }

    fn start(&mut self, calls: &[Call<'_>]) -> Result<Job> {
        autoreleasepool(|_| {
            let Some((last, earlier)) = calls.split_last() else {
                return Err(failed("run a function".into(), "there is no call".into()));
            };
            for call in earlier {
                let running = self.begin(call)?;
                self.end(running)?;
            }
            let running = self.begin(last)?;
            Ok(Job(self.running.add(running)))
        })
    }

    fn wait(&mut self, job: Job) -> Result<()> {
        match self.running.remove(job.0) {
            Some(running) => autoreleasepool(|_| self.end(running)),
            None => Ok(()),
        }
    }
}
