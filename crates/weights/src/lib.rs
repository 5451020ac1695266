//! Weights as they lie in files: GGUF, safetensors and MLX-quantized safetensors.
//!
//! Files are memory-mapped and read lazily: opening one touches its header only. A [`Tensor`] is a
//! cheap view (name, [`DType`], shape, bytes) that can be sliced by rows without copying and
//! dequantized row by row. This crate knows block formats and files; it knows nothing of graphs,
//! architectures or the units that compute.

#![deny(unsafe_code)]

mod dequantize;
mod dtype;
mod error;
#[allow(unsafe_code)]
mod freed;
pub mod gguf;
mod memory;
#[allow(unsafe_code)]
mod mmap;
mod quantize;
mod regular;
pub mod safetensors;
mod set;
mod tensor;

pub use dequantize::{Codes, dequantize_blocks};
pub use dtype::DType;
pub use error::{Error, Result};
pub use freed::give_back_freed;
pub use gguf::{GgufFile, GgufWriter, Metadata, Value};
pub use memory::{available_memory, peak_memory, process_memory};
pub use mmap::Origin;
pub use quantize::quantize_blocks;
pub use regular::{open_regular, read_regular};
pub use safetensors::Checkpoint;
pub use set::{Weight, Weights};
pub use tensor::{Affine, Tensor};
