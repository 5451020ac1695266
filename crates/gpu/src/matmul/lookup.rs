//! Rows of a matrix by their numbers, as word embeddings are looked up.

use std::sync::Arc;

use super::activations::{View, bind};
use super::kernels;
use super::matrix::Matrix;
use super::product::parameters;
use super::variant::Variant;
use crate::{Gpu, GpuError, Kernel};

/// `y = factor * W[id]` for each of some numbers on the device.
#[derive(Debug)]
pub struct Rows {
    /// Of each part of the matrix.
    parts: Vec<(Arc<Kernel>, wgpu::BindGroup)>,
    chunks: usize,
}

impl Rows {
    /// Looks up rows of `matrix` whose numbers, a `u32` each, lie in `ids`; results of a number are
    /// `y_stride` floats from those of the next. A number that the matrix has not leaves `y` as it is.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub fn new(
        gpu: &Gpu,
        matrix: &Arc<Matrix>,
        ids: &View,
        y: &View,
        y_stride: usize,
        factor: f32,
    ) -> Result<Rows, GpuError> {
        let mut parts = Vec::new();
        let mut chunks = 0;
        for segment in &matrix.segments {
            let mut p = parameters(segment);
            (p[3], p[5], p[11]) = (factor.to_bits(), y_stride as u32, matrix.inputs() as u32);
            let kernel = kernels::kernel(gpu, segment.planes.form, Variant::Lookup, &p)?;
            let weights = View::whole(&segment.buffer);
            parts.push((Arc::clone(&kernel), bind(gpu, &kernel, &[&weights, ids, y])?));
            chunks = segment.planes.chunks;
        }
        Ok(Rows { parts, chunks })
    }

    /// Encodes the look-up of the first `count` numbers.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>, count: usize) {
        let grid = [(2 * self.chunks).div_ceil(64) as u32, count as u32, 1];
        for (kernel, group) in &self.parts {
            kernel.dispatch(pass, group, bytemuck::bytes_of(&(count as u32)), grid);
        }
    }
}
