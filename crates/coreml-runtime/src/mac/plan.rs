//! Where Core ML will run the operations of a function.

use std::path::Path;

use baton_coreml::Result;
use baton_coreml::report::{MeasuredUnit, Placement};
use baton_coreml::runtime::Setup;
use block2::RcBlock;
use objc2::ClassType;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2_core_ml::{
    MLComputeDeviceProtocol, MLComputePlan, MLGPUComputeDevice, MLModelStructureProgramOperation,
    MLNeuralEngineComputeDevice,
};
use objc2_foundation::{NSError, NSString};

use super::answer::{Answer, Shared, outcome};
use super::{configuration, failed, file_url};

/// The place of each operation.
///
/// # Errors
/// If Core ML has no plan for the function.
pub(super) fn placement(compiled: &Path, setup: &Setup) -> Result<Vec<Placement>> {
    let name = setup.name.as_deref().unwrap_or("main");
    let error = |problem: String| {
        failed(format!("plan function {name:?} of {}", compiled.display()), problem)
    };
    let plan = load(compiled, setup).map_err(error)?;
    // SAFETY: plain properties of valid objects, here and below.
    let program = unsafe { plan.modelStructure().program() };
    let program = program.ok_or_else(|| error("it is no ML Program".into()))?;
    // SAFETY: as above.
    let functions = unsafe { program.functions() };
    let function = functions.objectForKey(&NSString::from_str(name));
    let function = function.ok_or_else(|| error("there is no such function".into()))?;
    // SAFETY: as above.
    let operations = unsafe { function.block().operations() };
    Ok(operations.iter().map(|operation| of_operation(&plan, &operation)).collect())
}

fn load(compiled: &Path, setup: &Setup) -> std::result::Result<Retained<MLComputePlan>, String> {
    let url = file_url(compiled).map_err(|error| error.to_string())?;
    let configuration = configuration(setup, setup.units);
    let (answer, told) = Answer::new();
    let handler = RcBlock::new(move |plan: *mut MLComputePlan, error: *mut NSError| {
        // SAFETY: Core ML hands over a valid object or nil in each place.
        answer.tell(unsafe { outcome(plan, error) }.map(Shared));
    });
    // SAFETY: valid objects, and a block that owns all that it uses.
    unsafe {
        MLComputePlan::loadContentsOfURL_configuration_completionHandler(
            &url,
            &configuration,
            &handler,
        );
    }
    told.wait().map(|Shared(plan)| plan)
}

fn of_operation(plan: &MLComputePlan, operation: &MLModelStructureProgramOperation) -> Placement {
    // SAFETY: plain properties of valid objects; the operation is one of the plan's.
    unsafe {
        let usage = plan.computeDeviceUsageForMLProgramOperation(operation);
        let cost = plan.estimatedCostOfMLProgramOperation(operation);
        let results = operation.outputs();
        Placement {
            kind: operation.operatorName().to_string(),
            results: results.iter().map(|result| result.name().to_string()).collect(),
            unit: usage.map(|usage| unit(&usage.preferredComputeDevice())),
            cost: cost.map(|cost| cost.weight()),
        }
    }
}

fn unit(device: &ProtocolObject<dyn MLComputeDeviceProtocol>) -> MeasuredUnit {
    if device.isKindOfClass(MLNeuralEngineComputeDevice::class()) {
        MeasuredUnit::NeuralEngine
    } else if device.isKindOfClass(MLGPUComputeDevice::class()) {
        MeasuredUnit::Gpu
    } else {
        MeasuredUnit::Cpu
    }
}
