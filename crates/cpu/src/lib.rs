//! The CPU unit: SIMD kernels for x86 and Arm and the plan that runs a graph on them.
//!
//! - [`Cpu`]: the unit, which compiles a graph to an executor.
//! - [`Isa`]: the instruction set a kernel may use, detected once.
//! - [`Pool`]: persistent worker threads that all kernels share.
//! - [`QuantizedRows`], [`Rows`]: activations, quantized once for all matrices that read them.
//! - [`PackedCache`]: weights kept on disk as the kernels read them.
//! - [`Matrix`], [`matmul()`]: weight matrices and the products with them.

mod arena;
mod cache;
mod disjoint;
mod executor;
pub mod isa;
mod kernels;
mod kv;
pub mod matmul;
mod pages;
mod plan;
pub mod pool;
pub mod quant;
pub mod roof;
mod simd;
mod threads;
mod unit;

pub use cache::{PackedCache, PackedFile};
pub use isa::{Isa, UnsupportedIsa};
pub use matmul::{Epilogue, Expert, Matrix, MatrixError, matmul, matmul_experts, pack};
pub use pool::Pool;
pub use quant::{QuantizedRows, Rounding, Rows};
pub use threads::physical_cores;
pub use unit::{Cpu, CpuOptions};
