//! ```text
//! array      arrays that are shared with the units, and what lies in them
//! models     functions that are loaded and called
//! plan       where operations run
//! answer     what Core ML says when it is done
//! ```

mod answer;
mod array;
mod models;
mod plan;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_coreml::report::Placement;
use baton_coreml::runtime::{Compiled, ComputeUnits, Platform, Runtime, Setup};
use baton_coreml::{Error, Result};
use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2_core_ml::{MLComputeUnits, MLModel, MLModelConfiguration};
use objc2_foundation::{NSError, NSProcessInfo, NSString, NSURL};

use self::answer::Answer;
use self::models::Models;

/// Core ML with functions and states, which began with macOS 15.
#[derive(Debug)]
struct CoreMl;

/// This machine's Core ML.
pub(crate) fn platform() -> std::result::Result<Arc<dyn Platform>, &'static str> {
    match objc2::available!(macos = 15.0) {
        true => Ok(Arc::new(CoreMl)),
        false => Err("Core ML has functions and states since macOS 15; this system is older"),
    }
}

impl Platform for CoreMl {
    fn system(&self) -> String {
        NSProcessInfo::processInfo().operatingSystemVersionString().to_string()
    }

    fn compile(&self, package: &Path) -> Result<PathBuf> {
        let doing = || format!("compile {}", package.display());
        autoreleasepool(|_| {
            let url = file_url(package)?;
            let (answer, told) = Answer::new();
            let handler = RcBlock::new(move |url: *mut NSURL, error: *mut NSError| {
                // SAFETY: Core ML hands over a valid object or nil in each place.
                let url = unsafe { answer::outcome(url, error) };
                answer.tell(url.map(|url| url.to_file_path()));
            });
            // SAFETY: the address is valid, and the block owns all that it uses.
            unsafe { MLModel::compileModelAtURL_completionHandler(&url, &handler) };
            let path = told.wait().map_err(|problem| failed(doing(), problem))?;
            path.ok_or_else(|| failed(doing(), "the result has no path".into()))
        })
    }

    fn runtime(&self, packages: Vec<Compiled>) -> Result<Box<dyn Runtime>> {
        Ok(Box::new(Models::new(packages)))
    }

    fn prepare(&self, compiled: &Path, function: &str, setup: &Setup) -> Result<()> {
        autoreleasepool(|_| models::loaded(compiled, function, setup).map(drop))
    }

    fn placement(&self, compiled: &Path, setup: &Setup) -> Result<Vec<Placement>> {
        autoreleasepool(|_| plan::placement(compiled, setup))
    }
}

/// The configuration that a function is loaded with.
fn configuration(setup: &Setup, units: ComputeUnits) -> Retained<MLModelConfiguration> {
    let units = match units {
        ComputeUnits::Cpu => MLComputeUnits::CPUOnly,
        ComputeUnits::CpuAndGpu => MLComputeUnits::CPUAndGPU,
        ComputeUnits::CpuAndNeuralEngine => MLComputeUnits::CPUAndNeuralEngine,
        ComputeUnits::All => MLComputeUnits::All,
    };
    // SAFETY: plain properties of an object that is ours.
    unsafe {
        let configuration = MLModelConfiguration::new();
        configuration.setComputeUnits(units);
        let name = setup.name.as_deref().map(NSString::from_str);
        configuration.setFunctionName(name.as_deref());
        configuration
    }
}

fn file_url(path: &Path) -> Result<Retained<NSURL>> {
    let unnamed = || failed(format!("open {}", path.display()), "the path has no URL".into());
    NSURL::from_file_path(path).ok_or_else(unnamed)
}

fn failed(doing: String, problem: String) -> Error {
    Error::CoreMl { doing, problem }
}
