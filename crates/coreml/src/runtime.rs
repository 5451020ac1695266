//! What runs the functions of a model's packages: Core ML, or the interpreter.
//!
//! ```text
//! interpreted   the interpreter as a runtime
//! policy        which units Core ML may use for a function
//! compiled      packages as Core ML has compiled them, kept between runs
//! layout, slots where rows lie in memory of others; things by number
//! device        what a machine with Core ML must offer, and how a model gets there
//! ```
//!
//! [`PackageExecutor`](crate::PackageExecutor) decides what is called with what; a [`Runtime`] has the
//! memory and calls. Tensors lie in arrays that are made once and bound to inputs and outputs by their
//! number, so that what one function writes the next one reads where it lies.

mod compiled;
mod device;
mod interpreted;
mod layout;
mod policy;
mod slots;

use std::fmt;

use half::f16;

pub use self::compiled::{Cleared, CompiledCache, CompiledEntry, Kept};
pub use self::device::{Compiled, Device, Platform, Preparing, Setup, Source};
pub use self::interpreted::Interpreted;
pub use self::layout::{RowLayout, picture};
pub use self::policy::{ComputeUnits, OVERRIDES, Overrides, with_fallback};
pub use self::slots::Slots;
use crate::Result;
pub use crate::files::Hashes;
use crate::interpret::{Extreme, Tensor};
use crate::mil::TensorType;

/// A state of a function of each package, or none if one cannot be had.
///
/// # Errors
/// As [`Runtime::state`].
pub(crate) fn states(
    runtime: &mut dyn Runtime,
    packages: impl Iterator<Item = usize>,
    function: &str,
) -> Result<Vec<StateId>> {
    let mut made = Vec::new();
    for package in packages {
        match runtime.state(package, function) {
            Ok(state) => made.push(state),
            Err(error) => {
                made.into_iter().for_each(|state| runtime.release_state(state));
                return Err(error);
            }
        }
    }
    Ok(made)
}

/// An array of a [`Runtime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayId(pub usize);

/// What a function keeps between calls, for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub usize);

/// Calls that were begun and not yet waited for.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "arrays of a call are in use until it is waited for"]
pub struct Job(pub usize);

/// A tensor that a runtime holds.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// An array.
    Array(ArrayId),
    /// The tensor of that name in a state.
    State(StateId, &'a str),
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call<'a> {
    /// The package, by its place among those of the runtime.
    pub package: usize,
    /// The function.
    pub function: &'a str,
    /// The array of each input.
    pub inputs: Vec<(&'a str, ArrayId)>,
    /// The array of each output that is wanted. None is an input too.
    pub outputs: Vec<(&'a str, ArrayId)>,
    /// The state, of functions that have one.
    pub state: Option<StateId>,
}

/// Rows of a tensor, which are its last dimension: the number of each, row-major, and values for the
/// beginning of the row.
pub type Rows<'a> = dyn Iterator<Item = (usize, &'a [f16])> + 'a;
/// As [`Rows`], to be filled.
pub type RowsMut<'a> = dyn Iterator<Item = (usize, &'a mut [f16])> + 'a;

/// Runs the functions of packages, which it was given in an order. Arrays and states are its own, and
/// those of other runtimes are an error.
pub trait Runtime: Send + fmt::Debug {
    /// An array of a type, of zeros.
    ///
    /// # Errors
    /// If there is no memory for it, or there are no arrays of that type.
    fn array(&mut self, ty: &TensorType) -> Result<ArrayId>;

    /// Gives an array back.
    fn release(&mut self, array: ArrayId);

    /// A state with zeros for a function, and for all functions that have states of the same names.
    ///
    /// # Errors
    /// If there is no such function, or no memory.
    fn state(&mut self, package: usize, function: &str) -> Result<StateId>;

    /// Gives a state back.
    fn release_state(&mut self, state: StateId);

    /// Replaces all of an array.
    ///
    /// # Errors
    /// If the tensor is of another type or shape.
    fn set(&mut self, array: ArrayId, tensor: Tensor) -> Result<()>;

    /// All of an array.
    ///
    /// # Errors
    /// If it cannot be read.
    fn get(&self, array: ArrayId) -> Result<Tensor>;

    /// Replaces some rows.
    ///
    /// # Errors
    /// If the tensor has no such rows, or holds no floating-point numbers.
    fn set_rows(&mut self, place: Place<'_>, rows: &mut Rows<'_>) -> Result<()>;

    /// Reads some rows.
    ///
    /// # Errors
    /// As [`Runtime::set_rows`].
    fn get_rows(&self, place: Place<'_>, rows: &mut RowsMut<'_>) -> Result<()>;

    /// Begins to call a function, once for each of `calls`, which all call the same; with a state only
    /// once. Until they were waited for, the arrays of the calls belong to them.
    ///
    /// # Errors
    /// If there is no such function, an input is missing or of another type, or it cannot be run.
    fn start(&mut self, calls: &[Call<'_>]) -> Result<Job>;

    /// Waits for calls to end.
    ///
    /// # Errors
    /// If one of them failed.
    fn wait(&mut self, job: Job) -> Result<()>;

    /// Calls a function once, and waits for it to end.
    ///
    /// # Errors
    /// As [`Runtime::start`] and [`Runtime::wait`].
    fn call(&mut self, call: &Call<'_>) -> Result<()> {
        let job = self.start(std::slice::from_ref(call))?;
        self.wait(job)
    }

    /// How many calls of a function are better begun together than one after the other.
    fn together(&self) -> usize {
        1
    }

    /// The largest results so far, if anybody takes note of them.
    fn extremes(&self) -> Vec<Extreme> {
        Vec::new()
    }
}
