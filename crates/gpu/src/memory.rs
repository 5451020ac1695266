//! The buffers that the kernels of an executor work on, but for weights and caches.

use crate::plan::{Plan, Product, Rotation, SlotShape, Step, View, Work};
use crate::step::{Room, Tables};
use crate::{Activations, FEW, Gpu, GpuError, Use};

/// Positions in the finer of the two tables of a rotation.
const FINE: usize = 256;

/// The buffers of one executor.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// What `step::Tables` holds.
    pub(crate) tables: wgpu::Buffer,
    pub(crate) tokens: wgpu::Buffer,
    pub(crate) positions: wgpu::Buffer,
    /// Values, as the plan says.
    pub(crate) slots: Vec<wgpu::Buffer>,
    /// Angles of each rotation.
    pub(crate) rotations: Vec<wgpu::Buffer>,
    /// What attention of lone tokens leaves of each part of their past.
    pub(crate) sums: wgpu::Buffer,
    pub(crate) extremes: wgpu::Buffer,
    /// A product's input in half precision.
    pub(crate) halves: wgpu::Buffer,
    /// A product's input as integers: two products in a row have one each.
    pub(crate) integers: [wgpu::Buffer; 2],
    /// In the place of what a kernel may do without.
    pub(crate) nothing: [wgpu::Buffer; 3],
}

impl Buffers {
    /// Buffers for passes of the sizes that `room` says.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn new(
        gpu: &Gpu,
        plan: &Plan,
        room: &Room,
        context: usize,
    ) -> Result<Buffers, GpuError> {
        let floats = |what: &str, n: usize| gpu.buffer(what, 4 * n as u64, Use::Storage);
        let slot =
            |slot: &SlotShape| floats("intermediate values", slot.width * room.rows(slot.height));
        let heads = |step: &Step| match &step.work {
            Work::Attention(a) => (a.heads, a.heads * a.head_dim.next_multiple_of(8)),
            _ => (0, 0),
        };
        let (heads, width) =
            plan.steps.iter().map(heads).fold((0, 0), |(a, b), (c, d)| (a.max(c), b.max(d)));
        let rotations = plan.rotations.iter();
        let inputs = |step: &Step| match &step.work {
            Work::Product(Product { x, .. }) => x.cols,
            Work::Moe(moe) => moe.x.cols,
            _ => 0,
        };
        let halves = plan
            .steps
            .iter()
            .map(|step| Activations::scratch_bytes(gpu, inputs(step), room.rows(step.height)));
        let halves = halves.max().unwrap_or(16);
        let integers =
            Activations::integer_bytes(plan.steps.iter().map(inputs).max().unwrap_or(0), FEW);
        let integers = || gpu.buffer("activations", integers, Use::Storage);
        Ok(Buffers {
            tables: floats("tables", room.words())?,
            tokens: floats("tokens", room.rows)?,
            positions: floats("positions", room.rows)?,
            slots: plan.slots.iter().map(slot).collect::<Result<_, _>>()?,
            rotations: rotations
                .map(|rotation| gpu.buffer_of("angles", &angles(rotation, context)))
                .collect::<Result<_, _>>()?,
            sums: floats("parts of attention", room.parts() * width)?,
            extremes: floats("parts of attention", 2 * room.parts() * heads)?,
            halves: gpu.buffer("activations", halves, Use::Storage)?,
            integers: [integers()?, integers()?],
            nothing: [floats("nothing", 1)?, floats("nothing", 1)?, floats("nothing", 1)?],
        })
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        let Buffers { tables, tokens, positions, sums, extremes, halves, integers, .. } = self;
        let own = [tables, tokens, positions, sums, extremes, halves];
        let all = own.into_iter().chain(integers).chain(&self.slots).chain(&self.rotations);
        all.map(|buffer| buffer.size() as usize).sum()
    }

    /// Writes the tables of a pass and its tokens.
    pub(crate) fn write(&self, gpu: &Gpu, tables: &Tables) {
        self.write_tables(gpu, tables);
        gpu.queue().write_buffer(&self.tokens, 0, bytemuck::cast_slice(&tables.tokens));
    }

    /// Writes the tables of a pass whose tokens are there.
    pub(crate) fn write_tables(&self, gpu: &Gpu, tables: &Tables) {
        gpu.queue().write_buffer(&self.tables, 0, bytemuck::cast_slice(&tables.words));
        gpu.queue().write_buffer(&self.positions, 0, bytemuck::cast_slice(&tables.positions));
    }

    /// The buffer that a view is of.
    pub(crate) fn of(&self, view: &View) -> &wgpu::Buffer {
        &self.slots[view.slot]
    }
}

/// Cosine and sine of each pair's angle at positions `0..FINE`, then at multiples of [`FINE`]: the
/// angle at any position is a sum of two. Angles reach 10^5, where f32 is off by a hundredth, so
/// they are computed in f64.
fn angles(rotation: &Rotation, context: usize) -> Vec<[f32; 2]> {
    let coarse = (0..context.div_ceil(FINE)).map(|i| i * FINE);
    let angle = |at: usize, frequency: f32| {
        let (sin, cos) = (at as f64 * f64::from(frequency)).sin_cos();
        [cos as f32, sin as f32]
    };
    (0..FINE)
        .chain(coarse)
        .flat_map(|at| rotation.inv_freq.iter().map(move |&frequency| angle(at, frequency)))
        .collect()
}

#[cfg(test)]
mod tests {
    use baton_graph::RopeLayout;

    use super::*;

    #[test]
    fn angles_of_sums_are_exact_far_from_the_start() {
        let inv_freq: Vec<f32> = (0..8).map(|i| 10_000f32.powf(-(i as f32) / 8.0)).collect();
        let rotation = Rotation {
            inv_freq: inv_freq.clone().into(),
            magnitude: 1.0,
            layout: RopeLayout::Half,
        };
        let table = angles(&rotation, 131_072);
        for position in [0, 1, 255, 256, 4097, 131_071] {
            for (i, &frequency) in inv_freq.iter().enumerate() {
                let [c, s] = table[position % FINE * 8 + i];
                let [c_high, s_high] = table[(FINE + position / FINE) * 8 + i];
                let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
                let found = [c * c_high - s * s_high, s * c_high + c * s_high];
                assert!((f64::from(found[0]) - cos).abs() < 3e-7, "cosine {i} at {position}");
                assert!((f64::from(found[1]) - sin).abs() < 3e-7, "sine {i} at {position}");
            }
        }
    }
}
