//! The CPU unit: SIMD kernels for x86 and Arm and the plan that runs a graph on them.
//!
//! - [`Isa`]: the instruction set a kernel may use, detected once.
//! - [`Pool`]: persistent worker threads that all kernels share.
//! - [`QuantizedRows`], [`Rows`]: activations, quantized once for all matrices that read them.
//! - [`Matrix`], [`matmul`]: weight matrices in their file format and the products with them.

mod disjoint;
pub mod isa;
pub mod matmul;
pub mod pool;
pub mod quant;

pub use isa::{Isa, UnsupportedIsa};
pub use matmul::{Epilogue, Expert, Matrix, MatrixError, matmul, matmul_experts};
pub use pool::Pool;
pub use quant::{QuantizedRows, Rows};
