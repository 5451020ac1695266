//! What can go wrong with a GPU.

use baton_graph::ExecError;

/// Why the GPU could not be used, or stopped working.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is none that fits.
    #[error("no GPU {wanted}; found: {found}. {}", HINT)]
    NoAdapter {
        /// What was asked for.
        wanted: String,
        /// The names of those there are.
        found: String,
    },
    /// The adapter lacks something that every kernel needs.
    #[error("the GPU {adapter:?} has not {missing}; use --decode cpu and --prefill cpu instead")]
    Unsupported {
        /// Its name.
        adapter: String,
        /// What it lacks.
        missing: String,
    },
    /// It would not open.
    #[error("the GPU {adapter:?} cannot be opened: {problem}")]
    Open {
        /// Its name.
        adapter: String,
        /// What the driver said.
        problem: String,
    },
    /// There is no memory left on it.
    #[error(
        "out of GPU memory{}; use a smaller model, a shorter context or the CPU",
        .what.as_ref().map(|what| format!(" for {what}")).unwrap_or_default()
    )]
    OutOfMemory {
        /// What the memory was for, if that is known.
        what: Option<String>,
    },
    /// It was unplugged, reset, or gave up on a kernel. Nothing of what was on it is left.
    #[error("the GPU was lost: {0}; load the model again")]
    Lost(String),
    /// It refused a command: a fault of this program or of the driver.
    #[error("the GPU refused {what}: {problem}")]
    Refused {
        /// Which shader, buffer or command.
        what: String,
        /// What it said.
        problem: String,
    },
    /// A tensor that cannot become a matrix on the device.
    #[error("{name:?} {problem}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// What to do where there is no adapter at all.
const HINT: &str = "On Linux a Vulkan driver and loader are needed (Debian: mesa-vulkan-drivers and \
                    libvulkan1, or the vendor's driver); without a GPU use the CPU";

impl GpuError {
    /// From an error of wgpu, raised by `what`.
    pub(crate) fn of(error: wgpu::Error, what: &str) -> GpuError {
        match error {
            wgpu::Error::OutOfMemory { .. } => {
                GpuError::OutOfMemory { what: Some(what.to_owned()) }
            }
            wgpu::Error::Validation { description, .. }
            | wgpu::Error::Internal { description, .. } => {
                GpuError::Refused { what: what.to_owned(), problem: description }
            }
        }
    }
}

impl From<GpuError> for ExecError {
    fn from(error: GpuError) -> ExecError {
        ExecError::Invalid(error.to_string())
    }
}
