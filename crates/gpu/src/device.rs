//! The device: which adapter is used, what it can do, and how its errors reach the caller.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::GpuError;
use crate::matmul;
use crate::pipeline::{KernelKey, KernelPlace};

/// How a GPU is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which adapter.
    pub adapter: Choice,
    /// Leaves out every feature that an adapter may lack (subgroups, f16, cooperative matrices), so
    /// that the kernels which need none of them run.
    pub plain: bool,
}

impl Options {
    /// From the environment: `BATON_GPU` names an adapter by index or by a part of its name; the
    /// word `plain`, alone or after a comma, asks for the plain kernels.
    pub fn from_env() -> Options {
        std::env::var("BATON_GPU").map(|text| Options::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Options {
        let words: Vec<&str> = text.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
        let plain = words.iter().any(|word| word.eq_ignore_ascii_case("plain"));
        let named = words.iter().find(|word| !word.eq_ignore_ascii_case("plain"));
        let adapter = named.map_or(Choice::Best, |word| match word.parse() {
            Ok(index) => Choice::Index(index),
            Err(_) => Choice::Name((*word).to_owned()),
        });
        Options { adapter, plain }
    }
}

/// Which of the adapters is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// A discrete GPU before an integrated one, and that before a software renderer.
    #[default]
    Best,
    /// By its place among those that [`Gpu::adapters`] lists.
    Index(usize),
    /// The first whose name holds this text, upper and lower case alike.
    Name(String),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Best => f.write_str("to be found"),
            Choice::Index(index) => write!(f, "number {index}"),
            Choice::Name(name) => write!(f, "with {name:?} in its name"),
        }
    }
}

/// What kernels may use beyond the ground that every adapter covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Half-precision arithmetic in shaders.
    pub f16: bool,
    /// Operations among the invocations of a subgroup, with the smallest and the largest size that
    /// one may have.
    pub subgroups: Option<(u32, u32)>,
    /// The edge of cooperative matrices, 16 or 8: half precision in, single precision out.
    pub cooperative: Option<u32>,
    /// Times within a pass.
    pub timestamps: bool,
}

/// A GPU that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What the adapter is called, with its driver and, if they are asked for, the plain kernels.
    pub name: String,
    /// Whether its memory is not the machine's.
    pub own_memory: bool,
}

/// An opened GPU. All kernels, buffers and commands come from it.
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    features: Features,
    /// Why cooperative matrices are not used though the adapter has them.
    refused: Option<String>,
    pub(crate) kernels: Mutex<HashMap<KernelKey, KernelPlace>>,
    /// The first error that no one waited for.
    fault: Arc<Mutex<Option<GpuError>>>,
}

impl Gpu {
    /// The names of the adapters of this machine, in the order of their indices.
    pub fn adapters() -> Vec<String> {
        adapters().iter().map(|adapter| describe(&adapter.get_info())).collect()
    }

    /// What these options would open, found out without doing so; none if nothing.
    pub fn find(options: &Options) -> Option<Found> {
        let info = choose(&options.adapter).ok()?.get_info();
        let plain = if options.plain { ", plain" } else { "" };
        let own_memory = info.device_type == wgpu::DeviceType::DiscreteGpu;
        Some(Found { name: describe(&info) + plain, own_memory })
    }

    /// Whether this machine has an adapter that is no software renderer. Drivers are not even loaded
    /// where the system shows no device for them.
    pub fn is_in_hardware() -> bool {
        const DEVICES: [&str; 3] = ["/dev/dri", "/dev/nvidiactl", "/dev/dxg"];
        if cfg!(target_os = "linux") && !DEVICES.iter().any(|path| Path::new(path).exists()) {
            return false;
        }
        let in_software = |info: wgpu::AdapterInfo| info.device_type == wgpu::DeviceType::Cpu;
        adapters().iter().any(|adapter| !in_software(adapter.get_info()))
    }

    /// Opens an adapter with all that it offers.
    ///
    /// # Errors
    /// If there is none that fits, it lacks what all kernels need, or the driver refuses.
    pub fn open(options: &Options) -> Result<Arc<Gpu>, GpuError> {
        let adapter = choose(&options.adapter)?;
        let gpu = Gpu::with(&adapter, options.plain, None)?;
        match matmul::check_cooperative(&gpu) {
            Ok(()) => Ok(gpu),
            // The rest of the device is none the worse for it, but this one may hold a fault.
            Err(problem) => {
                tracing::warn!("{}: no cooperative matrices, since {problem}", gpu.name());
                Gpu::with(&adapter, options.plain, Some(problem))
            }
        }
    }

    fn with(
        adapter: &wgpu::Adapter,
        plain: bool,
        refused: Option<String>,
    ) -> Result<Arc<Gpu>, GpuError> {
        let info = adapter.get_info();
        let offered = adapter.features();
        if !offered.contains(wgpu::Features::IMMEDIATES) {
            let missing = "immediates (push constants)".to_owned();
            return Err(GpuError::Unsupported { adapter: info.name, missing });
        }
        let mut features = detect(adapter, &info, plain);
        features.cooperative = features.cooperative.filter(|_| refused.is_none());
        let has = |yes: bool, feature| if yes { feature } else { wgpu::Features::empty() };
        let required = wgpu::Features::IMMEDIATES
            | has(features.f16, wgpu::Features::SHADER_F16)
            | has(features.subgroups.is_some(), wgpu::Features::SUBGROUP)
            | has(features.cooperative.is_some(), wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
            | has(features.timestamps, TIMESTAMPS);
        let described = wgpu::DeviceDescriptor {
            label: Some("baton"),
            required_features: required,
            required_limits: adapter.limits(),
            experimental_features: experimental(features.cooperative.is_some()),
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.request_device(&described));
        let (device, queue) = opened
            .map_err(|e| GpuError::Open { adapter: info.name.clone(), problem: e.to_string() })?;
        let fault = Arc::new(Mutex::new(None));
        let keep = |fault: &Mutex<Option<GpuError>>, error| {
            tracing::error!("GPU: {error}");
            lock(fault).get_or_insert(error);
        };
        let kept = Arc::clone(&fault);
        device.on_uncaptured_error(Arc::new(move |e| keep(&kept, GpuError::of(e, "a command"))));
        let kept = Arc::clone(&fault);
        device.set_device_lost_callback(move |reason, message| {
            // A device that is dropped is "lost" as well, which is no fault.
            if reason != wgpu::DeviceLostReason::Destroyed {
                keep(&kept, GpuError::Lost(message));
            }
        });
        tracing::debug!("GPU: {} {features:?}", describe(&info));
        let kernels = Mutex::default();
        Ok(Arc::new(Gpu { device, queue, info, features, refused, kernels, fault }))
    }

    /// What the adapter is called, with its driver.
    pub fn name(&self) -> String {
        describe(&self.info)
    }

    /// Whether it is a renderer in software, which is slower than the CPU unit.
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// What kernels may use.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Why cooperative matrices are not used, if the adapter has them but they failed a test.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// The device's limits, which are the adapter's.
    pub fn limits(&self) -> wgpu::Limits {
        self.device.limits()
    }

    /// The device of wgpu.
    pub fn device(&self) -> &wgpu::Device {
        &self.device
    }

    /// The queue of wgpu.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.queue
    }

    /// Runs `body` and turns what the device finds wrong with its calls into an error that names
    /// `what`.
    ///
    /// # Errors
    /// If memory was short or a call was refused, or the device is lost.
    pub fn guard<T>(&self, what: &str, body: impl FnOnce() -> T) -> Result<T, GpuError> {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        let [memory, validation, internal] =
            [OutOfMemory, Validation, Internal].map(|filter| self.device.push_error_scope(filter));
        let result = body();
        let errors = [internal, validation, memory].map(|scope| pollster::block_on(scope.pop()));
        // The lack of memory says more than what follows from it.
        match errors.into_iter().flatten().last() {
            Some(error) => Err(GpuError::of(error, what)),
            None => self.check().map(|()| result),
        }
    }

    /// Whether something went wrong since the device was opened that no call has reported, such as
    /// the loss of the device.
    ///
    /// # Errors
    /// The first such fault, again and again: a device with one is not to be used on.
    pub fn check(&self) -> Result<(), GpuError> {
        lock(&self.fault).clone().map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name()).field("features", &self.features).finish()
    }
}

const TIMESTAMPS: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept behind these locks is whole at every moment.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn adapters() -> Vec<wgpu::Adapter> {
    let mut described = wgpu::InstanceDescriptor::new_without_display_handle();
    described.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL;
    described.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(described);
    pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()))
}

fn choose(choice: &Choice) -> Result<wgpu::Adapter, GpuError> {
    let mut found = adapters();
    let names: Vec<String> = found.iter().map(|a| describe(&a.get_info())).collect();
    let at = match choice {
        Choice::Best => (0..found.len()).min_by_key(|&i| preference(&found[i].get_info())),
        Choice::Index(index) => Some(*index).filter(|&index| index < found.len()),
        Choice::Name(name) => {
            let name = name.to_lowercase();
            names.iter().position(|found| found.to_lowercase().contains(&name))
        }
    };
    let found_names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    at.map(|at| found.swap_remove(at))
        .ok_or_else(|| GpuError::NoAdapter { wanted: choice.to_string(), found: found_names })
}

/// Smaller is better.
fn preference(info: &wgpu::AdapterInfo) -> u32 {
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

fn describe(info: &wgpu::AdapterInfo) -> String {
    let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ");
    format!("{} ({:?}, {})", info.name, info.backend, driver.trim())
}

fn detect(adapter: &wgpu::Adapter, info: &wgpu::AdapterInfo, plain: bool) -> Features {
    let offered = adapter.features();
    let has = |feature| !plain && offered.contains(feature);
    // Of Metal no sizes are told, but all that has cooperative matrices has one size.
    let is_apple = info.backend == wgpu::Backend::Metal
        && offered.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    let sizes = if is_apple { (32, 32) } else { (info.subgroup_min_size, info.subgroup_max_size) };
    let subgroups = has(wgpu::Features::SUBGROUP)
        .then_some(sizes)
        .filter(|&(min, max)| min.is_power_of_two() && max.is_power_of_two() && max <= 128);
    let f16 = has(wgpu::Features::SHADER_F16);
    let is_offered = |edge: &u32| {
        adapter.cooperative_matrix_properties().iter().any(|shape| {
            [shape.m_size, shape.n_size, shape.k_size] == [*edge; 3]
                && shape.ab_type == wgpu::CooperativeScalarType::F16
                && shape.cr_type == wgpu::CooperativeScalarType::F32
        })
    };
    let may = f16 && has(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    let cooperative = subgroups.filter(|(min, max)| may && min == max);
    let cooperative = cooperative.and_then(|_| [16, 8].into_iter().find(is_offered));
    Features { f16, subgroups, cooperative, timestamps: offered.contains(TIMESTAMPS) }
}

#[allow(unsafe_code)]
fn experimental(wanted: bool) -> wgpu::ExperimentalFeatures {
    if wanted {
        // SAFETY: the one experimental feature that is asked for is cooperative matrices, whose
        // loads and stores stay within arrays whose sizes the shaders fix.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_an_adapter_and_plain_kernels() {
        let parse = Options::parse;
        assert_eq!(parse(""), Options::default());
        assert_eq!(parse("plain"), Options { plain: true, ..Options::default() });
        assert_eq!(parse("1"), Options { adapter: Choice::Index(1), plain: false });
        let named = Choice::Name("llvmpipe".to_owned());
        assert_eq!(parse("llvmpipe, plain"), Options { adapter: named, plain: true });
    }

    #[test]
    fn an_adapter_that_is_not_there_is_an_error_with_those_that_are() {
        let adapter = Choice::Name("no such adapter".to_owned());
        let error = Gpu::open(&Options { adapter, plain: false }).unwrap_err();
        let GpuError::NoAdapter { found, .. } = &error else { panic!("{error}") };
        assert_eq!(*found, Gpu::adapters().join(", "));
        assert!(error.to_string().contains("libvulkan1"), "{error}");
    }

    #[test]
    fn what_the_device_refuses_is_an_error() {
        let gpu = crate::testing::gpu(false);
        let absurd = gpu.buffer("an absurd buffer", u64::MAX / 2, crate::Use::Storage);
        assert!(matches!(absurd, Err(GpuError::Refused { .. } | GpuError::OutOfMemory { .. })));
        let shader = crate::Shader { source: "fn main( {".into(), ..Default::default() };
        let refused = gpu.kernel(&shader).unwrap_err();
        assert!(matches!(refused, GpuError::Refused { .. }), "{refused}");
        gpu.check().unwrap();
    }

    #[test]
    fn plain_leaves_out_what_an_adapter_may_lack() {
        let gpu = crate::testing::gpu(true);
        let expected = Features {
            f16: false,
            subgroups: None,
            cooperative: None,
            timestamps: gpu.features().timestamps,
        };
        assert_eq!(*gpu.features(), expected);
    }
}
