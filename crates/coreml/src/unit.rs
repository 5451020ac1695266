//! A compute unit: a graph as a package, run function by function.

use std::sync::Arc;

use baton_cpu::Pool;
use baton_graph::{ExecError, Executor, Graph, Limits, Unit, hex};
use baton_weights::Weights;

use crate::Error;
use crate::blob::{Blobs, in_memory};
use crate::calibrate::{calibrate, sample};
use crate::executor::PackageExecutor;
use crate::files::Hashes;
use crate::interpret::{Interpreter, Precision};
use crate::lower::{Chunks, Lowering, MilLowering, Ranges};
use crate::package::{LARGEST, Package, PackageWriter};
use crate::runtime::{Device, Source};

/// The name of the unit.
pub(crate) const NAME: &str = "coreml";
/// Tokens of the shortest history that a function takes.
const STEP: usize = 128;
/// What packages are made by.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The unit that lowers a graph and interprets the package.
#[derive(Clone, Debug)]
pub struct CoreMl {
    pool: Arc<Pool>,
    precision: Precision,
    chunk: usize,
    few_functions: bool,
    ranges: Option<Ranges>,
    device: Option<Device>,
}

impl CoreMl {
    /// The unit with the CPU's threads that it computes with.
    pub fn new(pool: Arc<Pool>) -> CoreMl {
        CoreMl {
            pool,
            precision: Precision::F32,
            chunk: 64,
            few_functions: false,
            ranges: None,
            device: None,
        }
    }

    /// Computes in another precision.
    pub fn with_precision(self, precision: Precision) -> CoreMl {
        CoreMl { precision, ..self }
    }

    /// Evaluates prompts in chunks of another length than 64.
    ///
    /// # Panics
    /// If it is 0.
    pub fn with_chunk(self, chunk: usize) -> CoreMl {
        assert!(chunk > 0, "chunks of no token");
        CoreMl { chunk, ..self }
    }

    /// Lowers to few functions, as is best where each has its share of memory and is compiled for minutes,
    /// which is so in Core ML: prompts of any length go through chunks of one size, and single tokens
    /// through a function that keeps the cache in states.
    pub fn with_few_functions(self) -> CoreMl {
        CoreMl { few_functions: true, ..self }
    }

    /// Keeps values within half precision by the sizes that they were [seen to have](calibrate), instead of
    /// finding those out by running some tokens.
    pub fn with_ranges(self, ranges: Ranges) -> CoreMl {
        CoreMl { ranges: Some(ranges), ..self }
    }

    /// Runs packages by Core ML on a machine that has it, instead of the interpreter. They are kept there,
    /// compiled, for the next time.
    pub fn on(self, device: Device) -> CoreMl {
        CoreMl { device: Some(device), ..self.with_few_functions() }
    }

    /// The lowering for a context: chunks and single tokens.
    fn lowering(&self, context: usize, ranges: Ranges) -> MilLowering {
        let chunk = self.chunk.min(context.max(1));
        if self.few_functions {
            // The states are as long anyway, and other contexts need no other package.
            let context = context.next_power_of_two();
            let lowering = MilLowering::for_context(context, &[chunk]);
            return MilLowering { ranges, decode: Some(context), ..lowering };
        }
        let mut columns = vec![1, chunk];
        columns.dedup();
        // A function costs little here, and one for a longer history than there is, much.
        let mut histories = vec![0];
        while let Some(&last) = histories.last().filter(|&&last| last + 1 < context) {
            let step = (last / 4).max(STEP).next_multiple_of(STEP);
            histories.push((last + step).min(context));
        }
        let prefill = columns.iter().flat_map(|&n| histories.iter().map(move |&h| (n, h)));
        MilLowering { ranges, prefill: prefill.collect(), ..MilLowering::default() }
    }
}

impl CoreMl {
    fn ranges(&self, graph: &Graph, weights: &Weights) -> Result<Ranges, ExecError> {
        match &self.ranges {
            Some(ranges) => Ok(ranges.clone()),
            None => Ok(calibrate(graph, weights, &sample(graph), 0)?.ranges),
        }
    }

    /// Packages on the disk, made unless they are there from an earlier time, and run by Core ML.
    fn compile_for(
        &self,
        device: &Device,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<PackageExecutor, ExecError> {
        // What decides where a graph is cut does not depend on what calibration finds.
        let plain = self.lowering(limits.context, Ranges::default());
        let parts = plain.parts(graph, Chunks::Bytes(LARGEST))?;
        let fingerprint = hex(graph.fingerprint());
        let mut lowering: Option<MilLowering> = None;
        let (mut packages, mut kept) = (Vec::new(), Vec::new());
        for (i, part) in parts.iter().enumerate() {
            let ranges = &self.ranges;
            let key =
                format!("{VERSION} {fingerprint} {plain:?} {ranges:?} {i} of {}", parts.len());
            let source = format!("model {}, part {} of {}", &fingerprint[..16], i + 1, parts.len());
            let mut failed = None;
            let path = device.cache().package(key.as_bytes(), &source, |place| {
                let lowering = match &lowering {
                    Some(lowering) => lowering,
                    None => match self.ranges(graph, weights) {
                        Ok(ranges) => lowering.insert(MilLowering { ranges, ..plain.clone() }),
                        Err(error) => {
                            failed = Some(error);
                            return Err(Error::malformed("its values could not be calibrated"));
                        }
                    },
                };
                let mut writer = PackageWriter::create(place)?;
                let model = lowering.lower_part(graph, weights, part, &mut writer.weights);
                let model = model.map_err(|error| writer.named(error))?;
                writer.finish(&model)
            });
            let lease = path.map_err(|error| failed.unwrap_or_else(|| error.into()))?;
            let package = Package::open(lease.path())?;
            packages.push(Source::Package(lease.path().to_owned(), Box::new(package)));
            kept.push(lease);
        }
        let executor =
            PackageExecutor::on(device, graph, weights, &packages, &Hashes::new(), limits)?;
        Ok(executor.keeping(kept))
    }
}

impl Unit for CoreMl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> std::result::Result<Box<dyn Executor>, ExecError> {
        graph.check_limits(&limits)?;
        if let Some(device) = &self.device {
            return Ok(Box::new(self.compile_for(device, graph, weights, limits)?));
        }
        let ranges = self.ranges(graph, weights)?;
        let mut blobs = in_memory();
        let model = self.lowering(limits.context, ranges).lower(graph, weights, &mut blobs)?;
        let blobs = Blobs::from_bytes(blobs.finish().map_err(Error::Write)?.into_inner())?;
        let package = Package::new(model, Some(blobs))?;
        let interpreter = Interpreter::new(&package, self.precision, self.pool.clone())?;
        let packages = vec![(&package, interpreter)];
        Ok(Box::new(PackageExecutor::new(graph, weights, packages, limits)?))
    }
}
