//! Work of the step behind a product that the product does itself where tokens are few: each step that
//! waits for the one before costs some microseconds.
//!
//! A workgroup has 32 outputs, which are one chunk of the next product's input, and stores them as the
//! integers which that one reads. Where a gate joins two halves, it has 32 of both. Where an RMS norm lies
//! between, the chunk's largest number is divided by the same root mean square as the others, so that the
//! integers do not depend on it; the next product multiplies its sums with the factor, for which each
//! workgroup here leaves its sum of squares.

use super::activations::{Activations, Integers};
use super::form::CHUNK;
use super::matrix::Matrix;
use super::variant::{Finish, Parameters, Vector};
use crate::{Gpu, GpuError};

/// What a product does besides.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    /// Where integers are stored.
    integers: Integers,
    work: Work,
}

#[derive(Clone, Debug)]
enum Work {
    /// The gains of an RMS norm, one for each output.
    Norm(wgpu::Buffer),
    /// A gate of `shaders/activate.wgsl`, and its constants' bits.
    Gate(u32, [u32; 2]),
}

impl Fold {
    /// An RMS norm between a product with `matrix` and one of `next`, with no gains or one for each
    /// output; none where the product cannot do it.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn norm(
        gpu: &Gpu,
        matrix: &Matrix,
        next: &Activations,
        gains: &[f32],
    ) -> Result<Option<Fold>, GpuError> {
        if !fits(gpu, matrix, next, Finish::Norm) {
            return Ok(None);
        }
        let ones = if gains.is_empty() { vec![1.0; matrix.outputs()] } else { gains.to_vec() };
        let gains = gpu.buffer_of("gains", &ones)?;
        Ok(Some(Fold { integers: next.integers(), work: Work::Norm(gains) }))
    }

    /// A gate between the halves of what a product with `matrix` gives and one of `next`; none where
    /// the product cannot do it.
    pub(crate) fn gate(
        gpu: &Gpu,
        matrix: &Matrix,
        next: &Activations,
        [kind, alpha, limit]: [u32; 3],
    ) -> Option<Fold> {
        let fits = fits(gpu, matrix, next, Finish::Gate(kind));
        let work = Work::Gate(kind, [alpha, limit]);
        fits.then(|| Fold { integers: next.integers(), work })
    }

    pub(super) fn finish(&self) -> Finish {
        match self.work {
            Work::Norm(_) => Finish::Norm,
            Work::Gate(kind, _) => Finish::Gate(kind),
        }
    }

    /// The buffers that the kernel has besides those of any product.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &wgpu::Buffer> {
        let gains = match &self.work {
            Work::Norm(gains) => Some(gains),
            Work::Gate(..) => None,
        };
        std::iter::once(&self.integers.buffer).chain(gains)
    }

    /// Sets the parameters that the kernel takes besides those of any product.
    pub(super) fn set(&self, p: &mut Parameters) {
        p[18] = self.integers.words;
        if let Work::Gate(_, constants) = self.work {
            p[19..21].copy_from_slice(&constants);
        }
    }
}

/// Whether a matrix's outputs are whole chunks of `next`, which lie in one run, and the device can divide
/// the work of any number of tokens up to the most.
fn fits(gpu: &Gpu, matrix: &Matrix, next: &Activations, finish: Finish) -> bool {
    let halves = if matches!(finish, Finish::Gate(_)) { 2 } else { 1 };
    let whole = matrix.outputs() == halves * next.inputs && next.inputs.is_multiple_of(CHUNK);
    // Experts are not cut within their outputs.
    let apart = matrix.segments.iter().all(|segment| segment.outputs == matrix.outputs());
    whole
        && apart
        && [1, 2, 4, 8].iter().all(|&columns| vector(gpu, matrix, finish, columns, 1).is_some())
}

/// How the work is divided where each workgroup finishes a chunk of each of `columns` tokens, in
/// `layers` of the grid; none where workgroup memory is too small.
pub(super) fn vector(
    gpu: &Gpu,
    matrix: &Matrix,
    finish: Finish,
    columns: u32,
    layers: u32,
) -> Option<Vector> {
    let (limits, subgroups) = (gpu.limits(), gpu.features().subgroups);
    let most =
        limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x);
    let largest = subgroups.map_or(8, |(_, most)| most);
    // Outputs of a workgroup: a gate's are half of them.
    let outputs = if matches!(finish, Finish::Gate(_)) { 64 } else { 32 };
    // Lanes beyond one for each two chunks are idle.
    let useful = (matrix.inputs().div_ceil(2 * CHUNK) as u32).next_power_of_two();
    let small = matrix.segments.iter().all(|segment| segment.planes.form.is_small());
    // Of few outputs for each group of lanes as many as keep what a lane has under way about the same for small
    // and for large codes; of a chunk's 32 as many as leave lanes for the largest workgroup, which should
    // each have two turns with large codes.
    let lanes = if small { 1024 } else { 2048 };
    let rows = match columns {
        1 if outputs == 64 && small => 4,
        1 if outputs == 32 && outputs / 4 * useful >= lanes => 4,
        8 if matrix.outputs() >= 8192 => 4,
        _ => 2,
    };
    let groups = outputs / rows;
    // All workgroups should run at once, with some 100,000 lanes. A renderer in software wants few.
    let blocks = matrix.outputs() as u32 / outputs * layers;
    let fill = if gpu.is_software() { 1 } else { (1 << 17) / blocks.max(1) };
    let wanted = 1 << fill.max(1).ilog2();
    let sizes = [1024, 512, 256, 128, 64].into_iter().filter(|&size| size <= most);
    sizes.filter(|&size| size <= wanted.max(128)).find_map(|size| {
        let threads = (size / groups).clamp(largest, useful.max(largest));
        let turns = (groups * threads / size).max(1);
        let size = groups * threads / turns;
        let vector = Vector { threads, rows, columns, size, turns };
        let bytes = vector.workgroup_bytes(subgroups.map(|(least, _)| least), finish);
        // Eight threads finish a token's chunk.
        let enough = size >= threads && size >= 8 * columns;
        (enough && bytes <= limits.max_compute_workgroup_storage_size).then_some(vector)
    })
}
