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
    /// Memory for integers, and for halves.
    integers: View,
    halves: View,
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
        Activations::with_integers_apart(gpu, x, inputs, stride, [scratch.clone(), scratch])
    }

    /// The same with memory for integers, of at least
    /// [`integer_bytes`](Activations::integer_bytes), and other memory for other forms. A product that
    /// stores integers for the next one needs them apart from those that it reads.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub(crate) fn with_integers_apart(
        gpu: &Gpu,
        x: View,
        inputs: usize,
        stride: usize,
        [integers, halves]: [View; 2],
    ) -> Result<Activations, GpuError> {
        let with = |kernel: Arc<Kernel>, to: &View| {
            let group = bind(gpu, &kernel, &[&x, to])?;
            Ok::<_, GpuError>((kernel, group))
        };
        // Weights in chunks have whole chunks of inputs.
        let whole = inputs.is_multiple_of(CHUNK);
        let quantize = whole.then(|| with(kernels::quantize(gpu)?, &integers)).transpose()?;
        let cooperative = gpu.features().cooperative;
        let halve = cooperative.map(|_| with(kernels::halve(gpu)?, &halves)).transpose()?;
        Ok(Activations { x, inputs, stride, integers, halves, quantize, halve })
    }

    /// Bytes that other forms of that many tokens take at most.
    pub fn scratch_bytes(gpu: &Gpu, inputs: usize, tokens: usize) -> u64 {
        Activations::bytes_of(gpu, inputs, tokens, super::FEW)
    }

    /// The same where up to `few` tokens are made integers.
    pub(super) fn bytes_of(gpu: &Gpu, inputs: usize, tokens: usize, few: usize) -> u64 {
        let chunks = inputs.div_ceil(CHUNK);
        let integers = Activations::integer_bytes(inputs, tokens.min(few));
        let halves =
            if gpu.features().cooperative.is_some() { 8 * half_stride(chunks) * tokens } else { 0 };
        integers.max(halves as u64)
    }

    /// Bytes that the integers of that many tokens take.
    pub(crate) fn integer_bytes(inputs: usize, tokens: usize) -> u64 {
        (4 * integer_stride(inputs.div_ceil(CHUNK)) * tokens).max(16) as u64
    }

    /// Where kernels store integers with `shaders/integers.wgsl`.
    pub(crate) fn integers(&self) -> Integers {
        let words = integer_stride(self.inputs.div_ceil(CHUNK)) as u32;
        Integers { buffer: self.integers.buffer.clone(), words }
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
            Reading::Integers => (&self.integers, integer_stride(chunks) / 4),
            Reading::Halves => (&self.halves, half_stride(chunks)),
        }
    }
}

/// Where the integers of a product's activations are stored.
#[derive(Clone, Debug)]
pub(crate) struct Integers {
    /// Their memory, which begins with them.
    pub(crate) buffer: wgpu::Buffer,
    /// Words of a row.
    pub(crate) words: u32,
}

/// Words of a token's integers: see `shaders/integers.wgsl`.
pub(super) fn integer_stride(chunks: usize) -> usize {
    20 * chunks.div_ceil(2) + chunks.next_multiple_of(4)
}

/// Vectors of four halves of a token, and one for its exponent.
fn half_stride(chunks: usize) -> usize {
    8 * chunks + 1
}
