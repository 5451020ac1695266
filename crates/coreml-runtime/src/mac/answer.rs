//! What Core ML says when it is done: it calls a block, on a thread of its own.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};

use objc2::Message;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_core_ml::{
    MLComputePlan, MLDictionaryFeatureProvider, MLFeatureProvider, MLModel, MLMultiArray,
    MLPredictionOptions,
};
use objc2_foundation::NSError;

/// The end of an answer that a block holds, which is called on another thread.
pub(super) struct Answer<T>(Sender<Result<T, String>>);

/// The end that waits for it.
#[derive(Debug)]
pub(super) struct Told<T>(Receiver<Result<T, String>>);

/// Classes whose objects are bound to no thread: they may be used from any, by one at a time.
///
/// # Safety
/// It must be so.
pub(super) unsafe trait Unbound {}

// SAFETY: it is bound to no thread, and used by one at a time.
unsafe impl Unbound for MLModel {}
// SAFETY: as above.
unsafe impl Unbound for MLMultiArray {}
// SAFETY: as above.
unsafe impl Unbound for MLDictionaryFeatureProvider {}
// SAFETY: as above.
unsafe impl Unbound for MLPredictionOptions {}
// SAFETY: as above.
unsafe impl Unbound for MLComputePlan {}
// SAFETY: as above; Core ML's own results are the only ones here.
unsafe impl Unbound for ProtocolObject<dyn MLFeatureProvider> {}

/// An object that another thread may use after this one.
pub(super) struct Shared<T: ?Sized>(pub(super) Retained<T>);

impl<T: ?Sized> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object at {:p}", &*self.0)
    }
}

// SAFETY: the object is bound to no thread, and there is one owner of this at a time.
unsafe impl<T: ?Sized + Unbound> Send for Shared<T> {}

impl<T: Send> Answer<T> {
    pub(super) fn new() -> (Answer<T>, Told<T>) {
        let (sender, receiver) = mpsc::channel();
        (Answer(sender), Told(receiver))
    }

    pub(super) fn tell(&self, result: Result<T, String>) {
        // Nobody may be waiting any more.
        let _ = self.0.send(result);
    }
}

impl<T> Told<T> {
    /// Waits for it.
    ///
    /// # Errors
    /// What Core ML says.
    pub(super) fn wait(self) -> Result<T, String> {
        self.0.recv().unwrap_or_else(|_| Err("it gave no answer".into()))
    }
}

/// The object of a completion handler, or what its error says.
///
/// # Safety
/// Each pointer is nil or that of a valid object.
pub(super) unsafe fn outcome<T: Message>(
    object: *mut T,
    error: *mut NSError,
) -> Result<Retained<T>, String> {
    // SAFETY: the caller's.
    let (object, error) = unsafe { (Retained::retain(object), error.as_ref()) };
    match (object, error) {
        (Some(object), _) => Ok(object),
        (None, Some(error)) => Err(failure(error)),
        (None, None) => Err("it gave neither a result nor an error".into()),
    }
}

/// What an error says, with its domain and number, which others can be asked about.
pub(super) fn failure(error: &NSError) -> String {
    let (text, domain) = (error.localizedDescription(), error.domain());
    format!("{text} ({domain} {})", error.code())
}
