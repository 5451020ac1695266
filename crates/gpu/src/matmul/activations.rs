//! Activations in the forms that products read.

use std::sync::Arc;

use super::form::CHUNK;
use super::kernels;
use crate::{Gpu, GpuError, Kernel};

/// A part of a buffer.
#[derive(Clone, Debug)]
pub struct View {
    /// The buffer.
    pub buffer: wgpu::Buffer,
    /// The byte at which it begins, a multiple of the device's offset alignment.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl View {
    /// All of a buffer.
    pub fn whole(buffer: &wgpu::Buffer) -> View {
        View { buffer: buffer.clone(), offset: 0, bytes: buffer.size() }
    }

    /// To be bound.
    pub fn binding(&self) -> wgpu::BufferBinding<'_> {
        let size = std::num::NonZeroU64::new(self.bytes);
        wgpu::BufferBinding { buffer: &self.buffer, offset: self.offset, size }
    }
}

/// Binds parts of buffers, in the order of a kernel's bindings.
///
/// # Errors
/// If one is larger than can be bound.
pub(super) fn bind(
    gpu: &Gpu,
    kernel: &Kernel,
    views: &[&View],
) -> Result<wgpu::BindGroup, GpuError> {
    let bindings: Vec<_> = views.iter().map(|view| view.binding()).collect();
    gpu.guard("the buffers of a product", || kernel.bind(gpu, &bindings))
}

/// The form in which a kernel reads activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reading {
    /// As they are.
    Floats,
    /// As integers of 8 bits with a scale for each 32.
    Integers,
    /// In half precision.
    Halves,
}

/// Rows of activations `(tokens, inputs)` in single precision, and memory for other forms of them.
///
/// Several products may share them; each form is then made once.
#[derive(Debug)]
pub struct Activations {
    pub(super) x: View,
    pub(super) inputs: usize,
    stride: usize,
    pub(super) scratch: View,
    quantize: Option<(Arc<Kernel>, wgpu::BindGroup)>,
    halve: Option<(Arc<Kernel>, wgpu::BindGroup)>,
}

impl Activations {
    /// Rows of `inputs` floats, `stride` apart. Scratch memory, of at least
    /// [`scratch_bytes`](Activations::scratch_bytes), is written to when another form is made.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub fn new(
        gpu: &Gpu,
        x: View,
        inputs: usize,
        stride: usize,
        scratch: View,
    ) -> Result<Activations, GpuError> {
        let with = |kernel: Arc<Kernel>| {
            let group = bind(gpu, &kernel, &[&x, &scratch])?;
            Ok::<_, GpuError>((kernel, group))
        };
        // Weights in chunks have whole chunks of inputs.
        let whole = inputs.is_multiple_of(CHUNK);
        let quantize = whole.then(|| kernels::quantize(gpu)).transpose()?.map(with).transpose()?;
        let halve = gpu
            .features()
            .cooperative
            .map(|_| kernels::halve(gpu))
            .transpose()?
            .map(with)
            .transpose()?;
        Ok(Activations { x, inputs, stride, scratch, quantize, halve })
    }

    /// Bytes that other forms of that many tokens take at most.
    pub fn scratch_bytes(gpu: &Gpu, inputs: usize, tokens: usize) -> u64 {
        Activations::bytes_of(gpu, inputs, tokens, super::FEW)
    }

    /// The same where up to `few` tokens are made integers.
    pub(super) fn bytes_of(gpu: &Gpu, inputs: usize, tokens: usize, few: usize) -> u64 {
        let chunks = inputs.div_ceil(CHUNK);
        let integers = 4 * integer_stride(chunks) * tokens.min(few);
        let halves =
            if gpu.features().cooperative.is_some() { 8 * half_stride(chunks) * tokens } else { 0 };
        integers.max(halves).max(16) as u64
    }

    /// Words from one token's [integers](Reading::Integers) to the next one's, for kernels that store
    /// them with `shaders/integers.wgsl`.
    pub(crate) fn integer_words(&self) -> usize {
        integer_stride(self.inputs.div_ceil(CHUNK))
    }

    /// Makes the form of the first `tokens` rows that a kernel reads.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, tokens: usize, reading: Reading) {
        let chunks = self.inputs.div_ceil(CHUNK);
        match (reading, &self.quantize, &self.halve) {
            (Reading::Integers, Some((kernel, group)), _) => {
                let p = [chunks, tokens, self.stride, integer_stride(chunks)].map(|n| n as u32);
                let grid = super::grid((chunks * tokens).div_ceil(32) as u32, 1);
                kernel.dispatch(pass, group, bytemuck::cast_slice(&p), grid);
            }
            (Reading::Halves, _, Some((kernel, group))) => {
                let p = [self.inputs, chunks, self.stride, half_stride(chunks)].map(|n| n as u32);
                kernel.dispatch(pass, group, bytemuck::cast_slice(&p), [tokens as u32, 1, 1]);
            }
            _ => {}
        }
    }

    /// Whether the floats can be read four at once.
    pub(super) fn in_fours(&self) -> bool {
        self.inputs.is_multiple_of(4)
            && self.stride.is_multiple_of(4)
            && self.x.offset.is_multiple_of(16)
    }

    /// What a kernel that reads that form binds, and its elements from one token to the next.
    pub(super) fn read(&self, reading: Reading) -> (&View, usize) {
        let chunks = self.inputs.div_ceil(CHUNK);
        match reading {
            Reading::Floats => (&self.x, self.stride),
            Reading::Integers => (&self.scratch, integer_stride(chunks) / 4),
            Reading::Halves => (&self.scratch, half_stride(chunks)),
        }
    }
}

/// Words of a token's integers: see `shaders/integers.wgsl`.
fn integer_stride(chunks: usize) -> usize {
    20 * chunks.div_ceil(2)
}

/// Vectors of four halves of a token, and one for its exponent.
fn half_stride(chunks: usize) -> usize {
    8 * chunks + 1
}
