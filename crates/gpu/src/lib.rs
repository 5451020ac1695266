//! The GPU unit: graphs run through `wgpu`, on Metal and on Vulkan, from one set of WGSL kernels.
//!
//! [`Gpu`] is an opened device; kernels are [`Shader`]s compiled at their first use. Every kernel
//! that asks for more than each adapter offers has a plain twin without.

#![deny(unsafe_code)]

mod ahead;
mod best;
mod buffers;
mod clock;
mod device;
mod error;
mod executor;
mod kernels;
mod kv;
mod landing;
mod launch;
mod matmul;
mod memory;
mod pipeline;
mod plan;
mod program;
mod quiet;
mod roof;
mod step;
#[cfg(test)]
mod testing;
mod unit;

pub use buffers::{Upload, Use};
pub use clock::Clock;
pub use device::{Choice, Features, Found, Gpu, Options};
pub use error::GpuError;
pub use matmul::{
    Activations, Cooperative, FEW, Matrix, Mixture, MixtureRoom, MixtureWeights, Part, Product,
    Reading, Rows, Tuning, Vector, View,
};
pub use pipeline::{Access, Constant, Kernel, Shader};
pub use quiet::quiet_drivers;
pub use roof::read_rate;
pub use unit::GpuUnit;
